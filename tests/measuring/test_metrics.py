"""Metrics against scikit-learn, torchmetrics and torch-uncertainty, and against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy import ndarray
from references import torch_uncertainty as tu
from references import torchmetrics
from sklearn.metrics import average_precision_score, roc_auc_score

from hydrasurgeon.decision.state import State
from hydrasurgeon.measuring.measure import judged, measure
from hydrasurgeon.measuring.results import IdResult
from hydrasurgeon.statistics import metrics, probabilities
from hydrasurgeon.statistics.bootstrap import Ranked
from hydrasurgeon.statistics.probabilities import TINY
from hydrasurgeon.statistics.scores.on_logits import score_of
from hydrasurgeon.tasks.base import Outputs

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

CLOSE = 1e-6


def logits(
    samples: int = 300, members: int = 3, klasses: int = 5, seed: int = 0, scale: float = 2.0
) -> ndarray:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(samples, members, klasses, generator=generator).numpy()


def labels(samples: int = 300, klasses: int = 5, seed: int = 1) -> ndarray:
    return torch.randint(klasses, (samples,), generator=torch.Generator().manual_seed(seed)).numpy()


CASES = {
    "plain": (logits(), labels()),
    "one class missing": (logits(), labels(klasses=4)),
    "one sample": (logits(1), labels(1)),
    "all wrong": (logits(), (probabilities.mean_probs(logits()).argmax(-1) + 1) % 5),
    "all right": (logits(scale=6), probabilities.mean_probs(logits(scale=6)).argmax(-1)),
    "ties": (logits().round(), labels()),
    "one member": (logits(members=1), labels()),
}


EDGES = (np.linspace(0, 1, 16)[3:]).astype(np.float64)
CONFIDENT = {
    "on the edges of bins": np.stack([EDGES, *[(1 - EDGES) / 4] * 4], axis=1),
    "certain": probabilities.mean_probs(logits(scale=1e4)),
    "nearly certain": probabilities.mean_probs(logits(members=1, scale=12)),
}


@pytest.mark.parametrize("case", CONFIDENT)
def test_a_confidence_on_the_edge_of_a_bin(case: str) -> None:
    p = CONFIDENT[case]
    y = labels(len(p))
    reference = tu.CalibrationError(task="multiclass", num_classes=5, num_bins=15, norm="l1")
    assert metrics.ece(p, y) == pytest.approx(float(_tu(reference, p, y)), abs=CLOSE)
    again = torchmetrics.multiclass_calibration_error(
        tensor(p), tensor(y), num_classes=5, n_bins=15, norm="l1"
    )
    assert metrics.ece(p, y) == pytest.approx(float(again), abs=CLOSE)


def summary(logits: ndarray, labels: ndarray) -> IdResult:
    return IdResult(**measure(judged(Outputs(logits, None, labels), State.unfitted())))


@pytest.mark.parametrize("case", CASES, ids=list(CASES))
def test_calibration_agrees_with_the_references(case: str) -> None:
    z, y = CASES[case]
    p = probabilities.mean_probs(z)
    found = summary(z, y)
    assert found.accuracy == pytest.approx(
        float(
            torchmetrics.multiclass_accuracy(tensor(p), tensor(y), num_classes=5, average="micro")
        ),
        abs=CLOSE,
    )
    assert found.brier == pytest.approx(float(_tu(tu.BrierScore(num_classes=5), p, y)), abs=CLOSE)
    assert found.nll == pytest.approx(float(_tu(tu.CategoricalNLL(), p, y)), abs=CLOSE)
    assert found.ece == pytest.approx(
        float(
            torchmetrics.multiclass_calibration_error(
                tensor(p), tensor(y), num_classes=5, n_bins=15, norm="l1"
            )
        ),
        abs=CLOSE,
    )
    if len(y) >= 15:  # torch-uncertainty divides by the size of empty bins
        reference = tu.AdaptiveCalibrationError(
            task="multiclass", num_classes=5, num_bins=15, norm="l1"
        )
        assert found.aece == pytest.approx(float(_tu(reference, p, y)), abs=CLOSE)


tensor = torch.from_numpy


def _tu(metric: object, p: ndarray, y: ndarray) -> torch.Tensor:
    metric.update(tensor(p), tensor(y))  # type: ignore[attr-defined]
    return metric.compute()  # type: ignore[attr-defined]


def _scores(kind: str) -> tuple[ndarray, ndarray]:
    generator = torch.Generator().manual_seed(3)
    inside = torch.randn(400, generator=generator, dtype=torch.float64).numpy()
    outside = 1 + torch.randn(250, generator=generator, dtype=torch.float64).numpy()
    if kind == "ties":
        return inside.round(), outside.round()
    if kind == "one each":
        return inside[:1], outside[:1]
    if kind == "all equal":
        return np.zeros(7, dtype=np.float64), np.zeros(5, dtype=np.float64)
    return inside, outside


@pytest.mark.parametrize("kind", ["plain", "ties", "one each", "all equal"])
def test_ood_agrees_with_the_references(kind: str) -> None:
    inside, outside = _scores(kind)
    every = (np.arange(len(each))[None] for each in (inside, outside))
    found = {name: value.item() for name, value in Ranked(inside, outside).metrics(*every).items()}
    truth = np.concatenate([np.zeros(len(inside)), np.ones(len(outside))]).astype(np.int64)
    scores = np.concatenate([inside, outside])
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, scores), abs=CLOSE)
    assert found["aupr"] == pytest.approx(average_precision_score(truth, scores), abs=CLOSE)
    assert found["aupr_id"] == pytest.approx(average_precision_score(1 - truth, -scores), abs=CLOSE)
    ranks = np.unique(scores, return_inverse=True)[1].astype(np.float64)
    within = ranks / max(1.0, float(ranks.max()))  # torchmetrics squashes what lies outside [0, 1]
    assert found["auroc"] == pytest.approx(
        float(torchmetrics.binary_auroc(tensor(within), tensor(truth))), abs=CLOSE
    )
    assert found["fpr95"] == pytest.approx(
        float(_tu(tu.FPR95(pos_label=1), scores, truth)), abs=CLOSE
    )


def test_diversity_agrees_with_torch_uncertainty() -> None:
    z = logits()
    p = probabilities.member_probs(z)
    mi = tu.MutualInformation()
    mi.update(tensor(p))
    assert float(score_of("mi", z).mean()) == pytest.approx(float(mi.compute()), abs=CLOSE)
    di = tu.Disagreement()
    di.update(tensor(p))
    assert metrics.disagreements(z).mean() == pytest.approx(float(di.compute()), abs=CLOSE)


def test_by_hand() -> None:
    p = np.array([[0.8, 0.2], [0.4, 0.6]], dtype=np.float64)
    y = np.array([0, 0])
    assert metrics.accuracy(p, y) == 0.5
    assert summary(np.log(p)[:, None], y).brier == pytest.approx((0.08 + 0.72) / 2)
    assert probabilities.nll(p, y) == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2)
    assert metrics.ece(p, y) == pytest.approx((0.2 + 0.6) / 2)
    inside, outside = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.25, 0.5])
    assert metrics.auroc(inside, outside) == 6 / 8
    assert metrics.auroc(inside, inside[:0]) is None


def test_a_certain_mistake_has_a_finite_nll() -> None:
    z = np.array([[[0.0, 1e5]]])
    assert summary(z, np.array([0])).nll == pytest.approx(-math.log(TINY))
