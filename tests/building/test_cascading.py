"""build's cascades: who answers alone, what that costs, and that each half of the samples is judged by the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydrasurgeon.stages.build.cascading import cascaded
from hydrasurgeon.stages.build.choice import Answers, Choice, Estimate, Objective
from hydrasurgeon.stages.build.cost import Budget

COSTS = {(0,): 0.5, (1,): 0.75, (0, 1): 1.25}
"""Multiply-adds of two members that share nothing."""


def choosing(*answers: Answers, goal: str = "nll", calibrated: bool = True) -> Any:
    return SimpleNamespace(
        calibrated=calibrated,
        pool=SimpleNamespace(objective=Objective(goal)),
        search=SimpleNamespace(cost=lambda members, unit: COSTS[tuple(members)]),
        read=lambda members: [answers[i] for i in members],
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> tuple[Answers, Answers]:
    """Eight samples of two classes, all of class 0. The first member is right everywhere, of falling sureness in each
    half; the second is wrong everywhere, and equally unsure."""
    monkeypatch.setattr("hydrasurgeon.stages.build.cascading.at_its_temperature", lambda each: each)
    sure = torch.tensor([4.0, 3.0, 2.0, 1.0] * 2)
    first = torch.stack([sure, torch.zeros(8)], dim=1)
    second = torch.tensor([[0.0, 0.5]] * 8)
    labels = torch.zeros(8, dtype=torch.long)
    foreign = torch.tensor([[0.1, 0.0], [9.0, 0.0]])
    return Answers(first, labels, (foreign,)), Answers(second, labels, (foreign.flip(1),))


BOTH = Choice((0, 1), 0.0)
JUDGED = Estimate(0.0, 0.25, (BOTH, BOTH))


def test_the_surest_half_is_answered_by_the_first_alone(answers: tuple[Answers, Answers]) -> None:
    """(0.875 − 0.5) / (1.25 − 0.5) = 0.5: of four samples two go on."""
    made = cascaded(choosing(*answers), BOTH, JUDGED, Budget("macs", 0.875))
    assert made is not None
    alone, other = (each.val.softmax(dim=-1) for each in answers)
    expected = torch.where(
        torch.tensor([True, True, False, False] * 2)[:, None], alone, (alone + other) / 2
    )
    assert torch.allclose(made.answers.val.exp(), expected, atol=1e-7)
    assert made.macs == pytest.approx(0.5 + 0.5 * 0.75)
    assert made.judged.value == pytest.approx(float(expected[:, 0].log().mean()), abs=1e-6)
    assert made.judged.optimism == 0.25
    # Of the OOD samples the unsure one goes on.
    (outside,) = made.answers.foreign
    unsure, sure = (each.foreign[0].softmax(dim=-1) for each in answers)
    assert torch.allclose(
        outside.exp(), torch.stack([(unsure[0] + sure[0]) / 2, unsure[1]]), atol=1e-7
    )


def test_a_sample_of_many_labels_goes_on_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four samples of two labels the first member doubts one label of two samples: both labels go on."""
    monkeypatch.setattr("hydrasurgeon.stages.build.cascading.at_its_temperature", lambda each: each)
    # The half that judges is in another order than the half that fits.
    sure = torch.tensor(
        [
            [4.0, 3.5],
            [0.2, 5.0],
            [3.0, 3.0],
            [6.0, 1.0],
            [0.3, 5.0],
            [4.0, 3.5],
            [6.0, 1.0],
            [3.0, 3.0],
        ]
    )
    first = torch.stack([sure.flatten(), torch.zeros(16)], dim=1)
    second = torch.tensor([[0.0, 0.5]] * 16)
    members = [Answers(each, torch.zeros(16, dtype=torch.long), each=2) for each in (first, second)]
    made = cascaded(choosing(*members), BOTH, JUDGED, Budget("macs", 0.875))
    assert made is not None
    goes_on = [False, True, False, True, True, False, True, False]
    rows = []
    for sample, both in enumerate(goes_on):
        for label in (0, 1):
            alone, other = (each[2 * sample + label].softmax(dim=-1) for each in (first, second))
            rows.append((alone + other) / 2 if both else alone)
    assert torch.allclose(made.answers.val.exp(), torch.stack(rows), atol=1e-7)
    assert made.macs == pytest.approx(0.5 + 0.5 * 0.75)
    assert made.answers.each == 2


def test_halves_keep_the_labels_of_a_sample_together() -> None:
    """Three samples of two labels: one, and two."""
    rows = torch.arange(12.0).reshape(6, 2)
    one, two = Answers(rows, torch.arange(6), each=2).halves()
    assert (one.val.tolist(), two.val.tolist()) == (rows[:2].tolist(), rows[2:].tolist())
    assert (one.labels.tolist(), two.labels.tolist()) == ([0, 1], [2, 3, 4, 5])


@pytest.mark.parametrize(
    ("budget", "changes"),
    [
        (Budget("macs", 0.5), {}),
        (Budget("params", 0.875), {}),
        (Budget("macs", 0.875), {"calibrated": False}),
        (Budget("macs", 0.875), {"goal": "mi"}),
    ],
)
def test_where_there_is_no_cascade(
    answers: tuple[Answers, Answers], budget: Budget, changes: Any
) -> None:
    assert cascaded(choosing(*answers, **changes), BOTH, JUDGED, budget) is None


def test_one_member_is_no_cascade(answers: tuple[Answers, Answers]) -> None:
    alone = Estimate(0.0, 0.0, (Choice((0,), 0.0), BOTH))
    assert cascaded(choosing(*answers), BOTH, alone, Budget("macs", 0.875)) is None
    assert cascaded(choosing(*answers), Choice((0,), 0.0), JUDGED, Budget("macs", 0.875)) is None
