"""Risk over coverage, SmoothECE and bootstrap intervals, against torch-uncertainty, relplot and values by hand."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from numpy import ndarray
from references import relplot
from references import torch_uncertainty as tu
from sklearn.metrics import roc_auc_score

from hydrasurgeon.decision.state import State
from hydrasurgeon.measuring import measure as module
from hydrasurgeon.measuring.results import IdResult
from hydrasurgeon.statistics import bootstrap as bootstrapping
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.bootstrap import Selective, bootstrap
from hydrasurgeon.statistics.metrics import smooth_ece
from hydrasurgeon.statistics.probabilities import softmax
from hydrasurgeon.tasks import single_label
from hydrasurgeon.tasks.base import Outputs

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def equal_bins(confidence: np.ndarray, correct: np.ndarray) -> float:
    """The ECE over 15 bins that hold equally many samples, by rising confidence."""
    gaps = (correct.astype(np.float64) - confidence.astype(np.float64))[confidence.argsort()]
    return float(sum(np.abs(part.sum()) for part in np.array_split(gaps, 15)) / len(gaps))


def answers(count: int, seed: int = 0, honest: bool = True) -> tuple[ndarray, ndarray]:
    random = torch.Generator().manual_seed(seed)
    sure = 0.3 + 0.7 * torch.rand(count, generator=random, dtype=torch.float64).numpy()
    chance = sure if honest else sure**3
    return sure, torch.rand(count, generator=random, dtype=torch.float64).numpy() < chance


def as_probs(sure: ndarray, right: ndarray) -> tuple[ndarray, ndarray]:
    """Three classes, of which the first is predicted."""
    rest = (1 - sure) / 2
    return np.stack([sure, rest, rest], axis=1), (~right).astype(np.int64)


def measured(
    sure: ndarray, right: ndarray, rows: ndarray | None = None
) -> list[dict[str, float | None]]:
    """Of each resample; of all answers, without any."""
    promised = torch.rand(len(sure), generator=torch.Generator().manual_seed(7)).numpy()
    values = Selective(sure, right, promised, right.astype(np.float64)).metrics(
        np.arange(len(sure))[None] if rows is None else rows
    )
    each = zip(*values.values(), strict=True)
    return [
        {name: None if np.isnan(v) else float(v) for name, v in zip(values, row, strict=True)}
        for row in each
    ]


@pytest.mark.parametrize("count", [2, 30, 500])
def test_areas_are_torch_uncertaintys(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sure, right = answers(count)
    sure = 0.5 + sure / 2
    p, y = as_probs(sure, right)
    for name, theirs in (("aurc", tu.AURC()), ("augrc", tu.AUGRC())):
        theirs.update(torch.from_numpy(p), torch.from_numpy(y))
        assert measured(sure, right)[0][name] == pytest.approx(float(theirs.compute()), abs=1e-6)
    for risk in (0.05, 0.2, 0.9):
        monkeypatch.setattr(bootstrapping, "RISK", risk)
        reference = tu.CovAtxRisk(risk)
        reference.update(torch.from_numpy(p), torch.from_numpy(y))
        expected = float(reference.compute())
        expected = 0.0 if math.isnan(expected) else expected
        assert measured(sure, right)[0]["cov5"] == pytest.approx(expected, abs=1e-6)


def test_ties_count_by_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    sure = np.array([0.9, 0.5, 0.5, 0.5, 0.2], dtype=np.float64)
    found = set()
    for order in itertools.permutations(range(5)):
        right = np.array([True, False, True, True, False])[list(order)]
        shuffled = sure[list(order)]
        (each,) = measured(shuffled, right)
        found.add((round(each["aurc"] or 0, 12), round(each["augrc"] or 0, 12)))
    # wrong so far: 0, 1/3, 2/3, 1, 2
    risk_of_first = [0, 1 / 6, 2 / 9, 1 / 4, 2 / 5]
    aurc = sum((a + b) / 2 for a, b in itertools.pairwise(risk_of_first)) / 4
    wrong = [0, 1 / 15, 2 / 15, 1 / 5, 2 / 5]
    augrc = sum((a + b) / 2 for a, b in itertools.pairwise(wrong)) / 4
    assert found == {(round(aurc, 12), round(augrc, 12))}
    right = np.array([True, False, True, True, False])
    # Nobody can answer a part of a tie: at risk 0.2 the first alone, at 0.25 the first four.
    for risk, share in ((0.2, 0.2), (0.25, 0.8)):
        monkeypatch.setattr(bootstrapping, "RISK", risk)
        assert measured(sure, right)[0]["cov5"] == pytest.approx(share)
    assert metrics.risks(sure, right).tolist() == pytest.approx(risk_of_first)


def test_one_sample_has_no_area() -> None:
    for right in (True, False):
        (found,) = measured(np.array([0.5]), np.array([right]))
        assert (found["aurc"], found["augrc"], found["cov5"]) == (None, None, float(right))


def test_misclassification_auroc_is_scikit_learns() -> None:
    sure, right = answers(300)
    assert measured(sure, right)[0]["mis_auroc"] == pytest.approx(
        roc_auc_score(right, sure), abs=1e-12
    )
    assert measured(sure, np.ones(300, dtype=bool))[0]["mis_auroc"] is None


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("count", [1, 20, 1000])
def test_smooth_ece_is_its_authors(count: int, honest: bool) -> None:
    sure, right = answers(count, honest=honest)
    expected = relplot.smECE(sure, right.astype(np.float64))
    assert smooth_ece(sure, right) == pytest.approx(expected, abs=1e-9)


def test_smooth_ece_at_the_ends() -> None:
    ends = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    for right in ([False, True, True, False, True], [True, False, False, True, False]):
        expected = relplot.smECE(ends.astype(np.float64), np.array(right).astype(np.float64))
        assert smooth_ece(ends, np.array(right)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_resamples_are_counted_as_if_measured_one_by_one(share: float) -> None:
    random = torch.Generator().manual_seed(0)
    sure = (torch.rand(60, generator=random).numpy() * 20).round() / 20  # many are equally sure
    right, rows = (
        torch.rand(60, generator=random).numpy() < share,
        torch.randint(60, (9, 60), generator=random).numpy(),
    )
    promised = torch.rand(60, generator=torch.Generator().manual_seed(7)).numpy()
    for each, found in zip(rows, measured(sure, right, rows), strict=True):
        (alone,) = measured(sure[each], right[each])
        expected = alone | {"aece": equal_bins(promised[each], right[each])}
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_intervals_that_are_given_hold_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many draws of a calibrated model; ECE has no interval, which would never hold its truth."""
    monkeypatch.setattr(module, "bootstrap", partial(bootstrap, repeats=120))

    def drawn(count: int, seed: int, ci: float | None) -> IdResult:
        random = torch.Generator().manual_seed(seed)
        logits = 3 * torch.randn(count, 1, 5, generator=random, dtype=torch.float64).numpy()
        labels = torch.multinomial(torch.from_numpy(softmax(logits[:, 0])), 1, generator=random)[
            :, 0
        ].numpy()
        inside = module.judged(Outputs(logits, None, labels), State.unfitted())
        return IdResult(**module.measure(inside, ci=ci))

    truth = drawn(200_000, 10**6, None)
    given = ("accuracy", "brier", "nll", "aurc", "augrc", "mis_auroc", "cov5")
    held = dict.fromkeys(given, 0)
    for seed in range(60):
        result = drawn(1200, seed, 0.9)
        assert result.ci is not None
        assert set(result.ci) == set(given)
        for name, (low, high) in result.ci.items():
            held[name] += low <= getattr(truth, name) <= high
    assert all(count >= 47 for count in held.values()), held
    few = drawn(100, 0, 0.9)
    assert few.cov5 is not None
    assert few.cov5 * 100 < single_label.FEWEST_SURE
    assert few.ci is not None
    assert "cov5" not in few.ci
