"""Promises about entities: against loops and MAPIE, and kept over many splits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from token_logits import NAMES, drawn

from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.ood_score import Grounds
from hydrasurgeon.decision.state import State, decide
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import DecisionRecord, shapes_of
from hydrasurgeon.measuring import measure
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.statistics.abstain import risk_bound
from hydrasurgeon.statistics.by_text import EntityOutcomes, Risk, ThresholdPlan
from hydrasurgeon.statistics.probabilities import of_labels
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tasks.base import Outputs, joined

TOKENS = TASKS["token_classification"]


def population(texts: int, random: np.random.Generator, *, largest: int = 6) -> EntityOutcomes:
    """Texts of some entities, which are easy or hard together."""
    counts = random.integers(0, largest + 1, size=texts)
    text = np.repeat(np.arange(texts), counts)
    hardness = random.normal(size=texts)[text]
    score = 1.5 - hardness + random.normal(size=len(text))
    wrong = random.random(len(text)) > 1 / (1 + np.exp(-1.5 * score))
    return EntityOutcomes(
        texts,
        np.asarray(text),
        np.asarray(1 / (1 + np.exp(-score))),
        np.asarray(wrong),
    )


@pytest.mark.parametrize("missed", [False, True])
def test_excess_is_counted_text_by_text(missed: bool) -> None:
    outcomes = population(40, np.random.default_rng(0))
    promise = Risk(0.2, 0.1, 3, missed)
    thresholds = np.sort(outcomes.value)[::17]
    thresholds = thresholds if missed else np.flip(thresholds, 0)
    found = outcomes.excess(thresholds, promise)
    for rule, threshold in enumerate(thresholds):
        for text in range(40):
            of_text = outcomes.text == text
            below = outcomes.value[of_text] < threshold
            wrong = below if missed else ~below & outcomes.wrong[of_text]
            counting = np.ones_like(below) if missed else ~below
            excess = min(int(wrong.sum()), 3) - 0.2 * min(int(counting.sum()), 3)
            assert float(found[rule, text]) == pytest.approx(excess, abs=1e-12)


def test_of_single_entities_the_best_stake_wins_by_mapies_bound() -> None:
    """With an entity in each text 1/max Π is Hoeffding's p-value of Learn then Test."""
    methods = pytest.importorskip("mapie.risk_control.methods")
    random = np.random.default_rng(1)
    value = np.asarray(random.random(400))
    wrong = np.asarray(random.random(400)) > 0.5 + value / 2
    outcomes = EntityOutcomes(400, np.arange(400), value, wrong)
    promise = Risk(0.3, 0.1, 1, missed=False)
    plan = ThresholdPlan.of(outcomes, promise)
    excess = outcomes.excess(plan.thresholds, promise)
    logs = np.log1p(-plan.stakes[:, None] * excess).sum(axis=1)
    answered = (value >= plan.thresholds[:, None]).sum(axis=1)
    risk = ((value >= plan.thresholds[:, None]) & wrong).sum(axis=1) / answered
    expected = answered * methods._h1(risk, np.full_like(risk, 0.3))
    sure = (risk < 0.27) & (answered > 30)
    assert sure.sum() > 50
    np.testing.assert_allclose(logs[sure], expected[sure], rtol=0.05)
    assert (logs <= expected + 1e-9)[risk < 0.3].all()
    p_values = np.exp(-expected)[:, None]
    control = pytest.importorskip("mapie.risk_control").control_fwer
    rejected = control(p_values[:, 0], 0.1, fwer_method="fixed_sequence")
    mine = plan.kept([outcomes], promise)
    # Ours may stop at any text, not at the last alone.
    assert mine is not None
    assert mine <= float(plan.thresholds[int(np.max(rejected))])


@pytest.mark.slow
@pytest.mark.parametrize(("missed", "risk"), [(False, 0.2), (True, 0.1)])
def test_promises_hold_over_many_splits(missed: bool, risk: float) -> None:
    random = np.random.default_rng(2)
    whole = population(40_000, random)
    broken, counted = 0, []
    for _ in range(100):
        fitting, certifying = population(100, random), population(100, random)
        promise = Risk(risk, 0.2, 6, missed)
        threshold = ThresholdPlan.of(fitting, promise).kept([certifying], promise)
        if threshold is None:
            continue
        answered = whole.value >= threshold
        failing = ~answered if missed else whole.wrong[answered]
        broken += float(failing.astype(np.float64).mean()) > risk
        counted.append(float(answered.astype(np.float64).mean()))
    assert broken <= 0.2 * 100 + 2 * np.sqrt(0.2 * 0.8 * 100)
    assert len(counted) > 50  # it can be promised
    assert np.mean(counted) > (0.9 if missed else 0.4)


def test_entities_of_one_text_are_no_samples() -> None:
    """Where whole texts go wrong, a bound on entities is broken, and the one on texts is not."""
    random, broken = np.random.default_rng(3), {"entities": 0, "texts": 0}

    def texts() -> EntityOutcomes:
        text = np.repeat(np.arange(100), 8)
        wrong = np.asarray(random.random(100) < 0.11)[text]
        return EntityOutcomes(100, text, np.full((800,), 0.9), wrong)

    promise = Risk(0.1, 0.1, 8, missed=False)
    for _ in range(200):
        certifying = texts()
        broken["texts"] += (
            ThresholdPlan.of(texts(), promise).kept([certifying], promise) is not None
        )
        broken["entities"] += risk_bound(int(certifying.wrong.sum()), 800, 0.1) <= 0.1
    assert broken["texts"] <= 0.1 * 200
    assert broken["entities"] > 0.15 * 200


