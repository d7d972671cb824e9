"""What the table says of a choice: each half of the samples judged by the other, worked out plainly here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from drawn_answers import answers, member
from token_logits import NAMES, drawn
from torch import Tensor

from hydrasurgeon.building.cache import Answers
from hydrasurgeon.building.table import Choice, Objective, Table, state_score
from hydrasurgeon.problems import PROBLEMS, SINGLE
from hydrasurgeon.problems.base import Outputs
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.entities import begun
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


def stacked(members: Sequence[Answers]) -> Tensor:
    return torch.stack([each.val for each in members], dim=1)


@pytest.mark.parametrize("name", ["avg", "energy"])
def test_each_half_judges_what_the_other_chose(name: str) -> None:
    """The first half chose members 0 and 1, the rest chose 2 alone; `calibrate` fits the same."""
    everyone = answers(rows=200)
    chosen = [[everyone[0], everyone[1]], [everyone[2]]]
    losses, right, areas = [], [], []
    for fits, members in enumerate(chosen):
        fitting = [each.halves()[fits] for each in members]
        judging = [each.halves()[1 - fits] for each in members]
        labels = judging[0].labels
        sides = [Outputs(stacked(part), None, part[0].labels) for part in (fitting, judging)]
        constants = SINGLE.calibrated(*sides).constants
        probs = calibrated(sides[1].logits, **constants)
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
    assert state_score([sharp, everyone[1]], "entropy") == "entropy"
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


def test_tags_are_judged_text_by_text() -> None:
    """F1 as seqeval has it, NLL of words; and errors as of texts, whose words stand together."""
    from seqeval.metrics import f1_score

    problem = PROBLEMS["tokens"]
    logits, tags, _ = drawn(200, seed=4)
    tags = tags[:, : logits.shape[2]]
    one = Answers(logits[:, 0], tags, problem=problem)
    row = table([one]).entry(Choice.of(MEMBERS[0])).row("tagger")
    said, true, losses, right = [], [], [], []
    for fits in (0, 1):
        fitting, judging = (one.halves()[n] for n in (fits, 1 - fits))
        known = fitting.labels >= 0
        at = temperature_of(fitting.val[known][:, None], fitting.labels[known])
        probs = (judging.val.double() / at).softmax(dim=-1)
        there = judging.labels >= 0
        chosen = probs.argmax(dim=-1)
        tags = begun(torch.where(there, chosen, -1))
        for text, truth in enumerate(judging.labels):
            words = there[text]
            of_truth = probs[text, words].gather(1, truth[words][:, None])
            losses.append(-of_truth[:, 0].log())
            right.append((chosen[text] == truth)[words].double())
            said.append([NAMES[tag] for tag in tags[text, words]])
            true.append([NAMES[tag] for tag in truth[words]])
    assert row.worth["f1"] == pytest.approx(f1_score(true, said), abs=1e-12)
    assert row.worth["nll"] == pytest.approx(float(torch.cat(losses).mean()), abs=1e-9)
    share = float(torch.cat(right).mean())
    assert row.worth["token_accuracy"] == pytest.approx(share, abs=1e-12)
    # Of a ratio of sums over texts.
    off = torch.stack([(each - share).sum() for each in right])
    error = float(off.square().sum().sqrt()) / len(torch.cat(right))
    assert row.errors["token_accuracy"] == pytest.approx(error, rel=0.2)
