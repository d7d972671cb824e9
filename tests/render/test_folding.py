"""Sentences break between words on a terminal; what a user copies stays whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hydrasurgeon.render.console import folded, styled


def lines(text: str, width: int | None, hang: int | None = None) -> list[str]:
    return [line.plain for line in folded(styled((text, "bold")), width, hang)]


def test_a_command_stays_whole() -> None:
    hint = "       Run `hydrasurgeon score --data D vit.safetensors` first, or give --data D here."
    assert lines(hint, 40, 7) == [
        "       Run",
        "       `hydrasurgeon score --data D vit.safetensors`",
        "       first, or give --data D here.",
    ]


@pytest.mark.parametrize("text", ["", "short", "x" * 200, " " * 50])
def test_what_needs_no_folding(text: str) -> None:
    assert "".join(lines(text, None)) == text
    assert [line.strip() for line in lines(text, 40)] == [text.strip()]


@given(st.lists(st.text("ab模`[/]", min_size=1, max_size=9), max_size=30), st.integers(1, 60))
def test_words_come_out_as_they_went_in(words: list[str], width: int) -> None:
    text = " ".join(words)
    made = lines(text, width, 3)
    assert " ".join(line.strip() for line in made).split() == text.split()
    for line in made:
        assert cell_len(line) <= width or "`" in line or len(line.split()) == 1
