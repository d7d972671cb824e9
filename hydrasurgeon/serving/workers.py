"""Several processes that answer at one socket, each with the model; one that dies is replaced.

uvicorn has a supervisor too. It does not say when all are ready or which signal ended it, starts
one that cannot load its model for ever, and leaves its processes behind when it is killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from hydrasurgeon.errors import HydraError, UsageError

PAUSE = 5.0
"""Seconds until another process is tried where one could not load."""
Work = Callable[[Connection], None]
"""A process's work, which is pickled: it sends its notes once it has loaded, or a HydraError."""


@dataclass(frozen=True)
class Worker:
    """A process, and what it sends."""

    process: SpawnProcess
    reports: Connection

    @classmethod
    def started(cls, work: Work) -> Worker:
        context = multiprocessing.get_context("spawn")
        reports, sender = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(sender,))
        process.start()
        sender.close()
        return cls(process, reports)

    def loaded(self) -> list[str]:
        """Wait until the process answers, and return its notes."""
        try:
            report: Any = self.reports.recv()
        except EOFError:
            self.process.join()
            raise UsageError(
                f"--workers: a process ended before it could answer ({self.ending})",
                hint="Each holds the model: fewer need less memory.",
            ) from None
        if isinstance(report, HydraError):
            raise report
        return list(report)

    @property
    def ending(self) -> str:
        code = self.process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def supervise(
    work: Work, count: int, *, up: Callable[[list[str]], None], on_exit: Callable[[int], None]
) -> None:
    """Keep so many processes until a signal ends this one: then each answers what it has taken.

    `up` is called with the notes when all have loaded, and again after any was replaced; `on_exit`
    with the number of a process that died.
    """
    log = logging.getLogger("uvicorn.error")
    workers = [Worker.started(work) for _ in range(count)]
    try:
        notes = [worker.loaded() for worker in workers]
        up(notes[0])
        while True:
            wait([worker.process.sentinel for worker in workers])
            dead = [at for at, worker in enumerate(workers) if worker.process.exitcode is not None]
            for at in dead:
                number = workers[at].process.pid or 0
                log.warning("process %d died (%s) and is replaced", number, workers[at].ending)
                on_exit(number)
                workers[at] = Worker.started(work)
            for at in dead:
                try:
                    up(workers[at].loaded())
                except HydraError as error:
                    log.error("%s", error.message)
                    time.sleep(PAUSE)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


def obey() -> None:
    """Make a worker end by SIGTERM alone, which it gets when the supervisor ends or is gone."""
    for name in ("SIGINT", "SIGHUP"):  # a terminal sends them to all
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None

    def watch() -> None:
        supervisor.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
