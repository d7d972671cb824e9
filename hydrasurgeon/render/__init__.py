"""What people see: tables, progress, errors. The only folder that prints, and the only one that knows rich."""

from hydrasurgeon.render.bar import progress
from hydrasurgeon.render.built import built
from hydrasurgeon.render.console import as_json, failed, raw, say, show
from hydrasurgeon.render.decided import calibrated, predicted
from hydrasurgeon.render.described import compared, inspected
from hydrasurgeon.render.made import exported, finetuned, fused, pruned, scored
from hydrasurgeon.render.measured import benched, evaluated
from hydrasurgeon.render.probed import probed
from hydrasurgeon.render.streams import finish_streams, prepare_streams, writing
from hydrasurgeon.render.trusted import replayed, verified
