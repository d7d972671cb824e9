"""What the table says of a choice: each half of the samples judged by the other, worked out plainly here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from drawn_answers import answers, member
from torch import Tensor

from hydrasurgeon.building.cache import Answers
from hydrasurgeon.building.table import Choice, Objective, Table, state_score
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.scores.on_logits import ON_LOGITS
from hydrasurgeon.statistics.temperature import calibrated, temperature_of

MEMBERS = [member(0), member(1), member(2)]
COSTS = {(0,): 0.5, (1,): 0.75, (0, 1): 1.25}
"""Multiply-adds of two members that share nothing."""


def table(everyone: Sequence[Answers], name: str = "avg") -> Table:
    def cost(members: Sequence[Any], unit: str) -> float:
        return COSTS.get(tuple(MEMBERS.index(each) for each in members), 1.0)

    return Table(Objective(name), lambda each: everyone[MEMBERS.index(each)], cost)


def scores(kind: str, fitting: Sequence[Answers], judging: Sequence[Answers], at: int) -> Tensor:
    """A decision state's score of one set."""
    if kind in ON_LOGITS:
        return ON_LOGITS[kind](torch.stack([each.sets[at] for each in judging], dim=1), 1.0)
    held = [each.scores[kind][0] for each in fitting]
    values = [each.scores[kind][at] for each in judging]
    standard = [
        (value - h.mean()) / h.std(correction=0) for value, h in zip(values, held, strict=True)
    ]
    return torch.stack(standard).mean(dim=0)


@pytest.mark.parametrize("name", ["avg", "energy"])
def test_each_half_judges_what_the_other_chose(name: str) -> None:
    """The first half chose members 0 and 1, the rest chose 2 alone."""
    everyone = answers(rows=200)
    chosen = [[everyone[0], everyone[1]], [everyone[2]]]
    losses, right, areas = [], [], []
    for fits, members in enumerate(chosen):
        fitting = [each.halves()[fits] for each in members]
        judging = [each.halves()[1 - fits] for each in members]
        labels = judging[0].labels
        at = temperature_of(torch.stack([e.val for e in fitting], dim=1), fitting[0].labels)
        probs = calibrated(torch.stack([e.val for e in judging], dim=1), at)
        losses.append(metrics.nll(probs, labels))
        right.append(metrics.accuracy(probs, labels))
        kind = state_score(fitting) if name == "avg" else name
        inside, *outside = (scores(kind, fitting, judging, n) for n in range(3))
        areas.append([metrics.auroc(inside, values) for values in outside])
    choice = Choice(tuple(MEMBERS), ((MEMBERS[0], MEMBERS[1]), (MEMBERS[2],)))
    entry = table(everyone, name).entry(choice)
    row = entry.row("both")
    assert row.worth["nll"] == pytest.approx(sum(losses) / 2, abs=1e-9)
    assert row.worth["accuracy"] == pytest.approx(sum(right) / 2, abs=1e-9)
    # Halves are joined by ranks: pairs from both halves count too.
    assert row.worth["auroc"] == pytest.approx(float(torch.tensor(areas).mean()), abs=0.03)
    expected = row.worth["auroc"]
    if name == "avg":
        typical = math.exp(-row.worth["nll"])
        expected = (row.worth["accuracy"] + typical + row.worth["auroc"]) / 3
    assert entry.value == pytest.approx(expected, abs=1e-12)


def test_the_state_takes_the_score_that_loses_least() -> None:
    """mds tells one OOD set well here, by which it is chosen; without it a score of the logits is."""
    everyone = answers(rows=200)
    assert state_score([everyone[0]]) in {*ON_LOGITS, "mds"}
    sharp = Answers(
        everyone[0].val,
        everyone[0].labels,
        everyone[0].ood,
        {"mds": tuple(v + 9.0 * (i > 0) for i, v in enumerate(everyone[0].scores["mds"]))},
    )
    assert state_score([sharp]) == "mds"
    assert state_score([sharp, everyone[1]], "gen") == "gen"
    bare = Answers(everyone[0].val, everyone[0].labels, everyone[0].ood)
    assert state_score([sharp, bare]) in ON_LOGITS


