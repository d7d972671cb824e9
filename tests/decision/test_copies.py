"""Rows that are copies of others: promises hold where inputs repeat, and where rows were copied."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from numpy import ndarray
from promised import promise

from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.ood_score import Grounds
from hydrasurgeon.decision.split import split
from hydrasurgeon.decision.state import State, decide
from hydrasurgeon.errors import DataError
from hydrasurgeon.statistics.abstain import Graded, Unpromised, fit_abstention
from hydrasurgeon.tasks.base import Outputs

ATOMS, WRONG, SHARE = 12, 4, 0.3
"""Inputs that repeat, how many of them are answered wrongly and surely, and how many rows they are."""
DRAWS = 150


def outputs(confidence: ndarray, right: ndarray, inputs: ndarray) -> Outputs:
    """Two classes of which one is answered, with these probabilities."""
    odds, answer = np.log(confidence / (1 - confidence)), inputs % 2
    logits = np.zeros((len(odds), 1, 2))
    logits[np.arange(len(odds)), 0, answer] = odds
    return Outputs(logits, None, np.where(right, answer, 1 - answer), inputs=inputs)


def singles(count: int, random: np.random.Generator) -> tuple[ndarray, ndarray]:
    """Confidences from one half on, and answers that are right as often as they say; .9 of all."""
    confidence = 0.5 + 0.499 * np.asarray(random.beta(4, 1, count))
    return confidence, np.asarray(random.random(count) < confidence)


def repeating(count: int, random: np.random.Generator) -> Outputs:
    """Rows of which some are always the same inputs."""
    confidence, right = singles(count, random)
    atom = random.integers(0, ATOMS, count)
    repeats = np.asarray(random.random(count) < SHARE)
    return outputs(
        np.where(repeats, 0.97 + 0.001 * atom, confidence),
        np.where(repeats, atom >= WRONG, right),
        np.where(repeats, atom, ATOMS + np.arange(count)),
    )


def copied(count: int, times: int, random: np.random.Generator) -> Outputs:
    """Rows each of which stands there several times."""
    some = outputs(*singles(count, random), np.arange(count))
    return some.at(random.permutation(np.repeat(np.arange(count), times)))


def came_of_it(state: State, fresh: Outputs) -> tuple[float, float, float]:
    """The share of wrong answers, of sets that hold the truth, and of what looks unfamiliar."""
    decided = decide(state, fresh.logits, None)
    answered = ~decided.abstain & ~decided.unfamiliar
    held = 1 - decided.probabilities <= state.record.conformal.threshold + 1e-12
    covered = held[np.arange(len(held)), fresh.truth]
    wrong = decided.labels != fresh.truth
    risk = float(wrong[answered].mean()) if answered.any() else 0.0
    return risk, float(covered.mean()), float(decided.unfamiliar.mean())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["repeating", "copied"])
def test_promises_hold_with_copies(kind: str) -> None:
    random = np.random.default_rng(0)
    risk = 0.2 if kind == "repeating" else 0.08
    fresh = repeating(20_000, random) if kind == "repeating" else copied(20_000, 1, random)
    broken, covered, flagged = 0, [], []
    for _ in range(DRAWS):
        val = repeating(1000, random) if kind == "repeating" else copied(500, 4, random)
        with contextlib.suppress(DataError):
            state, notes = fit_state(val, promise(risk=risk, ood_score="msp"), Grounds())
            wrong, coverage, unfamiliar = came_of_it(state, fresh)
            broken += wrong > risk
            covered.append(coverage)
            flagged.append(unfamiliar)
            (note,) = (note for note in notes if "copies" in note)
            assert "rows are copies of others; the promises hold with and without them" in note
    assert len(covered) > 0.5 * DRAWS
    assert broken <= 0.05 * DRAWS
    assert np.mean(covered) >= 0.9 - 2 * np.std(covered) / np.sqrt(len(covered))
    assert np.mean(flagged) <= 0.05 + 2 * np.std(flagged) / np.sqrt(len(flagged))


@pytest.mark.slow
def test_either_set_alone_breaks_promises() -> None:
    """Without the copies where inputs repeat, with them where rows were copied."""

    def breaks(kind: str, *, with_copies: bool) -> int:
        random = np.random.default_rng(1)
        risk, broken = (0.15, 0) if kind == "repeating" else (0.08, 0)
        fresh = repeating(20_000, random) if kind == "repeating" else copied(20_000, 1, random)
        for _ in range(DRAWS):
            val = repeating(1000, random) if kind == "repeating" else copied(60, 20, random)
            rows = split(val, 0)
            parts = [
                _graded(val.at(part))
                for part in (rows.fitting, rows.certifying if with_copies else rows.distinct)
            ]
            with contextlib.suppress(Unpromised):
                threshold = fit_abstention(parts[0], parts[1:], risk=risk).threshold
                graded = _graded(fresh)
                broken += float((~graded.right[graded.confidence >= threshold]).mean()) > risk
        return broken

    assert breaks("repeating", with_copies=False) > 0.5 * DRAWS
    assert breaks("repeating", with_copies=True) <= 0.05 * DRAWS
    assert breaks("copied", with_copies=True) > 0.1 * DRAWS
    assert breaks("copied", with_copies=False) <= 0.05 * DRAWS


def _graded(some: Outputs) -> Graded:
    confidence = 1 / (1 + np.exp(-some.logits[:, 0].max(axis=-1)))
    return Graded(confidence, some.truth == some.logits[:, 0].argmax(axis=-1))


def test_a_note_says_whether_copies_made_thresholds_stricter() -> None:
    random = np.random.default_rng(2)
    options = promise(risk=0.2, ood_score="msp")
    _, notes = fit_state(repeating(1000, random), options, Grounds())
    (note,) = (note for note in notes if "copies" in note)
    assert "of these 1,000 rows are copies" in note
    assert "(stricter with them: " in note
    _, notes = fit_state(copied(700, 1, random), options, Grounds())
    assert not any("copies" in note for note in notes)
