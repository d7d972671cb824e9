"""A classifier over samples: logits and features batch by batch, or all of them in the order of the samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.data import Batches, Samples, by_length, moved
from hydrasurgeon.errors import DataError
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.features import reading
from hydrasurgeon.runtime.inference import check_finite


@dataclass(frozen=True)
class Piece:
    """What a model said of some samples."""

    index: Int[Tensor, " sample"]
    logits: Float[Tensor, "sample member klass"]
    features: Float[Tensor, "sample member width"] | None
    """None where they were not asked for."""
    labels: Int[Tensor, " sample"] | None


@torch.inference_mode()
def pieces(
    model: Classifier, samples: Samples, run: Run, *, features: bool, skipped: list[str] | None = None
) -> Iterator[Piece]:
    """Batch by batch, in float32 on the CPU; texts of like length run together, so the order is not the samples'."""
    first = next(model.parameters())
    batches = Batches(
        samples, model.transform, batch_size=run.batch_size, order=by_length(samples), skip_bad=run.skip_bad
    )
    with reading(model) if features else nullcontext() as read:
        for done, batch in enumerate(batches, 1):
            inputs = moved(batch.inputs, first.device, first.dtype)
            logits, read_from = (model(inputs), None) if read is None else read(inputs)
            piece = Piece(
                batch.index, logits.float().cpu(), None if read_from is None else read_from.float().cpu(), batch.labels
            )
            check_finite(piece.logits, [model], samples)
            yield piece
            run.tick(samples.spec, done, len(batches))
    if skipped is not None:
        skipped += batches.skipped


def collected(
    model: Classifier, samples: Samples, run: Run, *, features: bool, skipped: list[str] | None = None
) -> Piece:
    """All of them, in the order of the samples."""
    whole: dict[str, Tensor] = {}
    read = torch.zeros(len(samples), dtype=torch.bool)
    for piece in pieces(model, samples, run, features=features, skipped=skipped):
        read[piece.index] = True
        for name, values in (("logits", piece.logits), ("features", piece.features), ("labels", piece.labels)):
            if values is not None:
                # Each row goes to its place at once: pieces that wait to be joined would take the memory twice.
                if name not in whole:
                    whole[name] = values.new_empty(len(samples), *values.shape[1:])
                whole[name][piece.index] = values
    if not whole:
        raise DataError(
            f"{samples.spec}: none of its {len(samples)} samples can be read",
            hint="Run without --skip-bad to see what is wrong with the first.",
        )
    if not read.all():
        whole = {name: values[read] for name, values in whole.items()}
    index = read.nonzero().flatten()
    return Piece(index, whole["logits"], whole.get("features"), whole.get("labels"))
