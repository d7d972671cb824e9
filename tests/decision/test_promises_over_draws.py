"""Promises of each task, kept over several hundred draws of validation data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from promised import promise

from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.ood_score import Grounds
from hydrasurgeon.decision.state import decide
from hydrasurgeon.errors import DataError
from hydrasurgeon.statistics.by_text import EntityOutcomes, Risk, ThresholdPlan
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tasks.base import Certifying, Outputs, Part

DRAWS = 300


def draw_classes(count: int, random: np.random.Generator) -> Outputs:
    """Three classes by logits that are twice as sharp as the truth."""
    logits = 3 * random.normal(size=(count, 3))
    labels = (logits + random.gumbel(size=(count, 3))).argmax(axis=1)
    return Outputs(2 * logits[:, None], None, labels)


def draw_numbers(count: int, random: np.random.Generator) -> Outputs:
    """Numbers of two members that agree too much, with heavy tails."""
    value = 2 * random.normal(size=count)
    members = value[:, None, None] + 0.1 * random.normal(size=(count, 2, 1))
    return Outputs(members, None, value + 0.5 * random.standard_t(4, size=count))


def draw_entities(texts: int, random: np.random.Generator) -> EntityOutcomes:
    """Up to six true entities in each text, which are easy or hard together."""
    text = np.repeat(np.arange(texts), random.integers(0, 7, size=texts))
    score = 1.5 - random.normal(size=texts)[text] + random.normal(size=len(text))
    return EntityOutcomes(texts, text, 1 / (1 + np.exp(-score)), np.zeros(len(text), dtype=bool))


def miss_entities(random: np.random.Generator) -> Callable[[], float]:
    """Return a draw of how far the share of missed entities is above the promised tenth."""
    fresh = draw_entities(40_000, random)

    def draw() -> float:
        risk = Risk(0.1, 0.05, 6, missed=True)
        plan = ThresholdPlan.of(draw_entities(80, random), risk)
        threshold = plan.kept([draw_entities(160, random)], risk)
        return np.nan if threshold is None else float((fresh.value < threshold).mean()) - 0.1

    return draw


def answer_wrongly(random: np.random.Generator) -> Callable[[], float]:
    """Return a draw of how far the share of wrong labels is above the promised 15 %."""
    fresh = draw_classes(20_000, random)

    def draw() -> float:
        with contextlib.suppress(DataError):
            options = promise(risk=0.15, ood_score="msp")
            state, _ = fit_state(draw_classes(300, random), options, Grounds())
            decided = decide(state, fresh.logits, None)
            answered = ~decided.abstain & ~decided.unfamiliar
            return float((decided.labels != fresh.truth)[answered].mean()) - 0.15
        return np.nan

    return draw


@pytest.mark.slow
@pytest.mark.parametrize("fail", [miss_entities, answer_wrongly])
def test_risks_are_broken_by_few_draws(
    fail: Callable[[np.random.Generator], Callable[[], float]],
) -> None:
    draw = fail(np.random.default_rng(0))
    excess = np.array([draw() for _ in range(DRAWS)])
    assert np.isfinite(excess).sum() > 0.7 * DRAWS  # it can be promised
    assert np.nanmean(excess) > -0.1  # and is no promise to answer nothing
    assert (excess > 0).sum() <= DRAWS * 0.05 + 3 * np.sqrt(DRAWS * 0.05 * 0.95)


def cover_labels(random: np.random.Generator) -> Callable[[], float]:
    """Return a draw of the share of rows whose label is in the set."""
    fresh = draw_classes(5_000, random)

    def draw() -> float:
        options = promise(ood_score="msp")
        state, _ = fit_state(draw_classes(150, random), options, Grounds())
        decided = decide(state, fresh.logits, None)
        held = 1 - decided.probabilities <= state.record.conformal.threshold + 1e-12
        return float(held[np.arange(len(held)), fresh.truth].mean())

    return draw


def cover_numbers(random: np.random.Generator) -> Callable[[], float]:
    """Return a draw of the share of intervals that hold the number."""
    numbers = TASKS["regression"]
    fresh = numbers.outputs(draw_numbers(5_000, random))
    assert fresh.original_labels is not None

    def draw() -> float:
        fitting, certifying = (numbers.outputs(draw_numbers(n, random)) for n in (50, 100))
        fit = numbers.calibrated(fitting, certifying)
        fitted, part = (
            Part(
                rows,
                numbers.answers(rows.logits, fit.constants),
                np.ones(len(rows.truth), dtype=bool),
            )
            for rows in (fitting, certifying)
        )
        by = Certifying(fitted, [part], promise(), fit.constants)
        half = numbers.promised(by)["conformal"].threshold
        value, spread = numbers.answers(fresh.logits, fit.constants).T
        return float((np.abs(fresh.original_labels - value) <= half * spread).mean())

    return draw


@pytest.mark.slow
@pytest.mark.parametrize("cover", [cover_labels, cover_numbers])
def test_coverage_is_kept_on_average(
    cover: Callable[[np.random.Generator], Callable[[], float]],
) -> None:
    draw = cover(np.random.default_rng(1))
    shares = np.array([draw() for _ in range(DRAWS)])
    error = shares.std() / np.sqrt(DRAWS)
    assert 0.9 - 3 * error <= shares.mean() <= 0.93
