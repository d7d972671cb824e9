"""Weights of chosen members: the optimum by a grid, the guard by plain loops, taken where one member is good, not where
all are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawn_answers import answers

from hydrasurgeon.criteria.together.choice import Pool
from hydrasurgeon.criteria.together.mixing import RESAMPLES, fitted, mixture_for, of_truth, weigh
from hydrasurgeon.criteria.together.objective import OBJECTIVES, Answers, objective_of
from hydrasurgeon.criteria.together.row import measured
from hydrasurgeon.decision.scores.on_logits import ON_LOGITS
from hydrasurgeon.files.mixture import parse_mixture
from hydrasurgeon.measuring import metrics

WEIGHTS = (0.6, 0.3, 0.1)


def noisy(rows: int = 400) -> list[Answers]:
    """One member that knows the classes, and two that answer surely and at random."""
    random = torch.Generator().manual_seed(5)
    labels = torch.randint(4, (rows,), generator=random)

    def drawn() -> torch.Tensor:
        return torch.randn(rows, 4, generator=random)

    def foreign() -> tuple[torch.Tensor, ...]:
        return (torch.randn(rows // 2, 4, generator=random),)

    good = 3 * torch.nn.functional.one_hot(labels, 4) + drawn()
    return [Answers(good, labels, foreign()), *(Answers(4 * drawn(), labels, foreign()) for _ in range(2))]


def nll(members: list[Answers], weights: np.ndarray) -> float:
    total = 0.0
    for row in of_truth(members).numpy():
        total -= np.log(sum(w * p for w, p in zip(weights, row, strict=True)))
    return total / len(members[0].labels)


@pytest.mark.parametrize("members", [answers(count=3), noisy(120)], ids=["alike", "noisy"])
def test_the_fit_has_the_smallest_nll_of_a_grid(members: list[Answers]) -> None:
    best = fitted(of_truth(members)).numpy()
    assert best.sum() == pytest.approx(1)
    steps = np.linspace(0, 1, 21)
    grid = [np.array([a, b, 1 - a - b]) for a in steps for b in steps if a + b < 1 + 1e-9]
    assert nll(members, best) <= min(nll(members, np.abs(each)) for each in grid) + 1e-6
    near = [best + 0.01 * (np.eye(3)[i] - np.eye(3)[j]) for i in range(3) for j in range(3) if i != j]
    assert all(nll(members, each) > nll(members, best) for each in near if (each > 0).all())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_weighted_objectives_are_evals_metrics(name: str) -> None:
    members = answers(count=3)
    pool = Pool.gathered(objective_of(name), iter(members), 3)
    found = pool.objective.value(pool.sums(range(3), WEIGHTS), 3, pool.labels)
    logits = torch.stack([m.val for m in members], dim=1)
    foreign = [torch.stack(rows, dim=1) for rows in zip(*(m.foreign for m in members), strict=True)]
    probs, labels = metrics.mean_probs(logits, mixture=WEIGHTS), members[0].labels
    score = ON_LOGITS["msp" if name in ("acc", "nll", "avg", "ood") else name]
    areas = [metrics.auroc(score(logits, 1.0, WEIGHTS), score(rows, 1.0, WEIGHTS)) or 0 for rows in foreign]
    area, accuracy = sum(areas) / 2, metrics.accuracy(probs, labels)
    expected = {"acc": accuracy, "nll": -metrics.nll(probs, labels), "avg": (accuracy + area) / 2}
    assert found == pytest.approx(expected.get(name, area), abs=1e-6)
    assert found != pytest.approx(pool.worth(range(3)), abs=1e-9)
    assert measured(members, WEIGHTS)["nll"] == pytest.approx(-expected["nll"], abs=1e-12)


@pytest.mark.parametrize("name", ["nll", "avg"])
def test_one_good_member_among_noise_is_weighed(name: str) -> None:
    weighed = weigh(objective_of(name), noisy())
    record = weighed.to_json()
    assert record["taken"]
    assert record["fitted"][0] > 0.85
    assert record["gain"] > 3 * record["se"] > 0


def test_the_gain_is_what_each_half_says_of_the_others_weights() -> None:
    members = noisy()
    first, second = zip(*(each.halves() for each in members), strict=True)
    gains = []
    for fitting, judging in ((first, second), (second, first)):
        mixture = mixture_for(fitting)
        assert mixture is not None
        gains.append(nll(list(judging), np.full(3, 1 / 3)) - nll(list(judging), np.array(mixture)))
    weighed = weigh(objective_of("nll"), members)
    assert weighed.gain == pytest.approx(sum(gains) / 2, abs=1e-5)
    # Of a mean over samples the standard error is known.
    each = of_truth(members).numpy()
    apart = np.log(each @ np.array(mixture_for(members))) - np.log(each.mean(axis=1))
    assert weighed.error == pytest.approx(apart.std() / len(each) ** 0.5, rel=4 / (2 * RESAMPLES) ** 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_members_that_are_equally_good_count_alike(seed: int) -> None:
    """What weights find in so few samples is noise."""
    weighed = weigh(objective_of("nll"), answers(seed, rows=100, count=3))
    assert not weighed.taken
    assert parse_mixture(weighed.text, 3) is not None