def outputs(texts: int, seed: int) -> Outputs:
    logits, labels, _ = drawn(texts, seed, noise=1.2)
    random = torch.Generator().manual_seed(seed)
    return TOKENS.outputs(
        Outputs(logits, torch.randn(texts, 2, 4, generator=random).numpy(), labels)
    )


def state_of(seed: int = 0, **options: Any) -> State:
    promise = CalibrateOptions.of("m", data="d", out="o", **options)
    state, _ = fit_state(outputs(1200, 1), promise.but(ood_score="msp"), Grounds(), task=TOKENS)
    return state


def judged(state: State, seed: int) -> dict[str, Any]:
    logits, labels, _ = drawn(3000, seed, noise=1.2)
    return dict(measure.judged(Outputs(logits, None, labels), state).figures())


def test_of_what_is_answered_few_are_wrong() -> None:
    state = state_of(risk=0.2)
    found, without = judged(state, 5), judged(state_of(), 5)
    assert "wrong" not in without
    abstain = state.record.abstain
    assert abstain is not None
    assert (abstain.risk, abstain.delta, abstain.bound) == (0.2, 0.05, 0.2)
    assert found["wrong"] <= 0.2
    assert 0.3 < abstain.coverage < 1
    assert without["entity_ece"] < 0.08
    assert state.record.entities is not None


def test_of_what_is_true_few_are_missed() -> None:
    tight, loose = (state_of(risk=risk, promise="missed") for risk in (0.02, 0.3))
    for state, risk in ((tight, 0.02), (loose, 0.3)):
        assert judged(state, 6)["missed"] <= risk
        assert state.record.abstain is None
    assert tight.record.cover is not None
    assert loose.record.cover is not None
    assert tight.record.cover.threshold < loose.record.cover.threshold
    assert tight.record.cover.words > loose.record.cover.words


def test_what_cannot_be_promised_is_refused() -> None:
    with pytest.raises(DataError, match="1,200 rows cannot promise it") as refused:
        state_of(risk=0.001)
    assert refused.value.hint is not None
    smallest = re.search(r"smallest risk that can be promised is ([\d.]+) %", refused.value.hint)
    assert smallest is not None
    risk = float(smallest[1]) / 100
    assert state_of(risk=risk).record.abstain is not None
    with pytest.raises(DataError):
        state_of(risk=risk - 0.01)


def test_a_state_is_read_again_and_sees_what_monitor_counts() -> None:
    state = state_of(risk=0.3)
    record = DecisionRecord.model_validate_json(state.record.model_dump_json())
    assert record == state.record
    given = outputs(1200, 1)
    prediction = decide(state, given.logits, given.features)
    rows = [
        dict(zip(("entities", "ood_score", "unfamiliar"), row, strict=True))
        for row in zip(*prediction.columns(NAMES, 5).values(), strict=True)
    ]
    assert [*prediction.columns(NAMES, 5)] == [*TOKENS.columns][:-1]
    seen = record.seen
    assert seen is not None
    counts = dict.fromkeys(("none", "PER", "LOC"), 0)
    for row in rows:
        counts[TOKENS.counted(record, row)] += 1
    assert tuple(counts.values()) == seen.predicted
    assert seen.uncertainty == pytest.approx(np.mean([TOKENS.unsure(row) for row in rows]))
    assert 0 < sum(row["unfamiliar"] for row in rows) < 0.1 * len(rows)
    assert seen.abstain + seen.unfamiliar <= 1200
    named = [name for row in rows for name in TOKENS.named(row)]
    answered = [e["answer"] for row in rows for e in row["entities"] if e["answer"] != "abstain"]
    assert named == answered
    parts = [decide(state, given.logits[some], None) for some in (slice(700), slice(700, 1200))]
    assert joined(parts).columns(NAMES, 5) == prediction.columns(NAMES, 5)


def test_scores_are_fitted_to_the_mean_of_words() -> None:
    promise = CalibrateOptions.of("m", data="d", out="o")
    given = outputs(400, 3)
    assert given.features is not None
    far = Outputs(given.logits, given.features + 3, given.labels)
    linear = [(np.zeros((1, 4)), np.zeros(1))] * 2
    state, _ = fit_state(given, promise, Grounds(classifiers=linear, ood=[far]), task=TOKENS)
    assert state.record.ood.score in TOKENS.features
    shapes = {name: tuple(tensor.shape) for name, tensor in state.tensors().items()}
    assert shapes_of(state.record, len(NAMES)) == shapes
    assert (
        float((decide(state, far.logits, far.features).unfamiliar).astype(np.float64).mean()) > 0.9
    )
    assert (
        float((decide(state, given.logits, given.features).unfamiliar).astype(np.float64).mean())
        < 0.15
    )


def test_sets_hold_every_tag_of_a_text_as_often_as_promised() -> None:
    state = state_of(coverage=0.8)
    held: list[bool] = []
    logits, labels, counts = drawn(3000, 9, noise=1.2)
    probs = state.answers(logits)
    for text, count in enumerate(counts):
        of_truth = of_labels(probs[text, :count], labels[text, :count])
        held.append(bool((1 - of_truth <= state.record.conformal.threshold).all()))
    assert 0.75 < np.mean(held) < 0.85
