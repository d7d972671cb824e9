"""The report's entities: each type, what errors there are, and sentences, from answers made by hand."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from hydrasurgeon.data.words import Words
from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.problems.entities import JudgedTokens
from hydrasurgeon.report.entities import balance, entity_examples, entity_tables

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


class Texts:
    """Four words each; one of them is hostile."""

    texts: tuple[str, ...] = (
        "Ada Byron saw London",
        f"Ada Byron\n{NASTY} Rome",
        Words("New-York by Ada Byron", ((0, 8), (9, 11), (12, 15), (16, 21))),
        "oh Ada",
    )

    def __len__(self) -> int:
        return 4

    def name(self, i: int) -> int:
        return i

    def read(self, i: int) -> Words:
        text = self.texts[i]
        if isinstance(text, Words):
            return text
        return Words(text, tuple(match.span() for match in re.finditer(r"\S+", text)))


def test_tables_are_counted_by_hand() -> None:
    rows = [(0, "one", Answered(judged(TAGS))), (1, "right", Answered(judged(LABELS)))]
    types, errors, confused = entity_tables(rows, 0, NAMES)
    found = dict(zip(types.names, types.rows, strict=True))
    assert list(found) == ["PER", "LOC"]  # the worst first
    assert [cell.values[0] for cell in found["PER"]] == pytest.approx(
        [4, 1 / 3, 1 / 4, 2 / 7, 1, 1, 1]
    )
    assert [cell.values[0] for cell in found["LOC"]] == pytest.approx(
        [2, 1 / 3, 1 / 2, 2 / 5, 1, 1, 1]
    )
    counts = {
        name: [int(cell.text) for cell in row]
        for name, row in zip(errors.names, errors.rows, strict=True)
    }
    assert counts == {
        "right": [2, 6],
        "wrong boundaries": [1, 0],
        "wrong type": [1, 0],
        "wrong type and boundaries": [1, 0],
        "invented": [1, 0],
        "missed": [1, 0],
    }
    pairs = {
        name: [int(cell.text) for cell in row]
        for name, row in zip(confused.names, confused.rows, strict=True)
    }
    assert pairs == {
        name: [1, 0] for name in ("LOC → PER", "PER → LOC", "nothing → LOC", "PER → nothing")
    }
    assert balance(judged(TAGS), NAMES) == "6 entities in 4 texts: 4 PER, 2 LOC."
    sure, right = judged(TAGS).sure()
    assert sure.tolist() == pytest.approx([0.99, 0.3, 0.6, 0.9, 0.8, 0.7])
    assert right.tolist() == [True, True, False, False, False, False]


def test_sentences_show_the_surest_errors_first() -> None:
    samples: Any = Texts()
    groups = {
        each.kind: each.samples for each in entity_examples(Answered(judged(TAGS)), samples, NAMES)
    }
    mistakes = groups["surest mistakes"]
    assert [(each.answer, each.truth, each.confidence, each.more) for each in mistakes] == [
        ("LOC: Rome", "no entity", "90.0 %", "invented"),
        ("PER: New-York", "LOC: New-York", "80.0 %", "wrong type"),
        ("LOC: Ada", "PER: Ada Byron", "70.0 %", "wrong type and boundaries"),
        ("PER: Ada", "PER: Ada Byron", "60.0 %", "wrong boundaries"),
    ]
    assert mistakes[0].text == (
        '<mark class="c0">Ada <small>PER</small></mark> Byron &lt;script&gt;alert(1)&lt;/script&gt;'
        '\\u202e <mark class="c1 wrong">Rome <small>LOC</small></mark>'
    )
    (missed,) = groups["surely missed"]
    assert (missed.answer, missed.truth, missed.confidence) == ("no entity", "PER: Ada", "95.0 %")
    assert missed.text == 'oh <mark class="c0 missed">Ada <small>PER</small></mark>'
    assert [each.confidence for each in groups["least sure"]][:2] == ["30.0 %", "60.0 %"]
    assert groups["least sure"][0].correct
