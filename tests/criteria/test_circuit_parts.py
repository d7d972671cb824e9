"""What the circuit searches are made of: short attention, batches of texts."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from hydrasurgeon.criteria.circuits.engine import _short
from hydrasurgeon.criteria.circuits.race import batched


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
