"""prune --compensate: run the unpruned model on calibration inputs, and hand back the tensors that
repair it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.weights import output_of
from hydrasurgeon.heads import NEURONS, Kept
from hydrasurgeon.options.shared import Run

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples
    from hydrasurgeon.files.tensors import Raw
    from hydrasurgeon.surgery.refit import Unpruned


_shared: ContextVar[dict[tuple[Any, ...], Unpruned] | None] = ContextVar("shared", default=None)
"""Cached outputs of the unpruned model, by what they depend on.

None: each repair computes them anew.
"""


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Share the unpruned model's outputs between repairs of one model on the same data."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def repaired_tensors(
    checkpoint: Single, kept: Kept, *, samples: Samples, run: Run
) -> dict[str, Raw]:
    """Return the raw repaired output projections and biases of layers that lose heads, by name."""
    from hydrasurgeon.runtime.torch_tensors import TORCH, to_raw
    from hydrasurgeon.surgery.refit import refit

    kept = {**checkpoint.kept, **kept}
    content = samples.fingerprint()["sha256"]
    unpruned = _unpruned(checkpoint, kept, content, samples=samples, run=run)
    anatomy, calibration = unpruned.anatomy, replace(unpruned.calibration, tick=run.tick)
    names = output_names(checkpoint, kept)
    run_through = {b.attention.tower for b in anatomy.blocks}
    beyond = [group for group, _ in names if group.removesuffix(NEURONS) not in run_through]
    if beyond:
        raise SurgeryError(
            f"--compensate lstsq: no data runs through tower {beyond[0]}",
            hint="Prune that tower without --compensate.",
        )
    widths = {TORCH[checkpoint.tensors[name].dtype] for name, _ in names.values()}
    stored = anatomy.blocks[0].attention.out.weight.dtype
    if len(widths) == 1:
        stored = widths.pop()
    repairs = refit(
        anatomy,
        checkpoint.kept,
        kept,
        calibration,
        stored=lambda values: values.to(stored),
        unpruned=unpruned,
    )
    repaired = {}
    for place, repair in repairs.items():
        weight, bias = names[place.group(anatomy), anatomy.blocks[place.layer].attention.layer]
        for name, values in ((weight, repair.weight), (bias, repair.bias)):
            if name is None or values is None:
                continue
            rounded = values.to(TORCH[checkpoint.tensors[name].dtype])
            if not rounded.isfinite().all():
                raise SurgeryError(
                    f"--compensate lstsq: the repaired {name} would hold NaN or infinity",
                    hint=(
                        "The model overflows on this data: prune without --compensate, or use "
                        "--dtype float32."
                    ),
                )
            repaired[name] = to_raw(rounded)[0]
    return repaired


def _unpruned(checkpoint: Single, kept: Kept, data: str, *, samples: Samples, run: Run) -> Unpruned:
    """Return the live model on its calibration inputs; a shared one, if there is one."""
    from hydrasurgeon.data import Batches
    from hydrasurgeon.runtime.answering import fed
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.surgery.refit import HELD_BYTES, CalibrationInputs, Unpruned, lost_places

    shared = _shared.get()
    manifest = checkpoint.manifest
    whose = (manifest.weights_sha256, manifest.model.model_dump_json())
    key = (whose, run.device, run.dtype, run.batch_size, run.skip_bad, data)
    if shared is not None and key in shared:
        return shared[key]
    model = as_classifier(checkpoint, device=run.device, dtype=run.dtype)
    model.requires_grad_(False)
    batches = Batches(samples, model.transform, batch_size=run.batch_size, skip_bad=run.skip_bad)

    def inputs() -> Iterator[Any]:
        return (batch.inputs for batch in fed(batches, run.but(progress=None), module=model))

    calibration = CalibrationInputs(inputs, len(batches))
    if shared is None:
        places = tuple(lost_places(model.anatomy, checkpoint.kept, kept))
        return Unpruned(model.anatomy, calibration, places)
    for other in [*shared]:
        if other[0] != whose:  # one model after the other
            del shared[other]
    room = HELD_BYTES - sum(other.nbytes for other in shared.values())
    shared[key] = Unpruned(model.anatomy, calibration, room=room)
    return shared[key]


def output_names(checkpoint: Single, kept: Kept) -> dict[tuple[str, int], tuple[str, str | None]]:
    """Return the names of W_O or W_2, and of its bias, by group and layer, where any head goes."""
    return {
        (group, layer): output_of(checkpoint.weights, group, layer)
        for group, rows in checkpoint.kept.items()
        for layer, row in enumerate(rows)
        if group in kept and kept[group][layer] != row
    }
