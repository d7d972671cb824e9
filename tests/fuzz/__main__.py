"""`python -m fuzz`: hostile inputs, counted; what came out goes into benchmarks/results/fuzz.json."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from fuzz.record import Record

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "fuzz.json"
EVERY = 30
"""Seconds after which the result file is written again, so that little is lost where a long run is stopped."""


def main() -> int:
    from fuzz import runner
    from fuzz.kinds import KINDS

    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="inputs in process, over all kinds by their shares")
    parser.add_argument(
        "--commands", type=int, help="inputs through the command, in process (default: a 200th of count)"
    )
    parser.add_argument(
        "--processes", type=int, help="inputs through a process of its own (default: a 4000th of count)"
    )
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this kind; repeatable")
    parser.add_argument("--each", type=int, default=0, help="so many of each kind first, whatever its share")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--add", action="store_true", help="go on behind the seeds that the result file has")
    parser.add_argument("--workers", type=int, default=max(1, min(os.cpu_count() or 1, 8)))
    parser.add_argument("--folder", type=Path, default=_folder(), help="where sandboxes are laid out; best in memory")
    parser.add_argument("--out", type=Path, help=f"the result file (for all of make fuzz: {RESULTS.relative_to(ROOT)})")
    parser.add_argument("--retry", action="store_true", help="the result file's failures again, after they were mended")
    parser.add_argument("--replay", metavar="KIND:SEED[:WAY]", help="one input again, with its traceback")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.replay:
        kind, seed, way = (*options.replay.split(":"), "library")[:3]
        runner.replay(options.folder, kind, way, int(seed))
        return 0
    runner.prepare(options.folder / "bases")
    if options.retry:
        return _retry(Record(options.out, first=options.first, add=True), options)
    kinds = [KINDS[name] for name in options.kind or KINDS]
    whole = sum(kind.share for kind in kinds)
    amounts = {
        "library": options.count,
        "command": options.count // 200 if options.commands is None else options.commands,
        "process": options.count // 4000 if options.processes is None else options.processes,
    }
    record = Record(options.out, first=options.first, add=options.add)
    jobs = []
    for way, amount in amounts.items():
        for kind in kinds:
            share = max(options.each, amount * kind.share // whole) if way == "library" else -(-amount // len(kinds))
            first = record.next_seed(kind.name, way)
            jobs += [
                (at - first >= options.each, runner.Job(kind.name, way, at, min(at + runner.CHUNK, first + share)))
                for at in range(first, first + share, runner.CHUNK)
            ]
    jobs.sort(key=lambda each: each[0])
    tallies: dict[tuple[str, str], runner.Tally] = defaultdict(runner.Tally)
    started = recorded = time.monotonic()
    for job, tally in runner.run(options.folder, [job for _, job in jobs], options.workers):
        tallies[job.kind, job.way].add(tally)
        done = sum(t.count for t in tallies.values())
        wrong = sum(len(t.failures) for t in tallies.values())
        print(
            f"\r{done:,} inputs, {wrong} failures, {time.monotonic() - started:.0f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if time.monotonic() - recorded > EVERY:
            recorded = time.monotonic()
            record.write(tallies)
    print(file=sys.stderr)
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    for (kind, way), tally in tallies.items():
        print(
            f"{kind:12} {way:8} {tally.count:8,} inputs, {1000 * tally.seconds / max(1, tally.count):7.2f} ms each,"
            f" {dict(sorted(tally.outcomes.items()))}"
        )
    _show(failures)
    record.write(tallies)
    return 1 if failures else 0


def _retry(record: Record, options: argparse.Namespace) -> int:
    from fuzz import runner

    jobs = [runner.Job(kind, way, seed, seed + 1) for kind, way, seed in record.failures()]
    failures: list[Any] = []
    for job, tally in runner.run(options.folder, jobs, options.workers):
        failures += tally.failures
        if not tally.failures:
            record.mended(job.kind, job.way, job.first, tally)
    print(f"{len(jobs) - len(failures)} of {len(jobs)} are mended")
    _show(failures)
    record.write({})
    return 1 if failures else 0


def _folder() -> Path:
    memory = Path("/dev/shm")
    return (memory if memory.is_dir() else Path("/tmp")) / f"hydrasurgeon-fuzz-{os.getuid()}"


def _show(failures: list[Any]) -> None:
    """Failures by where they come from, each with a seed."""
    places = Counter((f.kind, f.where, f.problem.split(":")[0][:90]) for f in failures)
    for (kind, where, problem), count in places.most_common():
        one = min(
            (f for f in failures if (f.kind, f.where, f.problem.split(":")[0][:90]) == (kind, where, problem)),
            key=lambda f: f.seed,
        )
        print(f"{count:6} {kind:12} {where:60} {one.problem[:160]}   --replay {kind}:{one.seed}:{one.way}")


if __name__ == "__main__":
    sys.exit(main())
