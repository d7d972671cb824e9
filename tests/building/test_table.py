"""What the table says of a choice: each half of the samples judged by the other, worked out plainly here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from drawn_answers import answers, member
from promised import promise
from token_logits import NAMES, drawn
from torch import Tensor

from hydrasurgeon.building.cache import Answers
from hydrasurgeon.building.table import Choice, Objective, Table, outputs_of, state_score
from hydrasurgeon.decision.cascaded import in_steps
from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.state import State
from hydrasurgeon.files.decided import Cascade
from hydrasurgeon.measuring.cascades.fit import CascadeFit, MacsOf, answers_of
from hydrasurgeon.measuring.cost import StepMacs
from hydrasurgeon.problems import PROBLEMS, SINGLE
from hydrasurgeon.problems.base import Outputs, Problem
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


PAIR = (MEMBERS[0], MEMBERS[1])
STEPS = {(0,): StepMacs(0.5, 0.75), (1,): StepMacs(0.75, 0.5)}


def as_calibrated(
    halves: Sequence[Sequence[Answers]], budget: float, problem: Problem, patch: pytest.MonkeyPatch
) -> tuple[State, Cascade]:
    """What `calibrate --cascade --budget` makes of the first of these halves of all samples."""
    parts = [outputs_of(half) for half in halves]
    val, *foreign = (one.joined(other) for one, other in zip(*parts, strict=True))
    cut = len(parts[0][0].logits)
    rows = torch.arange(len(val.logits)).tensor_split([cut])
    for module in ("decision.fitting", "measuring.cascades.fit"):
        patch.setattr(f"hydrasurgeon.{module}.halves", lambda count, seed, groups=None: rows)
    sets = parts[0][1:], parts[1][1:]
    patch.setattr("hydrasurgeon.measuring.cascades.fit._split", lambda foreign, seed: sets)
    score = state_score(halves[0]) if foreign else "msp"
    state, _ = fit_state(val, promise=promise(), score=score, problem=problem)
    macs = MacsOf(1, 2, lambda starters: STEPS[starters])
    fit = CascadeFit(state, val, foreign, macs, seed=0)
    return state, fit._within(budget).cascade


@pytest.mark.parametrize(("budget", "labels"), [(0.875, 1), (1.0, 1), (0.875, 2)])
def test_a_cascade_is_what_calibrate_makes_of_it(
    monkeypatch: pytest.MonkeyPatch, budget: float, labels: int
) -> None:
    """Its gate, who answers, and the figures of the other half; with labels that go on together."""
    problem = PROBLEMS["multi_label"] if labels > 1 else SINGLE
    everyone = answers(rows=400, count=2)
    if labels > 1:
        rows = [(each.val[:, 1] - each.val[:, 0]).reshape(-1, labels) for each in everyone]
        truth = (everyone[0].labels % 2).reshape(-1, labels).double()
        everyone = [Answers(each, truth, problem=problem) for each in rows]
    losses, right, costs, areas = [], [], [], []
    for fits in (1, 0):
        halves = [[each.halves()[n] for each in everyone] for n in (fits, 1 - fits)]
        state, cascade = as_calibrated(halves, budget, problem, monkeypatch)
        inside, *outside = outputs_of(halves[1])
        chances, scores = answers_of(state, cascade, inside)
        chances = problem.chances(chances)
        truth = halves[1][0].labels.flatten().long()
        losses.append(metrics.nll(chances, truth))
        right.append(metrics.accuracy(chances, truth))
        going = in_steps(state, cascade, inside.logits, None)[1].double().mean()
        costs.append(STEPS[cascade.starters].expected(float(going)))
        for each in outside:
            areas.append(metrics.auroc(scores, answers_of(state, cascade, each)[1]))
        assert cascade.finishers == (0, 1)
    measured = table(everyone, "nll" if labels > 1 else "avg")
    row = measured.entry(Choice(PAIR, (PAIR, PAIR), cascade=budget)).row("both")
    assert row.worth["nll"] == pytest.approx(sum(losses) / 2, abs=1e-9)
    assert row.worth["accuracy"] == pytest.approx(sum(right) / 2, abs=1e-9)
    assert row.cost["macs"] == pytest.approx(sum(costs) / 2, abs=1e-9)
    assert 0.5 < row.cost["macs"] < 1.25
    if areas:
        assert row.worth["auroc"] == pytest.approx(sum(areas) / len(areas), abs=0.03)


def test_a_member_that_knows_more_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is right nearly everywhere, the first seldom: what goes on is the second's."""
    one, other = answers(rows=400, count=2)
    truth = torch.nn.functional.one_hot(one.labels, 4).float()
    poor = Answers(one.val / 2, one.labels, one.ood)
    good = Answers(6 * truth + 0.5 * other.val, one.labels, other.ood)
    halves = [[each.halves()[n] for each in (poor, good)] for n in (0, 1)]
    state, cascade = as_calibrated(halves, 0.7, SINGLE, monkeypatch)
    assert (cascade.starters, cascade.finishers) == ((0,), (1,))
    inside = outputs_of(halves[1])[0]
    going = in_steps(state, cascade, inside.logits, None)[1]
    assert cascade.rest is not None
    alone = calibrated(inside.logits[:, 1:], cascade.rest.temperature)
    said = answers_of(state, cascade, inside)[0]
    torch.testing.assert_close(said[going], alone[going])
    assert not torch.allclose(said[~going], alone[~going])


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
