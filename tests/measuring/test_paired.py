"""Differences between models: the fast way agrees with a slow one, and says equal where nothing differs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hydrasurgeon.decision.state import State
from hydrasurgeon.measuring.measure import Answered, answered
from hydrasurgeon.measuring.model_differences import compared, is_paired
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.bootstrap import Ranked
from hydrasurgeon.tasks.base import Outputs


def predictions(sharpness: float, *, noise: int = 0, rows: int = 300) -> Predictions:
    generator = torch.Generator().manual_seed(0)
    labels = np.arange(rows) % 4
    logits = torch.randn(rows, 2, 4, generator=generator).numpy()
    logits[np.arange(rows), :, labels] += sharpness
    outside = torch.randn(120, 2, 4, generator=generator).numpy()
    more = torch.Generator().manual_seed(noise)
    logits = logits + 0.3 * torch.randn(logits.shape, generator=more).numpy()
    sets = {"a": Outputs(outside, None), "b": Outputs(0.5 * outside[:70], None)}
    return Predictions(f"model {sharpness}", "hydra", Outputs(logits, None, labels), sets)


def row(sharpness: float, **options: int) -> Answered:
    return answered(predictions(sharpness, **options), State.unfitted())


def anew(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """These samples alone, each once."""
    every = (np.arange(len(each))[None] for each in (inside, outside))
    return {name: value.item() for name, value in Ranked(inside, outside).metrics(*every).items()}


def slow(a: Answered, b: Answered) -> dict[str, list[float]]:
    """Differences on the samples, then on each resample, with every metric computed anew."""
    generator = torch.Generator().manual_seed(5)
    inside, sizes = len(a.inside.labels), a.counts[1:]
    every = [np.arange(inside), *map(np.arange, sizes)]
    draws = [every] + [
        [torch.randint(n, (n,), generator=generator).numpy() for n in (inside, *sizes)]
        for _ in range(300)
    ]
    values: dict[str, list[float]] = {}
    for rows, *outside in draws:
        per = []
        for each in (a, b):
            i, score = each.inside, each.scores["msp"][rows]
            sets = [
                anew(score, s["msp"][chosen])
                for s, chosen in zip(each.ood_scores.values(), outside, strict=True)
            ]
            per.append(
                {
                    "accuracy": float(i.correct[rows].astype(np.float64).mean()),
                    "brier": float(i.brier[rows].mean()),
                    "nll": float(i.nll[rows].mean()),
                    "ece": metrics.ece_of(i.confidence[rows], i.correct[rows]),
                    "auroc": sum(each["auroc"] for each in sets) / len(sets),
                    "fpr95": sum(each["fpr95"] for each in sets) / len(sets),
                }
            )
        for name in per[0]:
            values.setdefault(name, []).append(per[0][name] - per[1][name])
    return values


def test_differences_and_intervals_agree_with_measuring_each_resample() -> None:
    a, b = row(2.0, noise=1), row(1.5, noise=2)
    expected = slow(a, b)
    differences = compared(a, b, level=0.9, seed=3)
    assert [d.metric for d in differences] == list(expected)
    for d in differences:
        point, *drawn = expected[d.metric]
        low, high = np.quantile(drawn, [0.05, 0.95])
        width = float(high - low)
        assert d.value == pytest.approx(point, abs=1e-12), d.metric
        assert d.low == pytest.approx(float(low), abs=0.16 * width), d.metric
        assert d.high == pytest.approx(float(high), abs=0.16 * width), d.metric


def test_a_model_is_equal_to_itself_and_sharper_is_better() -> None:
    base = row(1.0)
    for d in compared(base, base):
        assert (d.value, d.low, d.high, d.judgement) == (0, 0, 0, "equal")
    judged = {d.metric: d.judgement for d in compared(row(4.0), base)}
    assert judged["accuracy"] == judged["brier"] == judged["nll"] == judged["auroc"] == "better"
    back = {d.metric: d.judgement for d in compared(base, row(4.0))}
    assert back["accuracy"] == back["nll"] == back["auroc"] == "worse"


def test_other_samples_are_not_paired() -> None:
    a, b = row(2.0), row(2.0, rows=200)
    assert not is_paired(a, b)
    assert is_paired(a, row(1.0))
