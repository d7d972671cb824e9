"""`python -m fuzz`: hostile inputs by the thousand, each within limits of seconds and memory; a failure names its seed."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.bases import Bases
from fuzz.guard import Outcome, Sandbox, memory_limit
from fuzz.kinds import KINDS

SECONDS = 10
"""Longer than this is a hang."""


class Hang(BaseException):
    """Not an Exception: nobody may take it for a mistake of the input."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="inputs over all kinds, by their shares")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this kind; repeatable")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--replay", metavar="KIND:SEED", help="one input again, with its traceback")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hydrasurgeon-fuzz-"))
    os.environ |= {"HF_HUB_OFFLINE": "1", "HOME": str(folder), "HF_HOME": str(folder / "hf"), "NO_COLOR": "1"}
    bases, sandbox = Bases(folder / "bases"), Sandbox(folder / "box", readable=(folder / "bases",))
    if options.replay:
        kind, seed = options.replay.split(":")
        attempt = KINDS[kind].attempt(int(seed), bases)
        sandbox.lay_out(attempt)
        print(f"files in {sandbox.inside}, hydrasurgeon {' '.join(sandbox.arguments(attempt))}")
        try:
            attempt.call(sandbox.inside, sandbox.out)
        except BaseException:
            traceback.print_exc()
        return 0
    kinds = [KINDS[name] for name in options.kind or KINDS]
    for kind in kinds:  # whatever they import and start from, before anyone counts
        for seed in range(-12, 0):
            sandbox.run(kind.attempt(seed, bases))
            sandbox.run_command(kind.attempt(seed, bases))
    if (limit := memory_limit()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    failures = 0
    for kind in kinds:
        outcomes: Counter[int] = Counter()
        started = time.monotonic()
        for seed in range(options.first, options.first + options.count * kind.share // sum(k.share for k in kinds)):
            for outcome in (_within(sandbox.run, kind, seed, bases), *_commanded(sandbox, kind, seed, bases)):
                outcomes[outcome.code] += 1
                if outcome.problem is not None or outcome.code not in kind.exits | {2}:
                    failures += 1
                    print(
                        f"{outcome.where} {outcome.problem or outcome.code}   --replay {kind.name}:{seed}", flush=True
                    )
        print(f"{kind.name}: {dict(sorted(outcomes.items()))}, {time.monotonic() - started:.0f} s", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if failures else 0


def _commanded(sandbox: Sandbox, kind: Any, seed: int, bases: Bases) -> list[Outcome]:
    """Every two hundredth input through the command, too."""
    outcome = _within(sandbox.run_command, kind, seed, bases) if seed % 200 == 0 else Outcome(0)
    return [] if outcome.problem is None and outcome.code in (0, 2, 3, 4, 5) else [outcome]


def _within(run: Any, kind: Any, seed: int, bases: Bases) -> Outcome:
    def alarm(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return run(kind.attempt(seed, bases))
    except Hang:
        return Outcome(-1, f"not done after {SECONDS} seconds")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    sys.exit(main())
