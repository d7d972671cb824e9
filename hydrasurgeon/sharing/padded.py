"""A pruned model with zeros for the heads that are gone: its own library loads it as if nothing had
been cut.

A head whose values and columns of W_O are zero adds nothing, whatever it attends to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hydrasurgeon.checkpoints.layout import member_sources, selection
from hydrasurgeon.checkpoints.reading import Checkpoint, all_kept, undecided
from hydrasurgeon.errors import CheckFailed, UsageError
from hydrasurgeon.families.weights import all_neurons, head_axes, rows_of
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import SingleManifest
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.heads import Kept, put_heads
from hydrasurgeon.runtime.classifier import Classifier, as_classifier
from hydrasurgeon.runtime.tensors import assign, to_weights

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw

TOLERANCE = 1e-9
"""Largest difference of any output from the pruned model's in float64; only the order of sums
differs.
"""


def padded(
    opened: Checkpoint, member: int | None
) -> tuple[list[Planned], Callable[[str], SingleManifest], float]:
    """A pruned model, or one member of a hydra, as a whole model, and how far its answers are from
    the pruned one's in float64; CheckFailed where that is more than rounding.
    """
    opened = undecided(opened)
    kept, arrays = _member(opened, member)
    towers, axes = opened.manifest.towers, head_axes(opened.weights.values())
    planned, weights = [], {}
    heads = all_kept(towers)
    every = {**heads, **all_neurons(opened.weights.values())}
    for name, (array, dtype) in arrays.items():
        if name in axes:
            group, layer, spec = axes[name]
            count = len(every[group][layer])
            array = put_heads(
                array, kept[group][layer], count, spec=spec, head_dim=rows_of(towers, group)
            )
        planned.append(Planned(name, dtype, tuple(array.shape), partial(list, [array])))
        weights[name] = to_weights(array, dtype, name=name, path=opened.path)
    model = opened.manifest.model
    entry = step(
        "export",
        args={"format": "padded", "member": member},
        inputs=[opened.record(opened.digests())],
    )
    module = opened.family.module(model, towers, heads, files=opened.files)
    assign(module, weights, opened.path)

    def manifest(sha256: str) -> SingleManifest:
        history = (*opened.manifest.history, entry.wrote(sha256))
        return SingleManifest(
            kind="backbone",
            model=model,
            towers=towers,
            kept=heads,
            weights_sha256=sha256,
            history=history,
        )

    whole_model = Classifier(module, manifest("0" * 64), lambda sample: sample).double().eval()
    return planned, manifest, _difference(opened, whole_model, member or 0)


def _member(opened: Checkpoint, member: int | None) -> tuple[Kept, Mapping[str, tuple[Raw, str]]]:
    """The heads that it keeps, and its tensors as they lie in the file, with their dtypes."""
    manifest, tensors = opened.manifest, opened.tensors
    count = len(manifest.members or ())
    if member not in (range(count) if count else (None,)):
        what = (
            f"a hydra of {count} members, and one of them can be written"
            if count
            else f"a {manifest.kind}, not a hydra"
        )
        hint = f"Give --member 0 to {count - 1}." if count else "Leave out --member."
        raise UsageError(
            f"{'' if member is None else f'--member {member}: '}{opened.name} is {what}", hint=hint
        )
    if manifest.kind != "hydra" or member is None:
        names = {name: tensors[name].dtype for name in tensors if name in opened.weights}
        return opened.kept, {name: (tensors.read(name), dtype) for name, dtype in names.items()}
    sources = member_sources(manifest, opened.weights, tensors)[member]
    return selection(manifest.members[member], opened.weights), {
        name: (source.read(tensors), tensors[source.stored].dtype)
        for name, source in sources.items()
    }


@torch.inference_mode()
def _difference(opened: Checkpoint, model: Classifier, member: int) -> float:
    pruned = as_classifier(opened, device="cpu", dtype="float64")
    torch.manual_seed(0)
    worst = torch.zeros((), dtype=torch.float64)
    for batch in (1, 3):
        inputs: Any = opened.family.example(
            opened.manifest.model, batch, device=torch.device("cpu"), dtype=torch.float64
        )
        expected = pruned(inputs)
        right = expected[:, member if expected.shape[1] > 1 else 0]
        worst = torch.maximum(worst, (model(inputs)[:, 0] - right).abs().max())
    if not float(worst) <= TOLERANCE:
        raise CheckFailed(
            f"export: with zeros for its heads the model differs by {float(worst):.3g} in float64; "
            f"allowed is {TOLERANCE:g}",
            hint="Nothing was written: this architecture mixes its heads, and cannot be padded.",
        )
    return float(worst)
