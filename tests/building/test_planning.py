"""What build says of its stages before it begins, and of where it is."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hydrasurgeon.building.cache import Workshop
from hydrasurgeon.building.plan import Plan, Step, counted, in_words


def test_the_stages_are_told_with_the_time_of_all() -> None:
    steps = [Step("taylor", "scores by taylor", 30), Step("made", "make what is chosen", 1200)]
    said: list[tuple[str, int, int]] = []
    plan = Plan(steps, 0.5, lambda *told: said.append(told))
    assert plan.lines == (
        "2 stages, about 10 min in all on this machine",
        "1. scores by taylor: 30 forward passes, about 15 s",
        "2. make what is chosen: 1,200 forward passes, about 10 min",
    )
    plan.begin("made")
    plan.tick("demo:val", 1, 4)
    assert said == [("stage 2 of 2; demo:val", 1, 4)]


def test_the_time_left_is_the_stages(tmp_path: Path) -> None:
    """Not that of the repair of one layer, which ends in two seconds; a training tells its own."""
    plan = Plan([], 0.5, None)
    options: Any = SimpleNamespace(device="cpu", track=None)
    state: Any = None
    workshop = Workshop(options, state, plan.tick)
    told: dict[str, Any] = {}

    def ran(stage: str, **more: Any) -> None:
        told[stage] = more["progress"]

    for stage in ("prune", "fuse", "finetune"):
        command: Any = SimpleNamespace(
            stage=stage, out=tmp_path / "out.safetensors", run=partial(ran, stage)
        )
        workshop.perform(command)
    assert told == {"prune": None, "fuse": None, "finetune": plan.tick}


@pytest.mark.parametrize(("count", "text"), [(1, "1 candidate"), (0, "0 candidates")])
def test_one_is_no_plural(count: int, text: str) -> None:
    assert counted(count, "candidate") == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "about 1 s"), (240, "about 4 min"), (9000, "about 2.5 h")]
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert in_words(seconds) == text
