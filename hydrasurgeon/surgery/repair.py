"""prune --compensate: run the unpruned model on calibration inputs, and hand back the tensors that
repair it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.weights import output_of
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.heads import NEURONS, Kept
from hydrasurgeon.options.shared import Run

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples
    from hydrasurgeon.files.tensors import Raw


def repaired_tensors(
    checkpoint: Single, kept: Kept, *, how: str, samples: Samples, run: Run
) -> tuple[dict[str, Raw], DataRecord]:
    """Raw output projections and biases of the layers that lose heads, by name, and the data they
    come from.
    """
    from hydrasurgeon.data import Batches
    from hydrasurgeon.runtime.answering import fed
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.runtime.tensors import TORCH, to_raw
    from hydrasurgeon.surgery.refit import Calibration, fold_means, refit

    model = as_classifier(checkpoint, device=run.device, dtype=run.dtype)
    model.requires_grad_(False)
    anatomy = model.anatomy
    kept = {**checkpoint.kept, **kept}
    names = output_names(checkpoint, kept)
    run_through = {b.attention.tower for b in anatomy.blocks}
    beyond = [group for group, _ in names if group.removesuffix(NEURONS) not in run_through]
    if beyond:
        raise SurgeryError(
            f"--compensate {how}: no data runs through tower {beyond[0]}",
            hint="Prune that tower without --compensate.",
        )
    batches = Batches(samples, model.transform, batch_size=run.batch_size, skip_bad=run.skip_bad)

    def inputs() -> Iterator[Any]:
        return (batch.inputs for batch in fed(batches, run.but(progress=None), module=model))

    calibration = Calibration(inputs, len(batches), run.tick)
    widths = {TORCH[checkpoint.tensors[name].dtype] for name, _ in names.values()}
    stored = widths.pop() if len(widths) == 1 else next(model.parameters()).dtype
    repairs = (
        fold_means(anatomy, checkpoint.kept, kept, calibration)
        if how == "mean"
        else refit(
            anatomy, checkpoint.kept, kept, calibration, stored=lambda values: values.to(stored)
        )
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
                    f"--compensate {how}: the repaired {name} would hold NaN or infinity",
                    hint=(
                        "The model overflows on this data: prune without --compensate, or use "
                        "--dtype float32."
                    ),
                )
            repaired[name] = to_raw(rounded)[0]
    return repaired, DataRecord(**samples.fingerprint())


def output_names(checkpoint: Single, kept: Kept) -> dict[tuple[str, int], tuple[str, str | None]]:
    """The names of W_O or W_2, and of its bias, by group and layer, wherever heads or neurons go."""
    return {
        (group, layer): output_of(checkpoint.weights, group, layer)
        for group, rows in checkpoint.kept.items()
        for layer, row in enumerate(rows)
        if group in kept and kept[group][layer] != row
    }
