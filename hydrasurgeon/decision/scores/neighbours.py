"""knn: the distance of x/|x| to its 50th nearest neighbour among features that are kept (Sun et al., ICML 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from hydrasurgeon.decision.probabilities import Scores
from hydrasurgeon.decision.scores.evidence import Evidence, Fit, directions
from hydrasurgeon.errors import DataError

# The authors' k for CIFAR, and OpenOOD's.
K = 50


def fit_knn(evidence: Evidence) -> tuple[Fit, list[str]]:
    count = len(evidence.features)
    if count < K:
        raise DataError(
            f"knn: {count} samples to fit it on have no {K}th neighbour",
            hint=f"It needs at least {K}; give more --fit-data.",
        )
    said = [f"knn keeps {count:,} of {evidence.moments.count:,} features, drawn at random"]
    return {"bank": directions(evidence.features)}, said if evidence.capped else []


def score_knn(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    similarity = directions(features) @ state["bank"].double().T
    kth = similarity.topk(K, dim=-1).values[:, -1]
    return torch.sqrt((2 - 2 * kth).clamp_min(0.0))
