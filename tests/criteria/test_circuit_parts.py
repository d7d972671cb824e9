"""What the circuit searches are made of: drawn samples, corrected predictions, short attention, batches of texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hydrasurgeon.criteria.circuits.engine import _short
from hydrasurgeon.criteria.circuits.fast import Drawn, Look, inclusion_probabilities
from hydrasurgeon.criteria.circuits.greedy import HALF, Packed, pack, unpack
from hydrasurgeon.criteria.circuits.objective import Objective, Outcomes, contributions
from hydrasurgeon.criteria.circuits.race import Runner, batched
from hydrasurgeon.heads import Head

SIZES = st.just(0.0) | st.floats(1e-30, 100)


@given(st.lists(SIZES, min_size=2, max_size=40), st.floats(0.05, 0.5), st.floats(0.5, 1))
def test_chances_follow_size_up_to_certainty(sizes: list[float], few: float, more: float) -> None:
    size = torch.tensor(sizes, dtype=torch.float64)
    size = size + (0.1 * size.mean() if float(size.sum()) else 1)  # as the search does: none is 0
    low, high = inclusion_probabilities(size, few), inclusion_probabilities(size, more)
    for chance, share in ((low, few), (high, more)):
        assert float(chance.sum()) == pytest.approx(share * len(sizes))
        assert float(chance.min()) > 0
        assert float(chance.max()) <= 1 + 1e-12
        unsure = chance < 1 - 1e-9
        ratio = chance[unsure] / size[unsure]
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    assert bool((high >= low - 1e-12).all())


def test_drawn_samples_stand_for_all() -> None:
    """Whatever the chances, drawn values over their chances add up to the whole on average; no sample comes twice."""
    generator = torch.Generator().manual_seed(0)
    size = torch.rand(60, generator=generator, dtype=torch.float64) + 0.05
    value = size * (1 + torch.rand(60, generator=generator, dtype=torch.float64))
    order = value.argsort()
    estimates, drawn_often = [], torch.zeros(60, dtype=torch.float64)
    for seed in range(3000):
        drawn = Drawn.nothing(60, seed)
        first = drawn.up_to(inclusion_probabilities(size, 0.2), order)
        second = drawn.up_to(inclusion_probabilities(size, 0.5), order)
        assert not set(first.tolist()) & set(second.tolist())
        assert int(drawn.taken.sum()) == len(first) + len(second)
        estimates.append(float((value / drawn.chance)[drawn.taken].sum()))
        drawn_often += drawn.taken
    assert sum(estimates) / 3000 == pytest.approx(float(value.sum()), rel=5e-3)
    torch.testing.assert_close(
        drawn_often / 3000, inclusion_probabilities(size, 0.5), rtol=0, atol=0.04
    )
    everything = drawn.up_to(torch.ones(60, dtype=torch.float64), order)
    assert len(everything) == 60 - int(len(first) + len(second))
    assert bool(drawn.taken.all())


@given(st.data())
def test_contributions_are_what_a_single_sample_brings(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["acc", "ood", "avg"]))
    n, m = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    m = 0 if kind == "acc" else m
    objective = Objective(kind, n, m)
    numbers = st.integers(-3, 3).map(float)

    def some(k: int) -> torch.Tensor:
        return torch.tensor(data.draw(st.lists(numbers, min_size=k, max_size=k))).double()[None]

    before = Outcomes(some(n) + 0.5, some(n), some(m))
    after = before.map(torch.clone)
    which = data.draw(st.integers(0, n + m - 1))
    if which < n:
        after.margin[0, which] = data.draw(numbers) + 0.5
        after.familiar[0, which] = data.draw(numbers)
    else:
        after.foreign[0, which - n] = data.draw(numbers)
    (old,), (new,) = objective.points(before), objective.points(after)
    brought = contributions(objective, after, before) - contributions(objective, before, before)
    assert float(brought.sum()) == new.low - old.low
    assert set(brought[0].nonzero().flatten().tolist()) <= {which}


@pytest.mark.parametrize("masked", [False, True])
def test_short_attention(masked: bool) -> None:
    q, k, v = torch.randn(3, 4, 2, 9, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    mask = None
    if masked:
        mask = torch.zeros(4, 1, 1, 9)
        mask[1, ..., 5:] = mask[2, ..., 1:] = torch.finfo(torch.float32).min
    expected = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    found = _short(q, k, v, mask)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for sign in (1, -1):  # exp would overflow, or all of a row vanish
        assert _short(40 * torch.ones_like(q), sign * 40 * torch.ones_like(k), v, mask) is None


def test_texts_of_a_batch_are_alike_in_length() -> None:
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(300, generator=generator)
    lengths = torch.randint(5, 60, (300,), generator=generator)
    parts = batched(False, order, 10, (lengths, None))
    assert sorted(i for part in parts for i in part.index.tolist()) == list(range(300))
    padded = sum(int(lengths[part.index].max()) * len(part.index) for part in parts)
    assert padded < 1.2 * int(lengths.sum())
    assert {i for part in parts[:8] for i in part.index.tolist()} == set(order[:80].tolist())
    plain = batched(True, order, 10, (lengths, None))
    assert torch.equal(torch.cat([part.index for part in plain]), order)


def test_effects_survive_the_disk() -> None:
    effects = Outcomes(torch.randn(3, 4).half(), torch.randn(3, 4).half(), torch.randn(3, 2).half())
    back = unpack(Packed(**pack(effects, HALF)), (12, 12, 6), HALF)
    for name in ("margin", "familiar", "foreign"):
        assert torch.equal(getattr(back, name).view(3, -1), getattr(effects, name))


class Told(Look):
    """Sees what it is told that each candidate does to each sample, and counts how much it asked for."""

    def __init__(self, objective: Objective, truth: Outcomes, **start: Any) -> None:
        problem: Any = SimpleNamespace(objective=objective, tick=lambda share: None)
        heads = [Head("text", 0, i) for i in range(len(truth.margin))]
        super().__init__(Runner(problem, engine=None), heads, **start)  # type: ignore[arg-type]
        self.truth, self.asked = truth, 0

    def _run(self, new: Tensor) -> None:
        self.asked += len(new) * len(self.rows)
        rows, ids = self.rows[:, None], self.problem.objective.id_rows
        index, foreign = new[new < ids], new[new >= ids] - ids
        self.seen.margin[rows, index] = self.truth.margin[rows, index]
        self.seen.familiar[rows, index] = self.truth.familiar[rows, index]
        self.seen.foreign[rows, foreign] = self.truth.foreign[rows, foreign]


def told(kind: Any, seed: int, *, close: int) -> Told:
    """So many of 40 badly guessed candidates are nearly as good as the best; the others do foreseen harm."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    n, m = 800, 0 if kind == "acc" else 400
    present = Outcomes(1.5 + 2 * noise(n), 2 + noise(n), noise(m))
    level = torch.cat([-0.4 - noise(40 - close).abs(), 0.003 * torch.arange(close)])[:, None]
    signs = Outcomes(level, level, -level)
    effect = Outcomes(*(0.3 * noise(40, size) for size in (n, n, m)))
    guessed = present.one().map(lambda now, one, by: now + one + by, effect, signs)
    truth = guessed.map(lambda one: one + 0.2 * noise(*one.shape))
    return Told(Objective(kind, n, m), truth, present=present, guessed=guessed, number=seed)


