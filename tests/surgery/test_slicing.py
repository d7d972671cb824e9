"""Cutting heads out of tensors: numpy and torch, packed and not, composed and empty."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydrasurgeon.heads import HeadAxis, take_heads

HEAD_DIM = 2


def packed(heads: int, blocks: int = 3, embed: int = 5) -> np.ndarray:
    """Entry [row, column] says which block, head and channel it belongs to."""
    rows = [
        100 * b + 10 * h + d for b in range(blocks) for h in range(heads) for d in range(HEAD_DIM)
    ]
    return np.array(rows)[:, None] + np.zeros(embed, dtype=int)


def test_no_heads_leave_an_empty_tensor() -> None:
    assert take_heads(packed(3), [], spec=HeadAxis(0, 3), head_dim=HEAD_DIM).shape == (0, 5)
    assert take_heads(torch.zeros(7, 6), [], spec=HeadAxis(1), head_dim=HEAD_DIM).shape == (7, 0)


@given(st.lists(st.integers(0, 5), unique=True), st.data())
def test_composed_cuts_are_one_cut(first: list[int], data: st.DataObject) -> None:
    second = (
        data.draw(st.lists(st.integers(0, max(0, len(first) - 1)), unique=True)) if first else []
    )
    spec = HeadAxis(0, 3)
    twice = take_heads(
        take_heads(packed(6), first, spec=spec, head_dim=HEAD_DIM),
        second,
        spec=spec,
        head_dim=HEAD_DIM,
    )
    once = take_heads(packed(6), [first[i] for i in second], spec=spec, head_dim=HEAD_DIM)
    assert np.array_equal(twice, once)


@given(st.lists(st.integers(0, 3), unique=True))
def test_numpy_and_torch_agree(at: list[int]) -> None:
    spec = HeadAxis(0, 3)
    array = packed(4)
    from_torch = take_heads(torch.from_numpy(array), at, spec=spec, head_dim=HEAD_DIM)
    assert np.array_equal(from_torch.numpy(), take_heads(array, at, spec=spec, head_dim=HEAD_DIM))
