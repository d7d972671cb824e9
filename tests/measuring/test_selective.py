"""Risk over coverage, SmoothECE and bootstrap intervals, against torch-uncertainty, relplot and values by hand."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from hydrasurgeon.measuring import metrics
from hydrasurgeon.measuring.bootstrap import bootstrap
from hydrasurgeon.measuring.metrics import smooth_ece

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import relplot
    import torch_uncertainty.metrics as tu

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def answers(count: int, seed: int = 0, honest: bool = True) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    sure = 0.3 + 0.7 * torch.rand(count, generator=random, dtype=torch.float64)
    chance = sure if honest else sure**3
    return sure, torch.rand(count, generator=random, dtype=torch.float64) < chance


def as_probs(sure: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Three classes, of which the first is predicted."""
    rest = (1 - sure) / 2
    return torch.stack([sure, rest, rest], dim=1), (~right).long()


@pytest.mark.parametrize("count", [2, 30, 500])
def test_areas_are_torch_uncertaintys(count: int) -> None:
    sure, right = answers(count)
    sure = 0.5 + sure / 2
    p, y = as_probs(sure, right)
    for ours, theirs in ((metrics.aurc, tu.AURC()), (metrics.augrc, tu.AUGRC())):
        theirs.update(p, y)
        assert ours(sure, right) == pytest.approx(float(theirs.compute()), abs=1e-6)
    for risk in (0.05, 0.2, 0.9):
        reference = tu.CovAtxRisk(risk)
        reference.update(p, y)
        expected = float(reference.compute())
        expected = 0.0 if math.isnan(expected) else expected
        assert metrics.coverage_at_risk(sure, right, risk) == pytest.approx(expected, abs=1e-6)


def test_ties_count_by_their_mean() -> None:
    sure = torch.tensor([0.9, 0.5, 0.5, 0.5, 0.2], dtype=torch.float64)
    found = set()
    for order in itertools.permutations(range(5)):
        right = torch.tensor([True, False, True, True, False])[list(order)]
        shuffled = sure[list(order)]
        found.add((round(metrics.aurc(shuffled, right) or 0, 12), round(metrics.augrc(shuffled, right) or 0, 12)))
    # wrong so far: 0, 1/3, 2/3, 1, 2
    risk = [0, 1 / 6, 2 / 9, 1 / 4, 2 / 5]
    aurc = sum((a + b) / 2 for a, b in itertools.pairwise(risk)) / 4
    wrong = [0, 1 / 15, 2 / 15, 1 / 5, 2 / 5]
    augrc = sum((a + b) / 2 for a, b in itertools.pairwise(wrong)) / 4
    assert found == {(round(aurc, 12), round(augrc, 12))}
    right = torch.tensor([True, False, True, True, False])
    # Nobody can answer a part of a tie: at risk 0.2 the first alone, at 0.25 the first four.
    assert metrics.coverage_at_risk(sure, right, 0.2) == pytest.approx(0.2)
    assert metrics.coverage_at_risk(sure, right, 0.25) == pytest.approx(0.8)


def test_one_sample_has_no_area() -> None:
    one = torch.tensor([0.5]), torch.tensor([True])
    assert metrics.aurc(*one) is None
    assert metrics.augrc(*one) is None
    assert metrics.coverage_at_risk(*one) == 1.0
    assert metrics.coverage_at_risk(torch.tensor([0.5]), torch.tensor([False])) == 0.0


def test_misclassification_auroc_is_scikit_learns() -> None:
    sure, right = answers(300)
    expected = roc_auc_score(right, sure)
    assert metrics.misclassification_auroc(sure, right) == pytest.approx(expected, abs=1e-12)
    assert metrics.misclassification_auroc(sure, torch.ones(300, dtype=torch.bool)) is None


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("count", [1, 20, 1000])
def test_smooth_ece_is_its_authors(count: int, honest: bool) -> None:
    sure, right = answers(count, honest=honest)
    expected = relplot.smECE(sure.numpy(), right.double().numpy())
    assert smooth_ece(sure, right) == pytest.approx(expected, abs=1e-9)


def test_smooth_ece_at_the_ends() -> None:
    ends = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    for right in ([False, True, True, False, True], [True, False, False, True, False]):
        expected = relplot.smECE(ends.double().numpy(), torch.tensor(right).double().numpy())
        assert smooth_ece(ends, torch.tensor(right)) == pytest.approx(expected, abs=1e-9)


def test_bootstrap_intervals_are_those_of_a_mean() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def measure(rows: Tensor) -> dict[str, Tensor]:
        never = torch.full((len(rows),), math.nan)
        return {"mean": values[rows].mean(dim=1), "never": never, "sometimes": never.where(rows[:, 0] % 2 == 1, 1.0)}

    found = bootstrap(measure, 400, level=0.9)
    half = 1.6449 * float(values.std()) / 20
    low, high = found["mean"]
    assert low == pytest.approx(float(values.mean()) - half, abs=0.15 * half)
    assert high == pytest.approx(float(values.mean()) + half, abs=0.15 * half)
    assert "never" not in found
    assert found["sometimes"] == (1.0, 1.0)
    assert bootstrap(measure, 400, level=0.9) == found
    assert bootstrap(measure, 400, level=0.9, seed=1) != found
