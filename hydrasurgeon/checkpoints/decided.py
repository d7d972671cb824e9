"""The decision state's place in a checkpoint: its tensors among the weights, and the checkpoint without it."""

from __future__ import annotations

from dataclasses import replace

from hydrasurgeon.checkpoints.reading import Checkpoint, rewritten
from hydrasurgeon.files.decided import PREFIX
from hydrasurgeon.files.manifest import Step
from hydrasurgeon.files.tensors import Tensors

DROPPED = "the decision state is dropped: it was fitted to weights that are gone; run calibrate again"
"""What a command says that leaves a decision state behind."""


def undecided(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as it was before `calibrate`: without its tensors, its entry in the history and its hash.

    Surgery makes other weights, of which the state knows nothing.
    """
    manifest = checkpoint.manifest
    if manifest.decision is None:
        return checkpoint
    at = max(i for i, entry in enumerate(manifest.history) if entry.command == "calibrate")
    before, after = manifest.history[at].inputs[0].sha256, manifest.weights_sha256
    tensors = checkpoint.tensors
    names = {name: tensors.stored(name) for name in tensors if not name.startswith(PREFIX)}
    history = (*manifest.history[:at], *(_read(entry, after, before) for entry in manifest.history[at + 1 :]))
    return replace(
        checkpoint,
        note=DROPPED,
        tensors=Tensors(tensors.files, names),
        manifest=rewritten(manifest, decision=None, weights_sha256=before, history=history),
    )


def _read(entry: Step, after: str, before: str) -> Step:
    """A step that read the calibrated weights (`score` does, and changes none), as if it had read the plain ones."""
    inputs = tuple(
        each.model_copy(update={"sha256": before}) if each.sha256 == after else each for each in entry.inputs
    )
    return entry.model_copy(update={"inputs": inputs, "output": before if entry.output == after else entry.output})
