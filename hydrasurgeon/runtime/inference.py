"""Run classifiers over samples: one pass over the data, each sample decoded once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.data import Batches, Samples, by_length, moved
from hydrasurgeon.runtime.classifier import Classifier

__all__ = ["logits_of"]


@torch.inference_mode()
def logits_of(
    models: Sequence[Classifier],
    samples: Samples,
    *,
    batch_size: int | None,
    skip_bad: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    skipped: list[str] | None = None,
) -> tuple[Float[Tensor, "sample member klass"], Int[Tensor, " sample"] | None]:
    """Logits of all models side by side (a hydra contributes all its members), and the labels if there are any."""
    first = next(models[0].parameters())
    batches = Batches(
        samples, models[0].transform, batch_size=batch_size, order=by_length(samples), skip_bad=skip_bad
    )  # fmt: skip
    logits, labels, index = [], [], []
    for done, batch in enumerate(batches, 1):
        inputs = moved(batch.inputs, first.device, first.dtype)
        index.append(batch.index)
        logits.append(torch.cat([model(inputs).float() for model in models], dim=1).cpu())
        if batch.labels is not None:
            labels.append(batch.labels)
        if progress is not None:
            progress(samples.spec, done, len(batches))
    if skipped is not None:
        skipped += batches.skipped
    order = torch.cat(index).argsort()  # as the samples come, whatever order they ran in
    return torch.cat(logits)[order], torch.cat(labels)[order] if labels else None
