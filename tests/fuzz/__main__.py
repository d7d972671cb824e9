"""`python -m fuzz`: hostile inputs, counted; what came out goes into benchmarks/results/fuzz.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.runner import Tally

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "fuzz.json"
EVERY = 30
"""Seconds after which the result file is written again, so that little is lost where a long run is stopped."""
LIBRARIES = (
    "torch",
    "numpy",
    "safetensors",
    "pydantic",
    "pillow",
    "pyarrow",
    "datasets",
    "transformers",
    "tokenizers",
    "timm",
    "open_clip_torch",
)


def main() -> int:
    from fuzz import runner
    from fuzz.kinds import KINDS

    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument(
        "--count",
        type=int,
        default=20_000,
        help="inputs in process, over all kinds by their shares",
    )
    parser.add_argument(
        "--commands",
        type=int,
        help="inputs through the command, in process (default: a 200th of count)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        help="inputs through a process of its own (default: a 4000th of count)",
    )
    parser.add_argument(
        "--kind", action="append", choices=list(KINDS), help="only this kind; repeatable"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=max(1, min(os.cpu_count() or 1, 8)))
    parser.add_argument(
        "--folder",
        type=Path,
        default=_folder(),
        help="where sandboxes are laid out; best in memory",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help=f"the result file (for all of make fuzz: {RESULTS.relative_to(ROOT)})",
    )
    parser.add_argument(
        "--replay", metavar="KIND:SEED[:WAY]", help="one input again, with its traceback"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.replay:
        kind, seed, way = (*options.replay.split(":"), "library")[:3]
        runner.replay(options.folder, kind, way, int(seed))
        return 0
    runner.prepare(options.folder / "bases")
    kinds = [KINDS[name] for name in options.kind or KINDS]
    whole = sum(kind.share for kind in kinds)
    amounts = {
        "library": options.count,
        "command": options.count // 200 if options.commands is None else options.commands,
        "process": options.count // 4000 if options.processes is None else options.processes,
    }  # fmt: skip
    jobs = []
    for kind in kinds:
        for way, amount in amounts.items():
            share = amount * kind.share // whole if way == "library" else -(-amount // len(kinds))
            last = options.first + share
            jobs += [
                runner.Job(kind.name, way, at, min(at + runner.CHUNK, last))
                for at in range(options.first, last, runner.CHUNK)
            ]
    tallies: dict[tuple[str, str], runner.Tally] = defaultdict(runner.Tally)
    started = recorded = time.monotonic()
    for job, tally in runner.run(options.folder, jobs, options.workers):
        tallies[job.kind, job.way].add(tally)
        done = sum(t.count for t in tallies.values())
        wrong = sum(len(t.failures) for t in tallies.values())
        print(
            f"\r{done:,} inputs, {wrong} failures, {time.monotonic() - started:.0f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if options.out is not None and time.monotonic() - recorded > EVERY:
            recorded = time.monotonic()
            _record(options.out, tallies, options.first)
    print(file=sys.stderr)
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    for (kind, way), tally in tallies.items():
        print(
            f"{kind:12} {way:8} {tally.count:8,} inputs, {1000 * tally.seconds / max(1, tally.count):7.2f} ms each, {dict(sorted(tally.outcomes.items()))}"
        )
    _show(failures)
    if options.out is not None:
        _record(options.out, tallies, options.first)
    return 1 if failures else 0


def _folder() -> Path:
    memory = Path("/dev/shm")
    return (memory if memory.is_dir() else Path("/tmp")) / f"hydrasurgeon-fuzz-{os.getuid()}"


def _show(failures: list[Any]) -> None:
    """Failures by where they come from, each with a seed."""
    places = Counter((f.kind, f.where, f.problem.split(":")[0][:90]) for f in failures)
    for (kind, where, problem), count in places.most_common():
        one = min(
            (
                f
                for f in failures
                if (f.kind, f.where, f.problem.split(":")[0][:90]) == (kind, where, problem)
            ),
            key=lambda f: f.seed,
        )
        print(
            f"{count:6} {kind:12} {where:60} {one.problem[:160]}   --replay {kind}:{one.seed}:{one.way}"
        )


def _record(path: Path, tallies: Mapping[tuple[str, str], Tally], first: int) -> None:
    """Kinds that were run replace their older results."""
    result = json.loads(path.read_text()) if path.exists() else {"kinds": {}}
    for name in {kind: None for kind, _ in tallies}:
        result["kinds"][name] = {
            "first_seed": first,
            **{way: _counted(tally) for (kind, way), tally in tallies.items() if kind == name},
        }
    result["machine"] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }
    made = path.with_name(f".{path.name}")
    made.write_text(json.dumps(result, indent=1) + "\n")
    made.replace(path)


def _counted(tally: Tally) -> dict[str, Any]:
    return {
        "inputs": tally.count, "outcomes": {str(code): n for code, n in sorted(tally.outcomes.items())},
        "failures": [{"seed": f.seed, "problem": f.problem, "where": f.where} for f in tally.failures[:50]],
        "failed": len(tally.failures), "seconds": round(tally.seconds, 1), "slowest_seconds": round(tally.slowest, 2),
        "peak_mb": tally.peak >> 10,
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


if __name__ == "__main__":
    sys.exit(main())
