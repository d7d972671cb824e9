"""An order from one backward pass, against an obvious version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_circuits import problem_of, slow_attribution

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.criteria.circuits.attribution import Attribution, first_order
from hydrasurgeon.criteria.circuits.objective import measure, outcomes_of
from hydrasurgeon.criteria.circuits.search import extract
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.heads import Head

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.fixture
def data(images: SPEC) -> tuple[str, str]:
    return images(rows=20), images("ood.npz", rows=15, seed=5, labels=False)


def test_effects_are_slopes(tiny: MAKE, data: tuple[str, str]) -> None:
    """Against finite differences in float64."""
    problem = problem_of(tiny(), *data, dtype=torch.float64)
    answers, changes = first_order(problem)
    step, present = 1e-5, outcomes_of(problem, ())
    for head in (Head("vision", 2, 3), Head("vision", 1, 2)):
        moved = []
        for by in (step, -step):
            factors = {
                (s.tower, s.layer): torch.tensor(
                    [1 + by * (head == (s.tower, s.layer, h)) for h in s.heads], dtype=torch.float64
                )
                for s in problem.sites
            }
            with masked(problem.sites, factors):
                moved.append(outcomes_of(problem, ()))
        row = problem.candidates.index(head)
        for name in ("margin", "familiar", "ood_certainty"):
            torch.testing.assert_close(
                getattr(answers, name), getattr(present, name)[0], rtol=0, atol=1e-12
            )
            slope = (getattr(moved[0], name) - getattr(moved[1], name))[0] / (2 * step)
            torch.testing.assert_close(
                getattr(changes, name)[row].double(), -slope, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize(
    "objective", ["avg", *(pytest.param(o, marks=pytest.mark.slow) for o in ("acc", "ood"))]
)
def test_attribution_is_greedy_over_predicted_answers(
    tiny: MAKE, data: tuple[str, str], objective: Any
) -> None:
    path = tiny()
    expected = slow_attribution(path, *data, objective, 8)
    problem = problem_of(path, *data, objective)
    circuit = extract(problem, Attribution(problem), budget=8)
    assert list(circuit.order) == expected
    assert circuit.start == problem.objective.value(measure(problem, ()))
    for at, value in enumerate(circuit.trace, 1):
        assert value == problem.objective.value(measure(problem, expected[:at]))


def test_heads_that_samples_do_not_run_through(tiny: MAKE, data: tuple[str, str]) -> None:
    problem = problem_of(tiny(), *data)
    other = replace(problem, candidates=(*problem.candidates, Head("text", 0, 0)))
    with pytest.raises(
        SurgeryError, match=r"--search attribution: no data runs through tower text"
    ) as caught:
        Attribution(other)
    assert "--tower vision" in str(caught.value.hint)
