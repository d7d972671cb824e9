"""prune --compensate: run the unpruned model on calibration inputs, and hand back the tensors that repair it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.weights import output_of
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.heads import Kept
from hydrasurgeon.options.shared import Run

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw


def repaired_tensors(
    checkpoint: Single, kept: Kept, *, how: str, data: str, run: Run
) -> tuple[dict[str, Raw], DataRecord]:
    """Raw output projections and biases of the layers that lose heads, by name, and the data they come from."""
    from hydrasurgeon.data import Batches, moved, open_data
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.runtime.tensors import TORCH, to_raw
    from hydrasurgeon.surgery.refit import Calibration, fold_means, refit

    samples = open_data(data, limit=run.limit, seed=run.seed)
    model = as_classifier(checkpoint, device=run.device, dtype=run.dtype)
    model.requires_grad_(False)
    anatomy = model.anatomy
    names = output_names(checkpoint, kept)
    places = [(b.attention.tower, b.attention.layer) for b in anatomy.blocks]
    beyond = [place for place in names if place not in places]
    if beyond:
        raise SurgeryError(
            f"--compensate {how}: no data runs through tower {beyond[0][0]}",
            hint="Prune that tower without --compensate.",
        )
    first = next(model.parameters())
    batches = Batches(samples, model.transform, batch_size=run.batch_size, skip_bad=run.skip_bad)

    def inputs() -> Iterator[Any]:
        for batch in batches:
            yield moved(batch.inputs, first.device, first.dtype)

    calibration = Calibration(inputs, len(batches), run.tick)
    widths = {TORCH[checkpoint.tensors[name].dtype] for name, _ in names.values()}
    stored = widths.pop() if len(widths) == 1 else first.dtype
    repairs = (
        fold_means(anatomy, kept, calibration)
        if how == "mean"
        else refit(anatomy, kept, calibration, stored=lambda values: values.to(stored))
    )
    repaired = {}
    for layer, repair in repairs.items():
        weight, bias = names[places[layer]]
        for name, values in ((weight, repair.weight), (bias, repair.bias)):
            if name is None or values is None:
                continue
            rounded = values.to(TORCH[checkpoint.tensors[name].dtype])
            if not rounded.isfinite().all():
                raise SurgeryError(
                    f"--compensate {how}: the repaired {name} would hold NaN or infinity",
                    hint="The model overflows on this data: prune without --compensate, or use --dtype float32.",
                )
            repaired[name] = to_raw(rounded)[0]
    return repaired, DataRecord(**samples.fingerprint())


def output_names(checkpoint: Single, kept: Kept) -> dict[tuple[str, int], tuple[str, str | None]]:
    """The names of W_O and its bias in each layer that loses heads."""
    manifest = checkpoint.manifest
    return {
        (tower, layer): output_of(checkpoint.weights, tower, layer)
        for tower, rows in manifest.kept.items()
        for layer, row in enumerate(rows)
        if kept[tower][layer] != row
    }
