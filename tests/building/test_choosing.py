"""Members chosen together: every objective is eval's own metric, and the choice is what a slow, plain search finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import get_args

import pytest
import torch
from drawn_answers import CANDIDATES, CLASSES, ROWS, answers
from hydrasurgeon.stages.build.choice import Answers, Objective, Pool, choose, estimate
from hydrasurgeon.stages.build.comparing import measured
from hydrasurgeon.stages.build.cost import parse_budgets

from hydrasurgeon.decision.scores.on_logits import ON_LOGITS
from hydrasurgeon.errors import UsageError
from hydrasurgeon.measuring import metrics
from hydrasurgeon.options.making import Objective as Goal


def pool(name: str, everyone: Sequence[Answers]) -> Pool:
    return Pool.gathered(Objective(name), iter(everyone), len(everyone))


def plainly(name: str, members: Sequence[Answers]) -> float:
    """By eval's metrics, in float64, from the logits."""
    logits = torch.stack([m.val for m in members], dim=1)
    foreign = [torch.stack(rows, dim=1) for rows in zip(*(m.foreign for m in members), strict=True)]
    probs, labels = metrics.mean_probs(logits), members[0].labels
    accuracy = metrics.accuracy(probs, labels)
    if name in ("acc", "nll"):
        return accuracy if name == "acc" else -metrics.nll(probs, labels)
    score = "msp" if name in ("avg", "ood") else name
    inside = ON_LOGITS[score](logits, 1.0)
    areas = [metrics.auroc(inside, ON_LOGITS[score](rows, 1.0)) for rows in foreign]
    area = sum(a for a in areas if a is not None) / len(areas)
    return (accuracy + area) / 2 if name == "avg" else area


@pytest.mark.parametrize("name", get_args(Goal))
def test_objectives_are_evals_metrics(name: str) -> None:
    everyone = answers()
    summed = pool(name, everyone)
    for members in ([2], [0, 5], [1, 2, 6]):
        expected = plainly(name, [everyone[i] for i in members])
        assert summed.worth(members) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["avg", "nll", "mi"])
@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_forward_selection_and_swaps(name: str, seed: int) -> None:
    everyone = answers(seed)

    def worth(members: Sequence[int]) -> float:
        return plainly(name, [everyone[i] for i in members])

    def affordable(members: Sequence[int]) -> bool:
        return sum(1 + i % 3 for i in members) <= 6

    chosen: list[int] = []
    best: dict[int, tuple[int, ...]] = {}
    while len(chosen) < 5:
        options = [i for i in range(CANDIDATES) if i not in chosen and affordable([*chosen, i])]
        if not options:
            break
        chosen.append(max(options, key=lambda i: worth([*chosen, i])))
        improved = len(chosen) > 1
        while improved:
            improved = False
            for place in range(len(chosen)):
                for other in range(CANDIDATES):
                    swapped = [*chosen[:place], other, *chosen[place + 1 :]]
                    if (
                        other not in chosen
                        and affordable(swapped)
                        and worth(swapped) > worth(chosen) + 1e-9
                    ):
                        chosen, improved = swapped, True
        best[len(chosen)] = max(
            best.get(len(chosen), tuple(chosen)), tuple(sorted(chosen)), key=worth
        )
    summed = pool(name, everyone)
    choice = choose(summed, pools=[range(CANDIDATES)], affordable=affordable, members=None)
    assert choice is not None
    assert affordable(choice.members)
    assert choice.value == pytest.approx(worth(choice.members), abs=1e-6)
    # The most members among those that the samples cannot tell from the best.
    top = max(best.values(), key=worth)
    within = {
        size: lost <= error
        for size, (lost, error) in ((k, summed.difference(top, m)) for k, m in best.items())
    }
    size = max(k for k in best if within[k] or k == len(top))
    assert len(choice.members) == max(size, len(top))
    assert choice.value >= worth(best[len(choice.members)]) - 1e-6


def test_swaps_leave_what_forward_selection_cannot() -> None:
    """Two that are worth nothing alone and everything together: the best single one is none of them."""
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])

    def sure(of_first: Sequence[float]) -> Answers:
        first = torch.tensor(of_first, dtype=torch.float32)
        return Answers(torch.stack([first, -first], dim=1), labels)

    one, other = sure([9, 9, -4, 1, 4, -9, -9, -1]), sure([-4, 1, 9, 9, -9, 4, -1, -9])
    plain = sure([3, 3, 3, -3, -3, -3, 3, -3])
    everyone = [plain, one, other]
    summed = pool("acc", everyone)
    best = max(combinations(range(3), 2), key=summed.worth)
    choice = choose(summed, pools=[range(3)], affordable=lambda members: True, members=2)
    assert choice is not None
    assert choice.members == best
    assert best == (1, 2)


def test_an_average_of_several_is_taken_where_samples_cannot_tell() -> None:
    """One member is best by chance; by more than chance it is taken."""
    labels = torch.arange(400) % 2
    truth = torch.stack([1 - labels, labels], dim=1).float()

    def candidate(wrong: Sequence[int]) -> Answers:
        logits = 4 * truth
        logits[list(wrong)] = logits[list(wrong)].flip(-1)
        return Answers(logits, labels)

    def size(best: int) -> int:
        everyone = [candidate(range(best)), candidate(range(100, 124)), candidate(range(100, 123))]
        choice = choose(pool("acc", everyone), pools=[[0], [1, 2]], affordable=lambda m: True)
        assert choice is not None
        return len(choice.members)

    assert size(22) == 2
    assert size(0) == 1


