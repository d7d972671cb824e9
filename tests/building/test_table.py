"""What the table says of a choice: each half of the samples judged by the other, worked out plainly here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from drawn_answers import answers, member
from token_logits import NAMES, drawn

from hydrasurgeon.building.answers import MemberOutputs
from hydrasurgeon.building.table import BuildObjective, Candidate, CandidateTable
from hydrasurgeon.decision.fitting import halves
from hydrasurgeon.statistics import metrics, probabilities
from hydrasurgeon.statistics.entities import with_openings
from hydrasurgeon.statistics.probabilities import softmax
from hydrasurgeon.statistics.scores.on_logits import score_of
from hydrasurgeon.statistics.temperature import calibrated, temperature_of
from hydrasurgeon.tasks import SINGLE, TASKS
from hydrasurgeon.tasks.base import Outputs, Task

MEMBERS = [member(0), member(1), member(2)]


def table(everyone: Sequence[MemberOutputs], name: str, task: Task = SINGLE) -> CandidateTable:
    return CandidateTable(
        BuildObjective(name), lambda each, engine: everyone[MEMBERS.index(each)], task=task
    )


@pytest.mark.parametrize("grouped", [False, True])
def test_each_half_judges_what_the_other_fitted(grouped: bool) -> None:
    """A state as `calibrate` fits it, of two members together; groups stay whole."""
    everyone = answers(rows=200)
    if grouped:
        groups = np.arange(200) // 4
        everyone = [
            MemberOutputs((replace(each.sets[0], groups=groups), *each.sets[1:]))
            for each in everyone
        ]
    losses, right, areas = [], [], []
    sets = everyone[0].beside(everyone[1]).sets
    for fits in (0, 1):
        rows = [halves(len(each.logits), 0, each.groups) for each in sets]
        fitting = sets[0].at(rows[0][fits])
        judging = [each.at(half[1 - fits]) for each, half in zip(sets, rows, strict=True)]
        constants = SINGLE.calibrated(fitting, judging[0]).constants
        probs = calibrated(judging[0].logits, **constants)
        losses.append(probabilities.nll(probs, judging[0].truth))
        right.append(metrics.accuracy(probs, judging[0].truth))
        inside, *outside = (score_of("energy", each.logits) for each in judging)
        areas.append([metrics.auroc(inside, values) for values in outside])
    entry = table(everyone, "energy").entry(Candidate.of(*MEMBERS[:2]))
    row = entry.row("both")
    assert row.worth["nll"] == pytest.approx(sum(losses) / 2, abs=1e-9)
    assert row.worth["accuracy"] == pytest.approx(sum(right) / 2, abs=1e-9)
    # Halves are joined by ranks: pairs from both halves count too.
    assert row.worth["auroc"] == pytest.approx(float(np.array(areas).mean()), abs=0.03)
    assert entry.value == pytest.approx(row.worth["auroc"], abs=1e-12)
    assert entry.score == "energy"


def test_tags_are_judged_text_by_text() -> None:
    """F1 as seqeval has it, NLL of words; and errors as of texts, whose words stand together."""
    from seqeval.metrics import f1_score

    task = TASKS["token_classification"]
    logits, tags, _ = drawn(200, seed=4)
    tags = tags[:, : logits.shape[2]]
    val = Outputs(logits[:, :1], None, tags)
    row = table([MemberOutputs((val,))], "nll", task).entry(Candidate.of(MEMBERS[0])).row("tagger")
    said, true, losses, right = [], [], [], []
    parts = halves(len(logits), 0)
    for fits in (0, 1):
        fitted, judged = parts[fits], parts[1 - fits]
        known = tags[fitted] >= 0
        at = temperature_of(logits[fitted, 0][known][:, None], tags[fitted][known])
        probs = softmax(logits[judged, 0].astype(np.float64) / at)
        there = tags[judged] >= 0
        chosen = probs.argmax(axis=-1)
        found = with_openings(np.where(there, chosen, -1))
        for text, truth in enumerate(tags[judged]):
            words = there[text]
            of_truth = np.take_along_axis(probs[text, words], truth[words][:, None], 1)
            losses.append(-np.log(of_truth[:, 0]))
            right.append(((chosen[text] == truth)[words]).astype(np.float64))
            said.append([NAMES[tag] for tag in found[text, words]])
            true.append([NAMES[tag] for tag in truth[words]])
    assert row.worth["f1"] == pytest.approx(f1_score(true, said), abs=1e-12)
    assert row.worth["nll"] == pytest.approx(float(np.concatenate(losses).mean()), abs=1e-9)
    share = float(np.concatenate(right).mean())
    assert row.worth["token_accuracy"] == pytest.approx(share, abs=1e-12)
    # Of a ratio of sums over texts.
    off = np.stack([(each - share).sum() for each in right])
    error = float(np.sqrt(np.square(off).sum())) / len(np.concatenate(right))
    assert row.errors["token_accuracy"] == pytest.approx(error, rel=0.2)
