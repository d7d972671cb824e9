"""What answers of yes or no are worth beside accuracy and calibration: of one logit as a ranking, of many labels by
label.

    average precision   Σ (R_k − R_{k−1}) P_k over distinct probabilities; mAP its mean over labels that occur
    MRR@10              mean over groups of 1 / the rank of the first yes, 0 behind rank 10
    nDCG@10             mean over groups of Σ s_i / log₂(1 + rank i) over the same of the best order
    micro, macro F1     2 TP / (2 TP + FP + FN) of all decisions; the mean over labels, 0 for one without any
    exact match         the fraction of samples of which every label is right
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.decision.problems import YES
from hydrasurgeon.measuring.metrics import aupr, auroc

DEPTH = 10
"""Ranks that count."""


def ranking(
    yes: Float[Tensor, " sample"], truth: Float[Tensor, " sample"], groups: Int[Tensor, " sample"] | None
) -> dict[str, float | None]:
    """How well the probability of yes orders samples: all of them, and those of each group."""
    positive = truth >= YES
    values = {"auroc": auroc(yes[~positive], yes[positive]), "ap": aupr(yes[~positive], yes[positive])}
    if groups is None:
        return values
    queries = [(yes[groups == group], truth[groups == group]) for group in groups.unique()]
    return values | {
        "mrr10": sum(reciprocal_rank(*query) for query in queries) / len(queries),
        "ndcg10": sum(ndcg(*query) for query in queries) / len(queries),
    }


def reciprocal_rank(yes: Float[Tensor, " sample"], truth: Float[Tensor, " sample"]) -> float:
    """1 / the rank of the first yes; the first of equals comes first."""
    ranked = truth[yes.argsort(descending=True, stable=True)] >= YES
    first = ranked[:DEPTH].nonzero()
    return 1 / (int(first[0]) + 1) if len(first) else 0.0


def ndcg(yes: Float[Tensor, " sample"], truth: Float[Tensor, " sample"]) -> float:
    """Gains of the first ten as shares of the best order's; 0 where nothing can be gained. Equals share their gain."""
    truth = truth.double()
    best = _gain(truth.sort(descending=True).values)
    _, group, sizes = yes.sort(descending=True).values.unique_consecutive(return_inverse=True, return_counts=True)
    ordered = truth[yes.argsort(descending=True, stable=True)]
    mean = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, group, ordered) / sizes
    return _gain(mean[group]) / best if best > 0 else 0.0


def _gain(truth: Tensor) -> float:
    ranks = torch.arange(1, min(DEPTH, len(truth)) + 1, dtype=torch.float64)
    return float((truth[:DEPTH] / (ranks + 1).log2()).sum())


def labelling(
    yes: Float[Tensor, "sample label"], said: Bool[Tensor, "sample label"], truth: Bool[Tensor, "sample label"]
) -> dict[str, float | None]:
    """How well labels are found."""
    hits, errors = (said & truth).double().sum(dim=0), (said ^ truth).double().sum(dim=0)
    each = 2 * hits / (2 * hits + errors).clamp_min(1)
    whole = 2 * hits.sum() / (2 * hits.sum() + errors.sum()).clamp_min(1)
    precisions = [aupr(p[~t], p[t]) for p, t in zip(yes.T, truth.T, strict=True)]
    occurring = [value for value, t in zip(precisions, truth.T, strict=True) if value is not None or bool(t.any())]
    return {
        "micro_f1": float(whole),
        "macro_f1": float(each.mean()),
        "map": mean_of([1.0 if value is None else value for value in occurring]),
        "exact_match": float((said == truth).all(dim=1).double().mean()),
    }


def mean_of(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