def test_the_error_of_a_difference() -> None:
    everyone = answers()
    summed = pool("acc", everyone)
    lost, error = summed.difference([0, 1], [2])
    right = [summed.sums(m)[0].argmax(dim=-1) == summed.labels for m in ([0, 1], [2])]
    each = right[0].double() - right[1].double()
    assert lost == pytest.approx(float(each.mean()))
    assert error == pytest.approx(float(each.std()) / len(each) ** 0.5, rel=0.4)


def test_a_guard_is_drawn_with_its_samples() -> None:
    """Who is right about every sample is right about every draw of them."""
    labels = torch.arange(60) % 3
    sure = Answers(9 * torch.eye(3)[labels], labels, (torch.zeros(20, 3),))
    accuracies: list[float] = []

    class Watched(Objective):
        def value(self, sums: Sequence[torch.Tensor], members: int, labels: torch.Tensor) -> float:
            accuracies.append(float((sums[-1].argmax(dim=-1) == labels).double().mean()))
            return super().value(sums, members, labels)

    Pool.gathered(Watched("energy", 1.0), iter([sure, sure]), 2).difference([0], [1])
    assert len(accuracies) > 10
    assert set(accuracies) == {1.0}


@pytest.mark.parametrize("members", [1, 2, 4])
def test_so_many_members_as_asked(members: int) -> None:
    choice = choose(
        pool("nll", answers()),
        pools=[range(CANDIDATES)],
        affordable=lambda m: True,
        members=members,
    )
    assert choice is not None
    assert len(choice.members) == members == len(set(choice.members))


@pytest.mark.parametrize("name", ["ood", "energy", "max-logit", "gen"])
def test_accuracy_has_a_floor(name: str) -> None:
    """What detects OOD data best is not taken where it no longer knows in-distribution data; what is reported has no
    penalty."""
    everyone = answers()
    plain = pool(name, everyone)
    best = max(range(CANDIDATES), key=lambda i: plain.worth([i]))
    accuracies = [measured([a])["accuracy"] for a in everyone]
    floor = sorted(accuracies)[-2]
    assert accuracies[best] < floor
    held = Pool.gathered(Objective(name, floor), iter(everyone), CANDIDATES)
    choice = choose(held, pools=[range(CANDIDATES)], affordable=lambda m: True, members=1)
    assert choice is not None
    able = [i for i in range(CANDIDATES) if accuracies[i] >= floor]
    assert choice.members == (max(able, key=lambda i: plain.worth([i])),)
    assert held.plainly(choice.members) == plain.worth(choice.members)
    assert held.worth([best]) == pytest.approx(
        plain.worth([best]) - 10 * (floor - accuracies[best]), abs=1e-6
    )


def test_nothing_within_the_budget() -> None:
    assert (
        choose(pool("nll", answers()), pools=[range(3)], affordable=lambda members: False) is None
    )


def test_noise_is_not_taken_for_a_gain() -> None:
    """The best of many models that guess looks better than chance where it was chosen, and is not elsewhere."""
    random = torch.Generator().manual_seed(3)
    labels = torch.randint(CLASSES, (400,), generator=random)
    guessing = [Answers(torch.randn(400, CLASSES, generator=random), labels) for _ in range(40)]
    judged = estimate(pool("acc", guessing), pools=[range(40)], affordable=lambda members: True)
    assert judged is not None
    assert judged.optimism > 0.03
    assert judged.value == pytest.approx(1 / CLASSES, abs=0.04)


def test_halves_are_parts_of_the_whole() -> None:
    everyone = answers()
    whole = pool("acc", everyone)
    first, rest = whole.halves()
    worth = (first.worth([1, 3]) * len(first.labels) + rest.worth([1, 3]) * len(rest.labels)) / ROWS
    assert worth == pytest.approx(whole.worth([1, 3]), abs=1e-12)
    one, other = everyone[1].halves()
    assert torch.equal(torch.cat([one.val, other.val]), everyone[1].val)
    assert torch.equal(first.labels, one.labels)


def test_rows_are_evals_metrics() -> None:
    everyone = answers()[:2]
    row = measured(everyone)
    logits = torch.stack([a.val for a in everyone], dim=1)
    probs, labels = metrics.mean_probs(logits), everyone[0].labels
    for name, metric in (
        ("accuracy", metrics.accuracy),
        ("nll", metrics.nll),
        ("ece", metrics.ece),
    ):
        assert row[name] == pytest.approx(metric(probs, labels))
    assert row["auroc"] == pytest.approx(plainly("ood", everyone), abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "1.5",
        "macs",
        "macs=",
        "macs=0",
        "macs=-1",
        "macs=1,,2",
        "time=3",
        "macs=1e99",
        "macs=nan",
        "ms=20",
    ],
)
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        parse_budgets(text)


def test_a_list_of_budgets_is_a_rising_front() -> None:
    assert [str(budget) for budget in parse_budgets("params=2,1.25,1.25")] == [
        "params=1.25",
        "params=2",
    ]
