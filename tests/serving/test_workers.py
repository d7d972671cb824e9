"""Several processes that a supervisor keeps: what they report, and what becomes of those that end."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

import pytest

from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.serving import workers
from hydrasurgeon.serving.workers import supervise

pytestmark = pytest.mark.slow


def test_one_that_ends_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Each of these says that it is ready, and ends."""
    ups: list[list[str]] = []
    on_exit: list[int] = []

    def up(notes: list[str]) -> None:
        ups.append(notes)
        if len(ups) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise(methodcaller("send", ["a note"]), 2, up=up, on_exit=on_exit.append)
    assert ups == [["a note"]] * 3
    assert len({*on_exit}) == len(on_exit) >= 1
    assert f"process {on_exit[0]} died (exit code 0) and is replaced" in caplog.messages


@pytest.mark.parametrize(
    ("work", "error", "says"),
    [
        (
            methodcaller("close"),
            UsageError,
            r"a process ended before it could answer \(exit code 0",
        ),
        (methodcaller("send", CheckpointError("no", hint="h")), CheckpointError, "no"),
    ],
)
def test_what_cannot_load_at_first_ends_all(work: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        supervise(work, 2, up=lambda _: pytest.fail("it is not up"), on_exit=lambda _: None)
    assert raised.value.hint  # type: ignore[attr-defined]


def test_what_cannot_load_later_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    started = workers.Worker.started
    works = [methodcaller("send", []), methodcaller("send", CheckpointError("no"))]

    def start(_: Any) -> workers.Worker:
        return started(works.pop(0) if len(works) > 1 else works[0])

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise SystemExit(143)

    monkeypatch.setattr(workers.Worker, "started", start)
    monkeypatch.setattr(workers.time, "sleep", sleep)
    with pytest.raises(SystemExit):
        supervise(methodcaller("close"), 1, up=lambda _: None, on_exit=lambda _: None)
    assert pauses == [workers.PAUSE] * 2
