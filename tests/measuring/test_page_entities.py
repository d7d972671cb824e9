"""The report's entities: each type, what errors there are, and sentences, from answers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hydrasurgeon.measuring.measure import Answered
from hydrasurgeon.problems.entities import JudgedTokens
from hydrasurgeon.report.entities import balance, entity_tables

NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
NASTY = "<script>alert(1)</script>\u202e"
LABELS = [[1, 2, 0, 3], [1, 2, 0, 0], [3, 0, 1, 2], [0, 1, -1, -1]]
TAGS = [[1, 2, 0, 3], [1, 0, 0, 3], [1, 0, 3, 0], [0, 0, -1, -1]]
CHANCES = [[0.99, 0, 0, 0.3], [0.6, 0, 0, 0.9], [0.8, 0, 0.7, 0], [0, 0, 0, 0]]


def judged(tags: list[list[int]]) -> JudgedTokens:
    nothing = np.zeros((4, 4))
    confidence = np.full((4, 4), 0.5)
    confidence[3, 1] = 0.95
    return JudgedTokens(
        labels=np.array(LABELS),
        tags=np.array(tags),
        right=np.array(tags) == np.array(LABELS),
        chances=np.array(CHANCES),
        confidence=confidence,
        nll=nothing,
        mutual_information=nothing,
        disagreement=nothing,
    )


def test_tables_are_counted_by_hand() -> None:
    rows = [(0, "one", Answered(judged(TAGS))), (1, "right", Answered(judged(LABELS)))]
    (types,) = entity_tables(rows, 0, NAMES)
    found = dict(zip(types.names, types.rows, strict=True))
    assert list(found) == ["PER", "LOC"]  # the worst first
    assert [float(cell.text) for cell in found["PER"]] == pytest.approx(
        [4, 1 / 3, 1 / 4, 2 / 7, 1, 1, 1], abs=6e-4
    )
    assert [float(cell.text) for cell in found["LOC"]] == pytest.approx(
        [2, 1 / 3, 1 / 2, 2 / 5, 1, 1, 1], abs=6e-4
    )
    assert balance(judged(TAGS), NAMES) == "6 entities in 4 texts: 4 PER, 2 LOC."
    sure, right = judged(TAGS).sure()
    assert sure.tolist() == pytest.approx([0.99, 0.3, 0.6, 0.9, 0.8, 0.7])
    assert right.tolist() == [True, True, False, False, False, False]
