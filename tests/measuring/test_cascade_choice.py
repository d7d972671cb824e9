"""How a cascade is chosen: measures and intervals against plain loops, and what must follow from what was asked for."""

from __future__ import annotations

import pytest
import torch
from promised import promise

from hydrasurgeon.decision.cascaded import in_steps
from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.errors import UsageError
from hydrasurgeon.measuring.cascades.choice import Sides, drops_of, intervals
from hydrasurgeon.measuring.cascades.fit import CascadeFit, MacsOf, answers_of
from hydrasurgeon.measuring.cost import StepMacs
from hydrasurgeon.problems.base import Outputs
from hydrasurgeon.statistics.conformal import prediction_sets
from hydrasurgeon.statistics.metrics import auroc, fpr95

MACS = MacsOf(1000, 2300, lambda starters: StepMacs(800 * len(starters), 800 * (3 - len(starters))))


def some_sides(seed: int, count: int = 60) -> Sides:
    random = torch.Generator().manual_seed(seed)

    def scores(rows: int) -> torch.Tensor:
        return torch.rand(rows, generator=random).double().round(decimals=1)  # many ties

    return Sides(scores(count) < 0.9, scores(count), scores(count), (scores(25) + 0.3, scores(31)))


def answerable(sides: Sides) -> list[float]:
    """Shares that can be answered with at most 5 % of the answers wrong."""
    answered = [sides.confidence >= least for least in sides.confidence.unique()]
    return [
        float(some.double().mean())
        for some in answered
        if (~sides.correct[some]).double().mean() <= 0.05 + 1e-12
    ]


def slowly(sides: Sides) -> dict[str, float]:
    return {
        "accuracy": float(sides.correct.double().mean()),
        "auroc": sum(auroc(sides.inside, out) for out in sides.outside) / 2,
        "fpr95": sum(fpr95(sides.inside, out) for out in sides.outside) / 2,
        "cov5": max(answerable(sides), default=0.0),
    }


def test_measures_are_those_of_eval() -> None:
    for seed in range(20):
        sides = some_sides(seed)
        assert sides.measures() == pytest.approx(slowly(sides), abs=1e-7)


def test_intervals_resample_the_same_rows_of_both() -> None:
    one, other = some_sides(1), some_sides(2)
    found = intervals(one, other, seed=3, repeats=40)
    random = torch.Generator().manual_seed(3)
    rows, *foreign = (torch.randint(n, (40, n), generator=random) for n in (60, 25, 31))

    def at(sides: Sides, i: int) -> Sides:
        picked = rows[i]
        outside = tuple(out[f[i]] for out, f in zip(sides.outside, foreign, strict=True))
        return Sides(sides.correct[picked], sides.confidence[picked], sides.inside[picked], outside)

    for name, (low, high) in found.items():
        sign = -100 if name == "fpr95" else 100
        drops = [sign * (slowly(at(other, i))[name] - slowly(at(one, i))[name]) for i in range(40)]
        ends = torch.tensor(drops, dtype=torch.float64).quantile(
            torch.tensor([0.025, 0.975], dtype=torch.float64)
        )
        assert (low, high) == pytest.approx(tuple(ends.tolist()), abs=1e-5)
    same = intervals(one, one, seed=0, repeats=10)
    assert set(same.values()) == {(0.0, 0.0)}


def test_many_labels_lose_micro_f1() -> None:
    """2 TP / (2 TP + FP + FN) of all labels of the samples that were drawn, against sklearn; rows that go on are the
    other's."""
    from sklearn.metrics import f1_score

    random = torch.Generator().manual_seed(0)
    scores, out = (
        torch.rand(2, 40, generator=random).double(),
        torch.rand(2, 15, generator=random).double(),
    )
    truth, first, second = (torch.rand(3, 40, 4, generator=random) < 0.4).unbind()
    one, other = (
        Sides((said & truth).double().sum(-1), s, s, (o,), (said ^ truth).double().sum(-1) / 2)
        for said, s, o in zip((first, second), scores, out, strict=True)
    )
    going = scores[0] > 0.5
    mixed = one.mixed(other, [going, out[0] > 0.5])
    said = torch.where(going[:, None], second, first)
    lost = [
        100 * (f1_score(truth, second, average="micro") - f1_score(truth, said, average="micro"))
    ]
    assert drops_of(mixed, other)["micro_f1"] == pytest.approx(lost[0], abs=1e-9)
    found = intervals(mixed, other, seed=3, repeats=40)
    assert set(found) == {"micro_f1", "auroc", "fpr95"}
    rows = torch.randint(40, (40, 40), generator=torch.Generator().manual_seed(3))
    lost = [
        100
        * (
            f1_score(truth[r], second[r], average="micro")
            - f1_score(truth[r], said[r], average="micro")
        )
        for r in rows
    ]
    ends = torch.tensor(lost, dtype=torch.float64).quantile(
        torch.tensor([0.025, 0.975], dtype=torch.float64)
    )
    assert found["micro_f1"] == pytest.approx(tuple(ends.tolist()), abs=1e-6)


