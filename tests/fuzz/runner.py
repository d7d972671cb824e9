"""Attempts by the million: seeded, over processes that may die, with a limit on seconds and on memory for each."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzz.bases import Bases
from fuzz.guard import Outcome, Sandbox, place
from fuzz.kinds import KINDS, Kind

SECONDS = 10
"""Longer than this is a hang; what others had the cores for does not count."""
MEMORY = 2 << 30
"""More than this, besides what the libraries take, is too much."""
CHUNK = 250
WAYS = ("library", "command", "process")


@dataclass(frozen=True)
class Job:
    kind: str
    way: str
    first: int
    last: int


@dataclass(frozen=True)
class Failure:
    kind: str
    way: str
    seed: int
    problem: str
    where: str = ""


@dataclass
class Tally:
    """What came out of some attempts."""

    outcomes: Counter[int] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        self.outcomes += other.outcomes
        self.failures += other.failures
        self.seconds += other.seconds

    @property
    def count(self) -> int:
        return sum(self.outcomes.values()) + len(self.failures)


def prepare(folder: Path) -> Bases:
    """The files that every process starts from."""
    bases = Bases(folder)
    assert bases.directories
    assert bases.checkpoints
    return bases


def settle(folder: Path) -> None:
    """A process that has nothing of its user's within reach."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        os.environ.pop(name, None)
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "HOME": str(folder),
        "HF_HOME": str(folder / "hf"),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    sys.dont_write_bytecode = True


class Hang(BaseException):
    """Not an Exception: nobody may take it for a mistake of the input."""


def _clock() -> float:
    """Seconds that go by, without those in which this thread was ready and others had the cores."""
    waits = 0
    with contextlib.suppress(OSError, ValueError, IndexError):  # only Linux tells
        waits = int(Path("/proc/self/schedstat").read_bytes().split()[1])
    return time.monotonic() - waits / 1e9


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Hang where the block takes longer; 0 for no limit."""
    ends = _clock() + seconds

    def alarm(*_: Any) -> None:
        if (left := ends - _clock()) <= 0.1:
            raise Hang
        signal.setitimer(signal.ITIMER_REAL, left)

    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _run_one(kind: Kind, way: str, seed: int, bases: Bases, sandbox: Sandbox) -> Outcome:
    attempt = kind.attempt(seed, bases)
    if way == "process":
        from fuzz.command import run_apart

        sandbox.lay_out(attempt)
        try:
            return run_apart(sandbox.arguments(attempt), sandbox.inside, seconds=12 * SECONDS)
        finally:
            sandbox.clear()
    return sandbox.run(attempt) if way == "library" else sandbox.run_command(attempt)


def judge(kind: Kind, way: str, seed: int, bases: Bases, sandbox: Sandbox) -> tuple[Outcome, float]:
    """One attempt within its limits."""
    started = _clock()
    try:
        with _within(SECONDS if way != "process" else 0):
            outcome = _run_one(kind, way, seed, bases, sandbox)
    except Hang as hang:
        outcome = Outcome(-1, f"not done after {SECONDS} seconds", place(hang))
        sandbox.clear()
    # A command may also be told that the options of its attempt make no sense together.
    right = kind.exits | ({2, 3, 4, 5} if way != "library" else set())
    if outcome.problem is None and outcome.code not in right:
        outcome = Outcome(outcome.code, f"exit code {outcome.code}")
    return outcome, max(0.0, _clock() - started)


def _work(folder: Path, slot: int, jobs: Any, results: Any, now: Any) -> None:
    """A process: attempts of one job after the other, until there is none."""
    settle(folder)
    bases = Bases(folder / "bases")
    printed = _listen(_log(folder, slot))
    sandbox = Sandbox(folder / f"sandbox-{slot}", readable=(folder / "bases",), printed=printed)
    _warm_up(bases, sandbox)
    gc.freeze()  # the libraries would be looked through again and again
    if (limit := memory_limit()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while (job := jobs.get()) is not None:
        kind, tally, started = KINDS[job.kind], Tally(), time.monotonic()
        for seed in range(job.first, job.last):
            now[2 * slot], now[2 * slot + 1] = seed, time.monotonic()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            outcome, _ = judge(kind, job.way, seed, bases, sandbox)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if outcome.problem is None and peak - before > MEMORY >> 10:
                outcome = Outcome(outcome.code, f"took {(peak - before) >> 10} MB")
            if outcome.problem is None:
                tally.outcomes[outcome.code] += 1
            else:
                tally.failures.append(Failure(job.kind, job.way, seed, outcome.problem, outcome.where))
        tally.seconds = time.monotonic() - started
        now[2 * slot] = -1
        results.put((slot, job, tally))
    results.put((slot, None, None))


def _log(folder: Path, slot: int) -> Path:
    return folder / f"printed-{slot}.txt"


def _listen(path: Path) -> Callable[[], str]:
    """Send both streams of this process to a file, whoever writes to them, and give what came since last asked."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)

    def printed() -> str:
        sys.stdout.flush()
        sys.stderr.flush()
        size = os.fstat(file).st_size
        if not size:
            return ""
        text = os.pread(file, min(size, 4000), 0).decode("utf-8", "replace")
        os.ftruncate(file, 0)
        return text

    return printed


