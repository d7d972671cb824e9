"""Several processes that are one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from hydrasurgeon.runtime import processes


@pytest.fixture
def no_switches() -> Iterator[None]:
    """No thread takes Python's lock from one that runs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("no_switches")
def test_threads_of_a_group_run_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gloo's do, which want Python's lock to free what they sent while the end of the group waits for them with
    it."""
    done, ended = threading.Event(), threading.Event()
    waits = threading.Event()
    freed: list[bool] = []

    def free() -> None:
        waits.set()
        done.wait()
        freed.append(not ended.is_set())

    monkeypatch.setattr(processes, "process_count", lambda: 2)
    monkeypatch.setattr(dist, "init_process_group", lambda backend: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "destroy_process_group", ended.set)
    thread = threading.Thread(target=free)
    thread.start()
    waits.wait()
    with processes.joined():
        done.set()
    thread.join()
    assert freed == [True]
