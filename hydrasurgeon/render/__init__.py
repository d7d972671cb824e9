"""What people see: tables, progress, errors. The only folder that prints, and the only one that knows rich."""

from hydrasurgeon.render.bar import progress
from hydrasurgeon.render.console import as_json, failed, finish_streams, prepare_streams, raw, say, show, writing
from hydrasurgeon.render.described import compared, inspected, probed, replayed, verified
from hydrasurgeon.render.made import built, calibrated, exported, finetuned, fused, predicted, pruned, scored
from hydrasurgeon.render.measured import benched, evaluated
