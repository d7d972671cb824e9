"""What stays of each sample makes the metrics that whole logits make, and the curves that are drawn of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fitted_states import fitted

from hydrasurgeon.decision.state import State
from hydrasurgeon.files.decided import Conformal
from hydrasurgeon.measuring import measure as module
from hydrasurgeon.measuring.measure import judged, measure
from hydrasurgeon.report import charts
from hydrasurgeon.statistics import metrics, probabilities
from hydrasurgeon.statistics.conformal import prediction_sets
from hydrasurgeon.tasks.base import Outputs


def logits(rows: int = 257, members: int = 3, classes: int = 5) -> np.ndarray:
    return (
        2 * torch.randn(rows, members, classes, generator=torch.Generator().manual_seed(1)).numpy()
    )


@pytest.mark.parametrize("elements", [1, 100, 1 << 20])
def test_pieces_of_any_size_make_the_metrics_of_the_whole(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, labels = logits(), np.arange(257) % 5
    conformal = Conformal(method="lac", coverage=0.9, threshold=0.8)
    outputs, state = Outputs(z, None, labels), fitted(temperature=1.7, conformal=conformal)
    probs = probabilities.mean_probs(z, 1.7)
    whole = measure(judged(outputs, state))
    monkeypatch.setattr(module, "ELEMENTS", elements)
    measured = measure(judged(outputs, state))
    for name in ("accuracy", "brier", "nll", "ece", "aece"):
        assert measured[name] == pytest.approx(whole[name], abs=1e-14)
    assert measured["nll"] == pytest.approx(probabilities.nll(probs, labels), abs=1e-14)
    sets = prediction_sets(conformal, probs)
    assert measured["coverage"] == float(
        np.take_along_axis(sets, labels[:, None], 1).astype(np.float64).mean()
    )
    assert measured["set_size"] == float(sets.sum(axis=-1).astype(np.float64).mean())
    confidence, predicted = probs.max(axis=-1), probs.argmax(axis=-1)
    area = float(np.trapezoid(metrics.risks(confidence, predicted == labels))) / 256
    assert measured["aurc"] == pytest.approx(area)


def test_a_reliability_curve_holds_the_calibration_error() -> None:
    z, labels = logits(), np.arange(257) % 5
    inside = judged(Outputs(z, None, labels), State.unfitted())
    bins = charts.bins_of_confidence(inside.confidence, inside.correct)
    assert sum(count for *_, count in bins) == 257
    error = sum(count * abs(right - sure) for sure, right, count in bins) / 257
    assert error == pytest.approx(metrics.ece_of(inside.confidence, inside.correct))


def test_a_risk_curve_ends_at_the_error() -> None:
    inside = judged(Outputs(logits(), None, np.arange(257) % 5), State.unfitted())
    points = charts.risk_curve(inside.confidence, inside.correct)
    assert len(points) <= charts.POINTS
    assert points[-1] == (1.0, pytest.approx(1 - float(inside.correct.astype(np.float64).mean())))