def outputs(seed: int, count: int = 1000, noise: float = 2.0, foreign: bool = False) -> Outputs:
    """Three members whose noise is their own: their mean is better than each."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (count,), generator=random)
    signal = torch.nn.functional.one_hot(labels, 5).double() * (1.0 if foreign else 4.0)
    signal = signal + torch.randn(count, 5, generator=random).double()
    own = torch.randn(count, 3, 5, generator=random).double() * noise
    return Outputs((signal[:, None] + own).float(), None, None if foreign else labels)


def fitted(noise: float) -> CascadeFit:
    val, foreign = outputs(0, noise=noise), [outputs(1, 800, noise, foreign=True)]
    state, _ = fit_state(val, promise=promise(risk=0.3), score="msp")
    return CascadeFit(state, val, foreign, MACS, seed=0)


@pytest.fixture(scope="module")
def differing() -> CascadeFit:
    return fitted(2.0)


@pytest.mark.slow
def test_members_that_agree_need_one_and_it_is_certified() -> None:
    fit = fitted(0.01)
    record, notes = fit.record(promise(cascade=True, max_drop=1.0))
    assert record.certified
    assert record.shares[1] <= 0.02
    assert record.cost.expected == pytest.approx(0.8 + record.shares[1] * 1.6)
    assert not any("too few" in note for note in notes)


def test_budget_and_drop(differing: CascadeFit) -> None:
    fit = differing
    by_budget = {b: fit.record(promise(cascade=True, budget=b))[0] for b in (0.8, 1.2, 1.6)}
    for budget, record in by_budget.items():
        assert record.cost.expected <= budget + 0.1
        assert record.budget == budget
    worst = {b: max(d.drop for d in r.drops.values()) for b, r in by_budget.items()}
    # One member of three that differ loses much; whom it asks when it doubts, little.
    assert worst[0.8] > 3
    assert worst[1.6] < worst[0.8] - 2
    kept, _ = fit.record(promise(cascade=True, max_drop=1.0))
    assert kept.cost.expected > by_budget[0.8].cost.expected
    whole, notes = fit.record(promise(cascade=True, max_drop=0.0))
    if whole.shares[1] == 1:
        assert any("lets every sample through" in note for note in notes)
        assert whole.cost.expected == pytest.approx(2.3)
    with pytest.raises(UsageError, match="no cascade of this hydra costs so little"):
        fit.record(promise(cascade=True, budget=0.5))


def test_promises_hold_on_fresh_data(differing: CascadeFit) -> None:
    """Coverage, the fraction flagged, and the risk of what is answered, of the cascade's own answers."""
    fit = differing
    record, _ = fit.record(promise(cascade=True, budget=1.2))
    cascade, fresh = record, outputs(7, 6000)
    assert fresh.labels is not None
    probs, scores = answers_of(fit.state, cascade, fresh)
    covered = (
        prediction_sets(cascade.conformal, probs).gather(1, fresh.labels[:, None]).double().mean()
    )
    assert 0.87 < float(covered) < 0.94
    assert 0.02 < float((scores > cascade.ood_threshold).double().mean()) < 0.08
    confidence, label = probs.max(dim=-1)
    assert cascade.abstain is not None
    answered = confidence >= cascade.abstain.threshold
    assert float((label != fresh.labels)[answered].double().mean()) <= 0.3
    # The drops that were recorded are those of other fresh data, as far as chance allows.
    _, going = in_steps(fit.state, cascade, fresh.logits, None)
    assert float(going.double().mean()) == pytest.approx(record.shares[1], abs=0.05)
    full = fit.state.answers(fresh.logits).argmax(dim=-1) == fresh.labels
    drop = 100 * float(full.double().mean() - (label == fresh.labels).double().mean())
    assert record.drops["accuracy"].low - 1 < drop < record.drops["accuracy"].high + 1


def test_drops_are_losses() -> None:
    better, worse = some_sides(1), some_sides(2)
    for name, drop in drops_of(worse, better).items():
        sign = -1 if name == "fpr95" else 1
        assert drop == pytest.approx(100 * sign * (slowly(better)[name] - slowly(worse)[name]))
