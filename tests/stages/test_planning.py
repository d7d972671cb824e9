"""What build says of the time that is left."""

from __future__ import annotations

import pytest

from hydrasurgeon.stages.build import planning
from hydrasurgeon.stages.build.planning import Plan, Step


def test_a_stage_that_is_one_loop_is_told_by_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [100.0], []
    monkeypatch.setattr(planning.time, "monotonic", lambda: now[0])
    steps = [Step("scores", 10), Step("candidates", 100, loop="candidates"), Step("made", 20)]
    plan = Plan(steps, 1.0, lambda what, done, total: said.append(what))

    def told(what: str, done: int, total: int, *, later: float) -> str:
        now[0] += later
        plan.tick(what, done, total)
        return str(said[-1])

    assert (
        told("gradients", 1, 10, later=4) == "stage 1 of 3, about 2 min left; gradients"
    )  # 6 + 100 + 20 s
    now[0] += 16  # 20 s for 10 passes: 2 s a pass
    plan.begin(1)
    assert (
        told("candidates", 30, 50, later=1) == "stage 2 of 3, about 4 min left; candidates"
    )  # 199 + 40 s as planned
    assert (
        told("candidates", 40, 50, later=10) == "stage 2 of 3, about 50 s left; candidates"
    )  # 10 + 40 s
    plan.begin(2)  # 31 s for 110 passes
    assert (
        told("demo:val", 1, 2, later=1) == "stage 3 of 3, about 5 s left; demo:val"
    )  # 20 * 31 / 110 - 1
