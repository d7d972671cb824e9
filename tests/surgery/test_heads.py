"""Kept heads, masks, orders: property tests and worked examples."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hydrasurgeon.heads import (
    Head,
    all_heads,
    intersect_union,
    kept_from_mask,
    positions,
    removal_order,
)

masks = st.integers(1, 5).flatmap(
    lambda heads: st.lists(
        st.lists(st.booleans(), min_size=heads, max_size=heads), min_size=1, max_size=5
    )
)


@given(masks)
def test_mask_round_trip(rows: list[list[bool]]) -> None:
    kept = kept_from_mask(np.array(rows))
    assert [[h in row for h in range(len(rows[0]))] for row in kept] == rows


@given(st.sets(st.integers(0, 11)), st.data())
def test_positions_undo_the_slice(present: set[int], data: st.DataObject) -> None:
    row = sorted(present)
    wanted = data.draw(st.lists(st.sampled_from(row), unique=True)) if row else []
    assert [row[i] for i in positions(row, wanted)] == wanted


def test_intersection_and_union() -> None:
    members = [{"v": ((0, 1), (2,))}, {"v": ((1, 3), ())}]
    assert intersect_union(members) == ({"v": ((1,), ())}, {"v": ((0, 1, 3), (2,))})


def test_removal_order_breaks_ties_by_place() -> None:
    kept = {"v": ((0, 1), (0, 1))}
    scores = {"v": [[0.5, 0.1], [0.1, 0.0]]}
    assert removal_order(scores, all_heads(kept)) == [
        Head("v", 1, 1),
        Head("v", 0, 1),
        Head("v", 1, 0),
        Head("v", 0, 0),
    ]
