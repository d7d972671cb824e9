"""What a model's confidence is worth for telling its right answers from its wrong ones: risk over coverage; in float64.

With samples by falling confidence, r(k/n) is the share of wrong answers among the first k. Samples of equal confidence
come in no order: each counts as wrong by their mean.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hydrasurgeon.measuring.metrics import auroc

Confidence = Float[Tensor, " sample"]
Correct = Bool[Tensor, " sample"]


def _wrong_so_far(confidence: Confidence, correct: Correct) -> tuple[Tensor, Tensor]:
    """Wrong answers among the first k, for each k, and whether a group of equal confidence ends there."""
    ordered, order = confidence.double().sort(descending=True, stable=True)
    wrong = (~correct[order]).double()
    _, group, sizes = ordered.unique_consecutive(return_inverse=True, return_counts=True)
    mean = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, group, wrong) / sizes
    ends = torch.zeros(len(ordered), dtype=torch.bool)
    ends[sizes.cumsum(0) - 1] = True
    return mean[group].cumsum(0), ends


def risks(confidence: Confidence, correct: Correct) -> Float[Tensor, " sample"]:
    """r(k/n) for each k."""
    wrong, _ = _wrong_so_far(confidence, correct)
    return wrong / torch.arange(1, len(wrong) + 1)


def _area(values: Tensor) -> float | None:
    """The mean height between coverage 1/n and 1, by trapezoids; None for fewer than two samples."""
    if len(values) < 2:
        return None
    return float((values[1:] + values[:-1]).sum() / 2 / (len(values) - 1))


def aurc(confidence: Confidence, correct: Correct) -> float | None:
    """Area under r(c) over coverage c (Geifman, Uziel, El-Yaniv, ICLR 2019)."""
    return _area(risks(confidence, correct))


def augrc(confidence: Confidence, correct: Correct) -> float | None:
    """Area under c · r(c): an average over all samples, not over those answered (Traub et al., NeurIPS 2024)."""
    wrong, _ = _wrong_so_far(confidence, correct)
    return _area(wrong / len(wrong))


def coverage_at_risk(confidence: Confidence, correct: Correct, risk: float = 0.05) -> float:
    """The largest share that can be answered with at most `risk` of the answers wrong; 0 where none can."""
    wrong, ends = _wrong_so_far(confidence, correct)
    kept = ((wrong / torch.arange(1, len(wrong) + 1) <= risk + 1e-12) & ends).nonzero()
    return float((kept[-1] + 1) / len(wrong)) if len(kept) else 0.0


def misclassification_auroc(confidence: Confidence, correct: Correct) -> float | None:
    """P(a right answer is more confident than a wrong one), ties counting half; None where all are right or all
    wrong."""
    return auroc(-confidence[correct].double(), -confidence[~correct].double())


def set_coverage(sets: Bool[Tensor, "sample klass"], labels: Tensor) -> float:
    """The share of prediction sets that hold the true label."""
    return float(sets.gather(1, labels[:, None]).double().mean())


def set_size(sets: Bool[Tensor, "sample klass"]) -> float:
    """Labels in a set, on average."""
    return float(sets.sum(dim=-1).double().mean())