def memory_limit() -> int | None:
    """Address space for what libraries have taken already, and MEMORY more; None where the system does not tell."""
    table = Path("/proc/self/statm")
    if not table.exists():
        return None
    return int(table.read_text().split()[0]) * resource.getpagesize() + MEMORY


def _warm_up(bases: Bases, sandbox: Sandbox) -> None:
    """Import what attempts import, before anybody counts seconds, memory or files."""
    for library in [
        "torch",
        "datasets",
        "transformers",
        "timm",
        "open_clip",
        "accelerate",
        "scipy.stats",
        "torchvision",
    ]:
        import_module(library)
    for kind in KINDS.values():
        for seed in range(-12, 0):
            for way in ("library", "command"):
                try:
                    with _within(60):
                        _run_one(kind, way, seed, bases, sandbox)
                except Hang:
                    sandbox.clear()


def run(folder: Path, jobs: list[Job], workers: int) -> Iterator[tuple[Job, Tally]]:
    """All jobs; one whose process dies or stops answering is a failure of its seed, and goes on behind it."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    waiting = list(reversed(jobs))
    now = context.Array("d", [-1.0] * 2 * workers, lock=False)
    pool: dict[int, tuple[Any, Any, Job | None]] = {}

    def hand_out(slot: int) -> None:
        process, queue, _ = pool[slot]
        job = waiting.pop() if waiting else None
        pool[slot] = process, queue, job
        queue.put(job)

    def start(slot: int) -> None:
        queue = context.Queue()
        process = context.Process(target=_work, args=(folder, slot, queue, results, now), daemon=True)
        now[2 * slot] = -1
        process.start()
        pool[slot] = process, queue, None
        hand_out(slot)

    for slot in range(workers):
        start(slot)
    while any(job is not None for _, _, job in pool.values()):
        try:
            slot, job, tally = results.get(timeout=1)
        except Exception:  # multiprocessing's queue.Empty
            slot = -1
        if slot >= 0 and job is not None:
            yield job, tally
            hand_out(slot)
        for slot, (process, _, job) in list(pool.items()):
            stuck = now[2 * slot] >= 0 and time.monotonic() - now[2 * slot + 1] > 60 * SECONDS
            if job is None or (process.is_alive() and not stuck):
                continue
            seed = int(now[2 * slot])
            process.kill()
            process.join()
            if seed < 0:  # between two jobs
                waiting.append(job)
            else:
                last = _log(folder, slot).read_text(errors="replace").strip()[-300:]
                problem = "stopped answering" if stuck else f"the process died (exit code {process.exitcode}): {last}"
                lost = Tally(failures=[Failure(job.kind, job.way, seed, problem)])
                for first, last in ((seed + 1, job.last), (job.first, seed)):
                    if first < last:
                        waiting.append(Job(job.kind, job.way, first, last))
                yield Job(job.kind, job.way, seed, seed + 1), lost
            start(slot)
    for process, _, _ in pool.values():
        process.join(5)
        process.kill()


def replay(folder: Path, kind: str, way: str, seed: int) -> None:
    """One attempt again, with its traceback and its files left behind."""
    settle(folder)
    bases = prepare(folder / "bases")
    sandbox = Sandbox(folder / "sandbox-replay", readable=(folder / "bases",))
    attempt = KINDS[kind].attempt(seed, bases)
    outcome, seconds = judge(KINDS[kind], way, seed, bases, sandbox)
    sandbox.lay_out(attempt)
    print(f"{outcome}\n{seconds:.2f} s, files in {sandbox.inside}, hydrasurgeon {' '.join(sandbox.arguments(attempt))}")
    if way == "library":
        try:
            attempt.call(sandbox.inside, sandbox.out)
        except BaseException:
            traceback.print_exc()
