"""What the circuit searches are made of: drawn samples, corrected predictions, short attention, batches of texts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from hydrasurgeon.circuits.draw import Drawn, chances
from hydrasurgeon.circuits.engine import _short
from hydrasurgeon.circuits.objective import Objective, Predictions, contributions
from hydrasurgeon.circuits.packed import HALF, pack, unpack
from hydrasurgeon.circuits.path import batched

SIZES = st.just(0.0) | st.floats(1e-30, 100)


@given(st.lists(SIZES, min_size=2, max_size=40), st.floats(0.05, 0.5), st.floats(0.5, 1))
def test_chances_follow_size_up_to_certainty(sizes: list[float], few: float, more: float) -> None:
    size = torch.tensor(sizes, dtype=torch.float64)
    size = size + (0.1 * size.mean() if float(size.sum()) else 1)  # as the search does: none is 0
    low, high = chances(size, few), chances(size, more)
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
        first = drawn.up_to(chances(size, 0.2), order)
        second = drawn.up_to(chances(size, 0.5), order)
        assert not set(first.tolist()) & set(second.tolist())
        assert int(drawn.taken.sum()) == len(first) + len(second)
        estimates.append(float((value / drawn.chance)[drawn.taken].sum()))
        drawn_often += drawn.taken
    assert sum(estimates) / 3000 == pytest.approx(float(value.sum()), rel=5e-3)
    torch.testing.assert_close(drawn_often / 3000, chances(size, 0.5), rtol=0, atol=0.04)
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

    before = Predictions(some(n) + 0.5, some(n), some(m))
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
    effects = Predictions(torch.randn(3, 4).half(), torch.randn(3, 4).half(), torch.randn(3, 2).half())  # fmt: skip
    back = unpack(pack(effects, HALF), HALF)
    for name in ("margin", "familiar", "foreign"):
        assert torch.equal(getattr(back, name).view(3, -1), getattr(effects, name))
