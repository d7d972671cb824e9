"""What is decided of many labels: each has a temperature and a threshold of its own, and sets miss
few.

    p_l = σ(ℓ_l / T_l),   ℓ_l the log-odds of the members' mean probability of label l

A label is answered from the threshold on that gives it the best F1. The set of a sample is every
label of at least λ, the largest with  n/(n+1) R(λ) + 1/(n+1) ≤ 1 − coverage,  R the mean fraction
of a sample's labels that is missed, over the n samples that have a label: of such samples so much is
missed on average at most (conformal risk control, Angelopoulos et al., ICLR 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import Conformal, PerLabel
from hydrasurgeon.statistics.probabilities import TINY, entropy, member_probs
from hydrasurgeon.statistics.temperature import temperature_of

Choices = Float[Tensor, "sample member label 2"]
Chances = Float[Tensor, "sample label"]


def probs_of(choices: Choices, temperatures: Sequence[float] | None = None) -> Chances:
    """The probability of each label, temperature after averaging."""
    mean = member_probs(choices).mean(dim=1)
    if temperatures is None:
        return mean[..., 1]
    return (mean.clamp_min(TINY).log() / _column(temperatures)).softmax(dim=-1)[..., 1]


def doubts_of(
    choices: Choices, temperatures: Sequence[float] | None = None
) -> tuple[Tensor, Tensor]:
    """Σ over labels of H(mean q_m) and of mean H(q_m), each member at the temperature of the
    average.
    """
    each = (choices.double() / (1.0 if temperatures is None else _column(temperatures))).softmax(
        dim=-1
    )
    return entropy(each.mean(dim=1)).sum(dim=-1), entropy(each).mean(dim=1).sum(dim=-1)


def _column(temperatures: Sequence[float]) -> Tensor:
    return torch.tensor(temperatures, dtype=torch.float64)[:, None]


def fit_labels(choices: Choices, truth: Bool[Tensor, "sample label"]) -> PerLabel:
    """Each label's temperature, by the NLL, and threshold, by F1; a label without both a yes and a
    no keeps 1 and ½.
    """
    temperatures, thresholds = [], []
    for label in range(truth.shape[1]):
        some, holds = choices[:, :, label], truth[:, label]
        varies = bool(holds.any()) and not bool(holds.all())
        temperatures.append(temperature_of(some, holds.long()) if varies else 1.0)
        chances = probs_of(choices[:, :, label : label + 1], temperatures[-1:])[:, 0]
        thresholds.append(best_threshold(chances, holds) if varies else 0.5)
    return PerLabel(temperatures=tuple(temperatures), thresholds=tuple(thresholds))


def best_threshold(chances: Float[Tensor, " sample"], holds: Bool[Tensor, " sample"]) -> float:
    """From which probability on a yes makes the highest F1: halfway to the next lower one, the
    highest of equals.
    """
    ordered, order = chances.sort(descending=True, stable=True)
    hits = holds[order].double().cumsum(0)
    scores = 2 * hits / (torch.arange(1, len(hits) + 1) + holds.sum())
    last = torch.cat(
        [ordered[1:] != ordered[:-1], torch.tensor([True])]
    )  # equals are answered together
    at = int(torch.where(last, scores, -1.0).argmax())
    below = float(ordered[at + 1]) if at + 1 < len(ordered) else 0.0
    return (float(ordered[at]) + below) / 2


def fit_sets(chances: Chances, truth: Bool[Tensor, "sample label"], coverage: float) -> Conformal:
    """The largest λ that misses few enough, as 1 − λ: which labels a set holds then is LAC's rule."""
    # A sample without labels has none to miss, and would pass for one that is answered well.
    labelled = truth.any(dim=1)
    chances, truth = chances[labelled], truth[labelled]
    count, missed = len(truth), 1 - coverage
    if 1 / (count + 1) > missed:
        what = (
            f"{count} samples with a label cannot promise that at most {missed:g} of the labels "
            "are missed"
        )
        raise DataError(
            what, hint="Give more --data (half of it certifies), or a smaller --coverage."
        )
    # What a sample's labels lose as λ passes each of their probabilities.
    weights = truth.double() / truth.sum(dim=1, keepdim=True)
    values, order = chances[truth].double().sort()
    lost = weights[truth][order].cumsum(0)
    fine = ((lost + 1) / (count + 1) <= missed + 1e-12).nonzero()
    following = int(fine[-1]) + 1 if len(fine) else 0
    # At the next one nothing of it is lost yet; a tie is lost as a whole.
    most = float(values[following]) if following < len(values) else 1.0
    return Conformal(method="lac", coverage=coverage, threshold=1 - most)