@pytest.mark.parametrize("kind", ["acc", "avg"])
def test_the_best_is_looked_at_to_the_end(kind: str) -> None:
    """Near-ties are told apart at length, a clear winner at once."""
    asked = {}
    for close in (20, 1):
        found, spent = 0, 0.0
        for seed in range(12):
            look = told(kind, seed, close=close)
            off = look.narrow()
            truth = look._points(look.truth)
            found += bool(truth[look.rows].max() == truth.max())
            spent += look.asked / (12 * look.truth.margin.numel())
            assert 0 <= off < 0.02
            assert bool((look.points == truth)[look.rows].all())
        assert found >= 11
        asked[close] = spent
    assert asked[1] < 0.75 * asked[20]


def test_doubts_are_as_large_as_errors() -> None:
    """How far candidates are behind the best is off by one standard error, typically."""
    off = []
    for seed in range(20):
        look = told("avg", seed, close=20)
        look.at(20, 0.2)
        best = look.rows[int(look.points[look.rows].argmax())]
        points = look._points(look.truth)
        behind = points[best] - points[look.rows]
        seen = look.points[best] - look.points[look.rows]
        off.append(((seen - behind) / look.apart)[look.rows != best])
    errors = torch.cat(off)
    assert 0.6 < float(errors.std()) < 1.2
    assert float((errors.abs() > 3).double().mean()) < 0.01


def test_few_samples_are_looked_at_all_together() -> None:
    look = told("avg", 0, close=20)
    present = look.present.map(lambda part: part[:40])
    guessed, truth = (seen.map(lambda part: part[:, :40]) for seen in (look.guessed, look.truth))
    few = Told(Objective("avg", 40, 40), truth, present=present, guessed=guessed, number=0)
    better = few.points.argsort(descending=True, stable=True)[:20]
    few.narrow()
    assert few.asked == 20 * 80
    points = few._points(truth)
    assert float(points[few.rows].max()) == float(points[better].max())
