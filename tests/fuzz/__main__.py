"""`python -m fuzz`: hostile inputs by the million, counted by how they end."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from fuzz import runner
from fuzz.kinds import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="inputs in process, over all kinds by their shares")
    parser.add_argument("--commands", type=int, help="inputs through the command (default: a 200th of count)")
    parser.add_argument("--processes", type=int, help="inputs through a process of its own (default: a 4000th)")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this kind; repeatable")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=max(1, min(os.cpu_count() or 1, 8)))
    parser.add_argument("--folder", type=Path, default=_folder(), help="where sandboxes are laid out; best in memory")
    parser.add_argument("--replay", metavar="KIND:SEED[:WAY]", help="one input again, with its traceback")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.replay:
        kind, seed, way = (*options.replay.split(":"), "library")[:3]
        runner.replay(options.folder, kind, way, int(seed))
        return 0
    runner.prepare(options.folder / "bases")
    tallies: dict[tuple[str, str], runner.Tally] = defaultdict(runner.Tally)
    started = time.monotonic()
    for job, tally in runner.run(options.folder, _jobs(options), options.workers):
        tallies[job.kind, job.way].add(tally)
        done, wrong = (
            sum(counts) for counts in zip(*((t.count, len(t.failures)) for t in tallies.values()), strict=True)
        )
        said = f"\r{done:,} inputs, {wrong} failures, {time.monotonic() - started:.0f} s"
        print(said, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for (kind, way), tally in tallies.items():
        each = 1000 * tally.seconds / max(1, tally.count)
        outcomes = dict(sorted(tally.outcomes.items()))
        print(f"{kind:12} {way:8} {tally.count:8,} inputs, {each:7.2f} ms each, {outcomes}")
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    _show(failures)
    return 1 if failures else 0


def _jobs(options: argparse.Namespace) -> list[runner.Job]:
    kinds = [KINDS[name] for name in options.kind or KINDS]
    whole = sum(kind.share for kind in kinds)
    commands = options.count // 200 if options.commands is None else options.commands
    processes = options.count // 4000 if options.processes is None else options.processes
    amounts = [("library", kind, options.count * kind.share // whole) for kind in kinds]
    for way, amount in (("command", commands), ("process", processes)):
        amounts += [(way, kind, -(-amount // len(kinds))) for kind in kinds]
    first = options.first
    return [
        runner.Job(kind.name, way, at, min(at + runner.CHUNK, first + amount))
        for way, kind, amount in amounts
        for at in range(first, first + amount, runner.CHUNK)
    ]


def _folder() -> Path:
    memory = Path("/dev/shm")
    return (memory if memory.is_dir() else Path("/tmp")) / f"hydrasurgeon-fuzz-{os.getuid()}"


def _show(failures: list[runner.Failure]) -> None:
    """Failures by where they come from, each with a seed."""
    places = Counter((f.kind, f.where, f.problem.split(":")[0][:90]) for f in failures)
    for place, count in places.most_common():
        one = min(
            (f for f in failures if (f.kind, f.where, f.problem.split(":")[0][:90]) == place), key=lambda f: f.seed
        )
        print(f"{count:6} {one.kind:12} {one.where:60} {one.problem[:160]}   --replay {one.kind}:{one.seed}:{one.way}")


if __name__ == "__main__":
    sys.exit(main())
