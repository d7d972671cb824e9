"""A cascade's threshold by trying all of them, and what is promised of both stages' answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hydrasurgeon.decision.cascade_fit import MAX_LOSS, fit_cascade
from hydrasurgeon.decision.cascaded import (
    answers_in_stages,
    cascade_of,
    decided_in_stages,
    in_stages,
    stage_state,
)
from hydrasurgeon.decision.fitting import fit_state, halves
from hydrasurgeon.decision.state import State
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.problems import PROBLEMS
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.statistics.temperature import calibrated

PROMISE = CalibrateOptions(checkpoint="c", data="v", out="o", risk=0.3, ood_score="msp")
OF_LABELS = PROMISE.but(risk=None)


def drawn(name: str, rows: int, seed: int, strength: float = 1.0) -> Outputs:
    """A first member that knows a little, and two others that know more."""
    random = torch.Generator().manual_seed(seed)
    problem, classes = PROBLEMS[name], {"single_label": 4, "one_logit": 1, "multi_label": 3}[name]
    if name == "single_label":
        labels = torch.randint(classes, (rows,), generator=random)
        signal = torch.nn.functional.one_hot(labels, classes).double()
    else:
        labels = torch.randint(2, (rows, classes), generator=random).double()
        signal = 2 * labels - 1
        labels = labels[:, 0] if name == "one_logit" else labels
    each = [
        known * strength * signal + torch.randn(rows, classes, generator=random)
        for known in (1.0, 1.8, 2.2)
    ]
    return problem.outputs(Outputs(torch.stack(each, dim=1).float(), None, labels))


def fitted(problem: Problem, whole: Outputs, promise: CalibrateOptions) -> State:
    state, _ = fit_state(whole, promise=promise, score="msp", problem=problem)
    return fit_cascade(state, whole.among([0]), whole, promise)


def losses(problem: Problem, state: State, outputs: Outputs) -> Tensor:
    chances = problem.chances(state.answers(outputs.logits))
    of_truth = chances[torch.arange(len(chances)), outputs.truth.flatten().long()]
    return -of_truth.log().reshape(len(outputs.logits), -1).mean(dim=1)


@pytest.mark.parametrize("name", ["single_label", "one_logit", "multi_label"])
def test_the_fewest_go_on_that_keep_the_nll(name: str) -> None:
    problem, whole = PROBLEMS[name], drawn(name, 400, seed=1)
    promise = OF_LABELS if name == "multi_label" else PROMISE
    state = fitted(problem, whole, promise)
    cascade = cascade_of(state)
    fitting, _ = halves(400, 0)
    every = whole.at(fitting)
    first, rule = every.among([0]), stage_state(state, first=True)
    probabilities = rule.answers(first.logits)
    sure = probabilities.max(dim=-1).values
    if name == "multi_label":
        sure = torch.stack([probabilities, 1 - probabilities]).amax(dim=0).amin(dim=1)
    unfamiliar = rule.ood_score(first.logits, None) > state.record.ood.threshold
    early, late = losses(problem, rule, first), losses(problem, state, every)
    shares = []
    for threshold in sure.tolist():
        going = (sure < threshold) | unfamiliar
        rise = float(torch.where(going, late, early).mean() - late.mean())
        if rise <= MAX_LOSS:
            shares.append(float(going.double().mean()))
    going = (sure < cascade.threshold) | unfamiliar
    assert float(going.double().mean()) == min(shares)
    assert 0 < min(shares) < 1
    parts = in_stages(state, whole.among([0]), whole)
    assert cascade.share_on == len(parts[1].rows) / 400


def test_the_first_is_calibrated_alone() -> None:
    problem, whole = PROBLEMS["single_label"], drawn("single_label", 400, seed=2)
    state = fitted(problem, whole, PROMISE)
    fitting, _ = halves(400, 0)
    alone = whole.among([0]).at(fitting)
    cascade = cascade_of(state)
    assert cascade.temperature == problem.temperature(alone.logits, alone.truth)
    parts = in_stages(state, whole.among([0]), whole)
    answers = answers_in_stages(state, parts)
    by_hand = calibrated(whole.logits[:, :1], cascade.temperature)
    torch.testing.assert_close(answers[parts[0].rows], by_hand[parts[0].rows])
    assert torch.equal(answers[parts[1].rows], state.answers(whole.logits)[parts[1].rows])


def test_promises_hold_for_the_answers_of_both_stages() -> None:
    """On fresh samples, over draws: coverage on average, the risk nearly always, what is flagged."""
    problem, covered, broken, flagged = PROBLEMS["single_label"], [], 0, []
    for seed in range(20):
        state = fitted(problem, drawn("single_label", 300, seed=seed), PROMISE)
        fresh = drawn("single_label", 2000, seed=1000 + seed)
        decided = decided_in_stages(state, in_stages(state, fresh.among([0]), fresh))
        assert {*decided.members_run.tolist()} == {1, 3}
        covered.append(float(decided.sets.gather(1, fresh.truth[:, None]).double().mean()))
        wrong = decided.labels != fresh.truth
        answered = ~decided.abstain & ~decided.unfamiliar
        broken += float(wrong[answered].double().mean()) > 0.3
        flagged.append(float(decided.unfamiliar.double().mean()))
    assert 0.89 <= sum(covered) / 20 <= 0.93
    assert broken <= 3
    assert sum(flagged) / 20 <= 0.055


def test_a_first_that_knows_nothing_answers_nothing() -> None:
    problem, whole = PROBLEMS["single_label"], drawn("single_label", 400, seed=3)
    random = torch.Generator().manual_seed(0)
    blind = torch.randn(400, 1, 4, generator=random)
    whole = Outputs(torch.cat([blind, 3 * whole.logits[:, 1:]], dim=1), None, whole.labels)
    state = fitted(problem, whole, PROMISE)
    assert cascade_of(state).share_on > 0.9
