"""`python -m fuzz`: hostile inputs by the thousand, each within limits of seconds and memory; a failure names its seed."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from fuzz.bases import Bases
from fuzz.guard import Attempt, Outcome, Sandbox, memory_limit
from fuzz.kinds import KINDS

SECONDS = 10
"""Longer than this is a hang."""


class Hang(BaseException):
    """Not an Exception: nobody may take it for a mistake of the input."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="inputs of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--replay", metavar="KIND:SEED", help="one input again, with its traceback")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hydrasurgeon-fuzz-"))
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "HOME": str(folder),
        "HF_HOME": str(folder / "hf"),
        "NO_COLOR": "1",
    }
    bases, sandbox = Bases(folder / "bases"), Sandbox(folder / "box", readable=(folder / "bases",))
    if options.replay:
        kind, seed = options.replay.split(":")
        attempt = attempted(KINDS[kind], int(seed), bases)
        sandbox.lay_out(attempt)
        print(f"files in {sandbox.inside}, hydrasurgeon {' '.join(sandbox.arguments(attempt))}")
        try:
            attempt.call(sandbox.inside, sandbox.out)
        except BaseException:
            traceback.print_exc()
        return 0
    for kind in KINDS.values():  # whatever they import and start from, before anyone counts
        for seed in range(-60, 0):
            sandbox.run(attempted(kind, seed, bases))
            sandbox.run_command(attempted(kind, seed, bases))
    if (limit := memory_limit()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    failures = 0
    for name, kind in KINDS.items():
        outcomes: Counter[int] = Counter()
        for seed in range(options.first, options.first + options.count):
            for run in (sandbox.run, *([sandbox.run_command] if seed % 200 == 0 else [])):
                outcome = _within(run, attempted(kind, seed, bases))
                outcomes[outcome.code] += 1
                if outcome.problem is not None or outcome.code not in kind.EXITS | {2}:
                    failures += 1
                    print(
                        f"{outcome.where} {outcome.problem or outcome.code}   --replay {name}:{seed}",
                        flush=True,
                    )
        print(f"{name}: {dict(sorted(outcomes.items()))}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if failures else 0


def attempted(kind: ModuleType, seed: int, bases: Bases) -> Attempt:
    made: Attempt = kind.make(Random(f"{kind.__name__}:{seed}"), bases)
    return made


def _within(run: Any, attempt: Attempt) -> Outcome:
    def alarm(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        outcome: Outcome = run(attempt)
        return outcome
    except Hang:
        return Outcome(-1, f"not done after {SECONDS} seconds")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    sys.exit(main())