def test_a_lead_is_of_the_same_resamples() -> None:
    """Accuracy of two models: the standard error of a paired difference."""
    everyone = answers(rows=400)
    measured = table(everyone, "acc")
    one, other = (measured.entry(Choice.of(each)) for each in MEMBERS[:2])
    lead, error = one.lead(other)
    right = [each.answers.inside.correct.double() for each in (one, other)]
    difference = right[0] - right[1]
    assert lead == pytest.approx(float(difference.mean()), abs=1e-12)
    assert error == pytest.approx(float(difference.std()) / 20, rel=0.2)
    assert one.lead(one) == (0, 0)


def test_halves_are_parts_of_the_whole() -> None:
    first, rest = answers()[1].halves()
    whole = answers()[1]
    assert torch.equal(torch.cat([first.val, rest.val]), whole.val)
    assert torch.equal(
        torch.cat([first.scores["mds"][1], rest.scores["mds"][1]]), whole.scores["mds"][1]
    )


def test_halves_keep_the_labels_of_a_sample_together() -> None:
    """Three samples of two labels: one, and two."""
    rows = torch.arange(12.0).reshape(6, 2)
    one, two = Answers(rows, torch.arange(6), rows_each=2).halves()
    assert (one.val.tolist(), two.val.tolist()) == (rows[:2].tolist(), rows[2:].tolist())
    assert (one.labels.tolist(), two.labels.tolist()) == ([0, 1], [2, 3, 4, 5])


def both(budget: float) -> Choice:
    pair = (MEMBERS[0], MEMBERS[1])
    return Choice(pair, (pair, pair), cascade=budget)


def at_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrasurgeon.building.table.temperature_of", lambda *given: 1.0)


def test_the_surest_half_is_answered_by_the_first_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight samples of class 0. The first member is right everywhere, of falling sureness in each half; the second is
    wrong, and equally unsure. (0.875 − 0.5) / (1.25 − 0.5) = 0.5: of four samples two go on."""
    at_one(monkeypatch)
    sure = torch.tensor([4.0, 3.0, 2.0, 1.0] * 2)
    first = torch.stack([sure, torch.zeros(8)], dim=1)
    second = torch.tensor([[0.0, 0.5]] * 8)
    labels = torch.zeros(8, dtype=torch.long)
    entry = table([Answers(first, labels), Answers(second, labels)], "nll").entry(both(0.875))
    alone, other = (rows.softmax(dim=-1) for rows in (first, second))
    expected = torch.where(
        torch.tensor([True, True, False, False] * 2)[:, None], alone, (alone + other) / 2
    )
    assert entry.cost["macs"] == pytest.approx(0.5 + 0.5 * 0.75)
    assert entry.value == pytest.approx(float(expected[:, 0].log().mean()), abs=1e-6)
    torch.testing.assert_close(entry.answers.inside.nll.exp() ** -1, expected[:, 0].double())


def test_a_sample_of_many_labels_goes_on_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four samples of two labels the first member doubts one label of two samples: both labels go on."""
    at_one(monkeypatch)
    doubts = [[4.0, 3.5], [0.2, 5.0], [3.0, 3.0], [6.0, 1.0]]
    sure = torch.tensor([*doubts, [0.3, 5.0], [4.0, 3.5], [6.0, 1.0], [3.0, 3.0]])
    first = torch.stack([sure.flatten(), torch.zeros(16)], dim=1)
    second = torch.tensor([[0.0, 0.5]] * 16)
    labels = torch.zeros(16, dtype=torch.long)
    everyone = [Answers(each, labels, rows_each=2) for each in (first, second)]
    entry = table(everyone, "nll").entry(both(0.875))
    goes_on = [False, True, False, True, True, False, True, False]
    alone, other = (rows.softmax(dim=-1) for rows in (first, second))
    expected = torch.where(
        torch.tensor(goes_on).repeat_interleave(2)[:, None], (alone + other) / 2, alone
    )
    torch.testing.assert_close(entry.answers.inside.nll.exp() ** -1, expected[:, 0].double())
    assert entry.cost["macs"] == pytest.approx(0.5 + 0.5 * 0.75)
