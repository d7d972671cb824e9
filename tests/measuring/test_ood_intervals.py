"""Intervals of OOD detection: rows that are drawn are measured as `metrics` measures them, and the report holds what
that comes to."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from hydrasurgeon.decision.state import State
from hydrasurgeon.measuring.measure import answered, row_of
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.measuring.results import Result
from hydrasurgeon.statistics.bootstrap import Ranked, bootstrap
from hydrasurgeon.tasks.base import Outputs

NAMES = ("auroc", "fpr95", "aupr", "aupr_id")


def predictions(rows: int = 200) -> Predictions:
    generator = torch.Generator().manual_seed(0)
    labels = np.arange(rows) % 4
    logits = torch.randn(rows, 2, 4, generator=generator).numpy()
    logits[np.arange(rows), :, labels] += 2
    outside = torch.randn(120, 2, 4, generator=generator).numpy()
    sets = {"a": outside, "b": 0.5 * outside[:70], "c": outside[:60]}
    ood = {name: Outputs(each, None) for name, each in sets.items()}
    return Predictions("m", "hydra", Outputs(logits, None, labels), ood, ["a"])


def anew(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """These samples alone, each once."""
    every = (np.arange(len(each))[None] for each in (inside, outside))
    return {name: value.item() for name, value in Ranked(inside, outside).metrics(*every).items()}


def test_intervals_are_those_of_resamples_that_are_measured_one_by_one() -> None:
    row = answered(predictions(), State.unfitted())
    inside, outside = row.scores["msp"], [each["msp"] for each in row.ood_scores.values()]

    def slow(*drawn: np.ndarray) -> dict[str, np.ndarray]:
        each = [one(*rows) for rows in zip(*drawn, strict=True)]
        return {
            name: np.array([values[name] for values in each], dtype=np.float64) for name in each[0]
        }

    def one(rows: np.ndarray, *chosen: np.ndarray) -> dict[str, float]:
        sets = [anew(inside[rows], o[c]) for o, c in zip(outside, chosen, strict=True)]
        values = {f"{at} {name}": each[name] for at, each in enumerate(sets) for name in NAMES}
        return values | {f"far {name}": (sets[1][name] + sets[2][name]) / 2 for name in NAMES}

    expected = bootstrap(slow, len(inside), *map(len, outside), level=0.9, seed=3)
    result = row_of(predictions(), State.unfitted(), ci=0.9, seed=3).result
    of_sets = [each.ci for each in result.ood]
    of_groups = {name: each.ci for name, each in result.ood_average.items()}
    assert [*of_groups] == ["near", "far", "all"]
    assert of_groups["near"] == of_sets[0]
    for name in NAMES:
        for at, each in enumerate(of_sets):
            assert each[name] == pytest.approx(expected[f"{at} {name}"], abs=1e-9)
        assert of_groups["far"][name] == pytest.approx(expected[f"far {name}"], abs=1e-9)


@functools.cache
def measured(ci: float | None) -> Result:
    return row_of(predictions(), State.unfitted(), ci=ci).result


def test_the_report_holds_them_where_they_were_asked_for() -> None:
    plain = measured(None).model_dump()
    assert not any("ci" in each for each in (*plain["ood"], *plain["ood_average"].values()))
    values = measured(0.9).model_dump()
    assert [set(each["ci"]) for each in values["ood"]] == [set(NAMES)] * 3
    for each in (*values["ood"], *values["ood_average"].values()):
        low, high = each["ci"]["fpr95"]
        assert low < each["fpr95"] < high
        assert math.isfinite(high - low)
    assert Result.model_validate_json(measured(0.9).model_dump_json()) == measured(0.9)
