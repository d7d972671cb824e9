"""Run classifiers over samples: one pass over the data, each sample decoded once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.data import Batches, Samples, by_length, moved
from hydrasurgeon.errors import CheckpointError, DataError
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.classifier import Classifier


@torch.inference_mode()
def logits_of(
    models: Sequence[Classifier], samples: Samples, run: Run, *, skipped: list[str] | None = None
) -> tuple[Float[Tensor, "sample member klass"], Int[Tensor, " sample"] | None]:
    """Logits of all models side by side (a hydra contributes all its members), and the labels if there are any.

    NaN and infinity are refused: no measure of them means anything.
    """
    first = next(models[0].parameters())
    batches = Batches(
        samples, models[0].transform, batch_size=run.batch_size, order=by_length(samples), skip_bad=run.skip_bad
    )
    logits, labels, index = [], [], []
    for done, batch in enumerate(batches, 1):
        inputs = moved(batch.inputs, first.device, first.dtype)
        index.append(batch.index)
        logits.append(torch.cat([model(inputs).float() for model in models], dim=1).cpu())
        if batch.labels is not None:
            labels.append(batch.labels)
        run.tick(samples.spec, done, len(batches))
    if skipped is not None:
        skipped += batches.skipped
    if not index:
        raise DataError(
            f"{samples.spec}: none of its {len(samples)} samples can be read",
            hint="Run without --skip-bad to see what is wrong with the first.",
        )
    order = torch.cat(index).argsort()  # as the samples come, whatever order they ran in
    ordered = torch.cat(logits)[order]
    check_finite(ordered, models, samples)
    return ordered, torch.cat(labels)[order] if labels else None


def check_finite(logits: Float[Tensor, "sample member klass"], models: Sequence[Classifier], samples: Samples) -> None:
    for model, part in zip(models, logits.split([m.members for m in models], dim=1), strict=True):
        broken = int((~torch.isfinite(part)).any(dim=-1).any(dim=-1).sum())
        if broken:
            half = next(model.parameters()).dtype in (torch.float16, torch.bfloat16)
            raise CheckpointError(
                f"{model.name}: its logits hold NaN or infinity for {broken} of {len(logits)} samples of"
                f" {samples.spec}",
                hint="The model overflows"
                + (" in half precision: use --dtype float32." if half else ": start from a sound one."),
            )
