"""What people see: tables, progress, errors. The only folder that prints, and the only one that knows rich."""

from hydrasurgeon.render.console import failed, progress, raw, say
from hydrasurgeon.render.described import compared, inspected
from hydrasurgeon.render.made import exported, finetuned, fused, pruned, scored
from hydrasurgeon.render.measured import benched, evaluated, report_tables
from hydrasurgeon.render.trusted import verified

__all__ = [
    "benched",
    "compared",
    "evaluated",
    "exported",
    "failed",
    "finetuned",
    "fused",
    "inspected",
    "progress",
    "pruned",
    "raw",
    "report_tables",
    "say",
    "scored",
    "verified",
]
