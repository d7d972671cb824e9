"""--classes and --template: a checkpoint that needs class names before it can classify gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.checkpoint import CheckpointT, rewritten, undecided
from hydrasurgeon.errors import PROBE, CheckpointError, UsageError
from hydrasurgeon.families.prompts import read_labels, read_templates, zero_shot
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.options.shared import ClassNames

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples

FROM_DATA = "data"
"""--classes data: the names that the data set has, whatever the checkpoint records."""


def classifying(
    checkpoint: CheckpointT, options: ClassNames, data: Samples | None = None
) -> CheckpointT:
    """Return the checkpoint as a classifier of named classes.

    The names come from the options, else from the checkpoint's record, else from the data.
    """
    model, classes, templates = checkpoint.manifest.model, options.classes, options.template
    if not checkpoint.family.named_classes:
        if classes is None and not templates:
            return checkpoint
        option = "--template" if classes is None else "--classes"
        raise UsageError(
            f"{option}: {checkpoint.name} has its own classifier",
            hint=f"Leave {option} out; class names and templates are for CLIP.",
        )
    prompts = read_templates(templates)
    labels: Sequence[str] | None = model.labels
    if classes is not None:
        labels = None if classes == FROM_DATA else read_labels(classes)
    if labels is None and data is not None:
        labels = _words(data, checkpoint.name)
    if labels is None and classes is None and not prompts:
        return checkpoint
    if labels is None:
        why = f"--classes {FROM_DATA}: no data is read here"
        if prompts:
            why = "--template: there are no classes to fill in"
        raise UsageError(why, hint="Give --classes cat,dog,….")
    changed = zero_shot(model, labels, prompts)
    if changed == model:
        return checkpoint
    # What was fitted to other classes knows nothing of these.
    plain = undecided(checkpoint)
    return replace(plain, manifest=rewritten(plain.manifest, model=changed))


def need_classes(manifest: Manifest, name: object) -> None:
    """Refuse a model that has nothing to choose between."""
    if manifest.model.num_classes == 0:
        raise CheckpointError(
            f"{name}: has no classes",
            hint=f"Fit a classifier ({PROBE}), or give a CLIP its --classes.",
        )


def with_data_names(checkpoint: CheckpointT, samples: Samples) -> CheckpointT:
    """Return the checkpoint with the samples' class names, if it has none, and with their note.

    The samples were fitted to the checkpoint.
    """
    notes = [note for note in (checkpoint.note, samples.note) if note is not None]
    manifest = checkpoint.manifest
    if manifest.model.labels is None and samples.classes is not None:
        model = manifest.model.model_copy(update={"labels": samples.classes})
        manifest = rewritten(manifest, model=model)
    return replace(checkpoint, manifest=manifest, note="; ".join(notes) or None)


def with_inputs(checkpoint: CheckpointT, samples: Samples) -> CheckpointT:
    """Return the checkpoint with the samples' kind of texts, if it does not record which it reads."""
    from hydrasurgeon.data.samples import reading

    manifest = checkpoint.manifest
    model = reading(manifest.model, samples)
    if model is manifest.model:
        return checkpoint
    return replace(checkpoint, manifest=rewritten(manifest, model=model))


def named_by(checkpoint: CheckpointT, options: ClassNames, samples: Samples | None) -> CheckpointT:
    """Return the checkpoint with the class names of the data that it will be scored on.

    Data without labels have none.
    """
    from hydrasurgeon.data import fit_classes

    checkpoint = classifying(checkpoint, options, samples)
    if samples is None or samples.labels is None:
        return checkpoint
    return with_data_names(checkpoint, fit_classes(samples, checkpoint.manifest.model))


def _words(data: Samples, where: str) -> Sequence[str]:
    """Return the data's class names; refuse numbers and codes, which mean nothing to a text tower."""
    from hydrasurgeon.data.labels import are_codes

    column, names, why = data.written, data.classes, None
    if column is None or names is None or column.numbers is not None:
        why = "the data has none"
    elif are_codes(names):
        why = f"the data calls them {names[0]}, …, which are not words"
    if names is None or why is not None:
        raise UsageError(
            f"{where}: zero-shot classification needs class names, and {why}",
            hint="Give --classes cat,dog,… or --classes FILE with one name a line.",
        )
    return names
