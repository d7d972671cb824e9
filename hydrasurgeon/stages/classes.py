"""--classes and --template: what a stage does to a checkpoint that needs class names before it can classify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoint import Checkpoint, rewritten
from hydrasurgeon.errors import UsageError
from hydrasurgeon.zeroshot import is_zero_shot, read_labels, read_templates, zero_shot

__all__ = ["asked", "names_in", "with_class_names"]


def with_class_names(
    checkpoint: Checkpoint,
    *,
    classes: str | None = None,
    templates: Sequence[str] = (),
    names: Callable[[], Sequence[str] | None] | None = None,
) -> Checkpoint:
    """The checkpoint as a classifier of `classes`, else of what it records, else of the data's `names`.

    A checkpoint with a classifier of its own comes back unchanged; without `names` nothing is required.
    """
    model = checkpoint.manifest.model
    if not is_zero_shot(model):
        if classes is not None or templates:
            option = "--classes" if classes is not None else "--template"
            raise UsageError(
                f"{option}: {checkpoint.name} has a classifier of its own",
                hint=f"Leave {option} out; class names and templates are for CLIP.",
            )
        return checkpoint
    given = read_templates(templates)
    labels: Sequence[str] | None = read_labels(classes) if classes is not None else model.labels
    if labels is None and names is not None:
        labels = names()
        if labels is None:
            raise UsageError(
                f"{checkpoint.name}: zero-shot classification needs class names, and the data has none",
                hint="Give --classes cat,dog,… or --classes FILE with one name a line.",
            )
    if labels is None:
        if given:
            raise UsageError("--template: there are no classes to fill in", hint="Give --classes.")
        return checkpoint
    changed = zero_shot(model, labels, given)
    if changed == model:
        return checkpoint
    return replace(checkpoint, manifest=rewritten(checkpoint.manifest, model=changed))


def asked(classes: str | None, templates: Sequence[str]) -> dict[str, Any]:
    """The two options as history records them."""
    known = Path(classes) if classes is not None and Path(classes).is_file() else classes
    return {"classes": known, "template": list(templates) or None}


def names_in(data: str | None) -> Callable[[], Sequence[str] | None]:
    """The class names of a data set, looked up when they are needed."""

    def look() -> Sequence[str] | None:
        if data is None:
            return None
        from hydrasurgeon.data import open_data

        return open_data(data).classes

    return look
