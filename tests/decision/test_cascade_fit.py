"""A cascade's threshold by trying all of them, and what is promised of both stages' answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy import ndarray

from hydrasurgeon.decision.cascade_fit import MAX_LOSS, fit_cascade
from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.ood_score import Grounds
from hydrasurgeon.decision.split import split
from hydrasurgeon.decision.state import (
    State,
    answers_in_stages,
    decide_in_stages,
    in_stages,
)
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.statistics.temperature import calibrated, temperature_of
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tasks.base import Outputs, Task

PROMISE = CalibrateOptions(checkpoint="c", data="v", out="o", risk=0.3, ood_score="msp")
OF_LABELS = PROMISE.but(risk=None)


def drawn(name: str, rows: int, seed: int, strength: float = 1.0) -> Outputs:
    """A first member that knows a little, and two others that know more."""
    random = torch.Generator().manual_seed(seed)
    task, classes = TASKS[name], {"single_label": 4, "binary": 1, "multi_label": 3}[name]
    if name == "single_label":
        labels = torch.randint(classes, (rows,), generator=random).numpy()
        signal = np.eye(classes)[labels].astype(np.float64)
    else:
        labels = torch.randint(2, (rows, classes), generator=random).numpy().astype(np.float64)
        signal = 2 * labels - 1
        labels = labels[:, 0] if name == "binary" else labels
    each = [
        known * strength * signal + torch.randn(rows, classes, generator=random).numpy()
        for known in (1.0, 1.8, 2.2)
    ]
    return task.outputs(Outputs(np.stack(each, axis=1).astype(np.float32), None, labels))


def fitted(task: Task, whole: Outputs, promise: CalibrateOptions) -> State:
    state, _ = fit_state(whole, promise, Grounds(), task=task)
    return fit_cascade(state, whole.among([0]), whole, promise)


def losses(task: Task, state: State, outputs: Outputs) -> ndarray:
    chances = task.chances(state.answers(outputs.logits))
    of_truth = chances[np.arange(len(chances)), outputs.truth.flatten().astype(np.int64)]
    return -np.log(of_truth).reshape(len(outputs.logits), -1).mean(axis=1)


@pytest.mark.parametrize("name", ["single_label", "binary", "multi_label"])
def test_the_fewest_go_on_that_keep_the_nll(name: str) -> None:
    task, whole = TASKS[name], drawn(name, 400, seed=1)
    promise = OF_LABELS if name == "multi_label" else PROMISE
    state = fitted(task, whole, promise)
    cascade = state.cascade
    fitting = split(whole, 0).fitting
    every = whole.at(fitting)
    first, rule = every.among([0]), state.stages[True]
    probabilities = rule.answers(first.logits)
    sure = probabilities.max(axis=-1)
    if name == "multi_label":
        sure = np.stack([probabilities, 1 - probabilities]).max(axis=0).min(axis=1)
    unfamiliar = rule.ood_score(first.logits, None) > state.record.ood.threshold
    early, late = losses(task, rule, first), losses(task, state, every)
    shares = []
    for threshold in sure.tolist():
        going = (sure < threshold) | unfamiliar
        rise = float(np.where(going, late, early).mean() - late.mean())
        if rise <= MAX_LOSS:
            shares.append(float(going.astype(np.float64).mean()))
    going = (sure < cascade.threshold) | unfamiliar
    assert float(going.astype(np.float64).mean()) == min(shares)
    assert 0 < min(shares) < 1
    parts = in_stages(state, whole.among([0]), whole)
    assert cascade.share_on == len(parts[1].rows) / 400


def test_the_first_is_calibrated_alone() -> None:
    task, whole = TASKS["single_label"], drawn("single_label", 400, seed=2)
    state = fitted(task, whole, PROMISE)
    fitting = split(whole, 0).fitting
    alone = whole.among([0]).at(fitting)
    cascade = state.cascade
    assert cascade.temperature == temperature_of(alone.logits, alone.truth)
    parts = in_stages(state, whole.among([0]), whole)
    answers = answers_in_stages(state, parts)
    by_hand = calibrated(whole.logits[:, :1], cascade.temperature)
    np.testing.assert_allclose(answers[parts[0].rows], by_hand[parts[0].rows])
    assert np.array_equal(answers[parts[1].rows], state.answers(whole.logits)[parts[1].rows])


def test_promises_hold_for_the_answers_of_both_stages() -> None:
    """On fresh samples, over draws: coverage on average, the risk nearly always, what is flagged."""
    task, covered, broken, flagged = TASKS["single_label"], [], 0, []
    for seed in range(20):
        state = fitted(task, drawn("single_label", 300, seed=seed), PROMISE)
        fresh = drawn("single_label", 2000, seed=1000 + seed)
        decided = decide_in_stages(state, in_stages(state, fresh.among([0]), fresh))
        assert {*decided.members_run.tolist()} == {1, 3}
        covered.append(
            float(
                np.take_along_axis(decided.sets, fresh.truth[:, None], 1).astype(np.float64).mean()
            )
        )
        wrong = decided.labels != fresh.truth
        answered = ~decided.abstain & ~decided.unfamiliar
        broken += float(wrong[answered].astype(np.float64).mean()) > 0.3
        flagged.append(float(decided.unfamiliar.astype(np.float64).mean()))
    assert 0.89 <= sum(covered) / 20 <= 0.93
    assert broken <= 3
    assert sum(flagged) / 20 <= 0.055


def test_a_first_that_knows_nothing_answers_nothing() -> None:
    task, whole = TASKS["single_label"], drawn("single_label", 400, seed=3)
    random = torch.Generator().manual_seed(0)
    blind = torch.randn(400, 1, 4, generator=random).numpy()
    whole = Outputs(np.concatenate([blind, 3 * whole.logits[:, 1:]], axis=1), None, whole.labels)
    state = fitted(task, whole, PROMISE)
    assert state.cascade.share_on > 0.9
