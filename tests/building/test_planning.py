"""What build says of its stages before it begins, and of where it is."""

from __future__ import annotations

import pytest

from hydrasurgeon.building.plan import Plan, Step, counted, in_words


def test_the_stages_are_told_with_the_time_of_all() -> None:
    steps = [Step("taylor", "scores by taylor", 30), Step("made", "make what is chosen", 1200)]
    said: list[tuple[str, int, int]] = []
    plan = Plan(steps, 0.5, lambda *told: said.append(told))
    assert plan.lines == (
        "2 stages, about 10 min in all on this machine",
        "1. scores by taylor: 30 forward passes",
        "2. make what is chosen: 1,200 forward passes",
    )
    plan.begin("made")
    plan.tick("demo:val", 1, 4)
    assert said == [("stage 2 of 2; demo:val", 1, 4)]


@pytest.mark.parametrize(("count", "text"), [(1, "1 candidate"), (0, "0 candidates")])
def test_one_is_no_plural(count: int, text: str) -> None:
    assert counted(count, "candidate") == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "about 1 s"), (240, "about 4 min"), (9000, "about 2.5 h")]
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert in_words(seconds) == text
