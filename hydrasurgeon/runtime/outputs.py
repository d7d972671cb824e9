"""Classifiers over samples, each decoded once: logits and features by batch, or all in the order of
the samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.data import Batches, Samples, by_length, moved
from hydrasurgeon.data.batches import unreadable
from hydrasurgeon.decision.fitting import Outputs
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.features import WithFeatures


@torch.inference_mode()
def pieces(
    models: Sequence[Classifier],
    samples: Samples,
    run: Run,
    *,
    features: bool = False,
    skipped: list[str] | None = None,
) -> Iterator[tuple[Tensor, Outputs]]:
    """Batch by batch, in float32 on the CPU, with the rows' places; features are those of the first
    model.
    """
    first = next(models[0].parameters())
    batches = Batches(
        samples,
        models[0].transform,
        batch_size=run.batch_size,
        order=by_length(samples),
        skip_bad=run.skip_bad,
    )
    read = WithFeatures(models[0]) if features else None
    for done, batch in enumerate(batches, 1):
        inputs = moved(batch.inputs, first.device, first.dtype)
        read_from = None
        if read is None:
            logits = torch.cat([model(inputs).float() for model in models], dim=1).cpu()
        else:
            logits, read_from = (each.float().cpu() for each in read(inputs))
        check_finite(logits, models, samples)
        yield batch.index, Outputs(logits, read_from, batch.labels)
        run.tick(samples.spec, done, len(batches))
    if skipped is not None:
        skipped += batches.skipped


def collected(
    models: Sequence[Classifier],
    samples: Samples,
    run: Run,
    *,
    features: bool = False,
    skipped: list[str] | None = None,
) -> Outputs:
    """All of them, in the order of the samples, without those that could not be read."""
    whole: dict[str, Tensor] = {}
    read = torch.zeros(len(samples), dtype=torch.bool)
    for index, piece in pieces(models, samples, run, features=features, skipped=skipped):
        read[index] = True
        for name, values in vars(piece).items():
            if values is not None:
                # Each row goes to its place at once: pieces that wait to be joined would take the
                # memory twice.
                if name not in whole:
                    whole[name] = values.new_empty(len(samples), *values.shape[1:])
                whole[name][index] = values
    if not whole:
        raise unreadable(samples)
    if not read.all():
        whole = {name: values[read] for name, values in whole.items()}
    return Outputs(whole["logits"], whole.get("features"), whole.get("labels"))


def logits_of(
    models: Sequence[Classifier], samples: Samples, run: Run, *, skipped: list[str] | None = None
) -> tuple[Float[Tensor, "sample member klass"], Int[Tensor, " sample"] | None]:
    """Logits of all models side by side (a hydra contributes all its members), and the labels if
    there are any.
    """
    outputs = collected(models, samples, run, skipped=skipped)
    return outputs.logits, outputs.labels


def check_finite(
    logits: Float[Tensor, "sample member klass"], models: Sequence[Classifier], samples: Samples
) -> None:
    """Refuse NaN and infinity: no measure of them means anything."""
    parts = [logits] if len(models) == 1 else logits.split([m.members for m in models], dim=1)
    for model, part in zip(models, parts, strict=True):
        if not torch.isfinite(part).all():
            half = next(model.parameters()).dtype in (torch.float16, torch.bfloat16)
            raise CheckpointError(
                f"{model.name}: its logits hold NaN or infinity for samples of {samples.spec}",
                hint="The model overflows"
                + (
                    " in half precision: use --dtype float32."
                    if half
                    else ": start from a sound one."
                ),
            )
