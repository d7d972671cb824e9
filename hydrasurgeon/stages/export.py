"""export: a pruned model or a hydra for other runtimes and libraries; kept only if it gives the
same outputs.
"""

from __future__ import annotations

from dataclasses import replace

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint, rewritten
from hydrasurgeon.checkpoints.class_names import classifying
from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import need
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.measuring import ExportOptions
from hydrasurgeon.sharing.base import Export, Format
from hydrasurgeon.sharing.formats import format_named

OF_SOME = ("int8", "check")
"""Options that only some formats have."""
PADDED = "its tokenizer pads on the left, so that answers would depend on the other texts of a batch; the exported one pads on the right"
"""Note for a tokenizer whose padding side is changed."""


@stage(ExportOptions)
def export(arguments: ExportOptions) -> Export:
    """Write the checkpoint for another runtime, or for its own library with its calibration in its
    last layer.
    """
    chosen = _check(arguments)
    opened = classifying(open_checkpoint(arguments.checkpoint, arch=arguments.arch), arguments)
    notes = () if opened.note is None else (opened.note,)
    if _pads_left(opened):
        opened, notes = _padded_right(opened), (*notes, PADDED)
    result = chosen.write(opened, arguments)
    return replace(result, notes=notes + result.notes)


def _pads_left(opened: Checkpoint) -> bool:
    """Return whether the checkpoint's tokenizer pads on the left where others call it."""
    if "max_length" not in opened.manifest.model.preprocess or not opened.files:
        return False
    transform = opened.family.transform(opened.manifest.model, files=opened.files)
    return bool(transform.tokenizer.padding_side == "left")  # type: ignore[attr-defined]


def _padded_right(opened: Checkpoint) -> Checkpoint:
    """Return the checkpoint with a tokenizer that pads on the right, as all engines do."""
    model, files = opened.family.padded_right(opened.manifest.model, opened.files)
    return replace(opened, manifest=rewritten(opened.manifest, model=model), files=files)


def _check(arguments: ExportOptions) -> Format:
    """Return the format, whose packages are there; raise UsageError for options of another one."""
    chosen = format_named(arguments.format)
    for option in OF_SOME:
        if getattr(arguments, option) and option not in chosen.options:
            raise UsageError(f"--{option} conflicts with --format {chosen.name}")
    need(*chosen.packages, purpose=f"export --format {chosen.name}")
    return chosen
