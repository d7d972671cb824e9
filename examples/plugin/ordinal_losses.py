"""Training loss of `ordinal`, in torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot

from hydrasurgeon.tuning.losses import SingleLabelLosses


class Losses(SingleLabelLosses):
    """Cross-entropy and ranked probability score."""

    def losses(
        self,
        logits: Tensor,
        labels: Tensor,
        smoothing: float = 0.0,
        weight: Tensor | None = None,
    ) -> Tensor:
        plain = super().losses(logits, labels, smoothing, weight)
        truth = one_hot(labels, logits.shape[-1]) if labels.ndim == 1 else labels
        apart = logits.softmax(dim=-1).cumsum(dim=-1) - truth.to(logits).cumsum(dim=-1)
        return plain + apart.square().sum(dim=-1)
