"""`python -m crash`: blows at every call that changes a disk, and races; counted in benchmarks/results/crash.json."""

from __future__ import annotations

import argparse
import gc
import json
import os
import pkgutil
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from crash.blows import HOWS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "crash.json"


def main() -> int:
    from crash.races import RACES, race
    from crash.scenes import SAMPLE, SCENES
    from crash.trial import make_inputs, strike

    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument("--scene", action="append", help="only scenes whose name holds this; repeatable")  # fmt: skip
    parser.add_argument("--how", action="append", choices=list(HOWS), help="only these blows; repeatable")  # fmt: skip
    parser.add_argument("--races", type=int, default=200, help="how many")
    parser.add_argument("--sample", action="store_true", help="the few scenes that need no model")
    parser.add_argument("--out", type=Path, help=f"the result file (for all: {RESULTS.relative_to(ROOT)})")  # fmt: skip
    options = parser.parse_args()
    chosen = [s for s in SCENES if not options.scene or any(part in s.name for part in options.scene)]  # fmt: skip
    if options.sample:
        chosen = [scene for scene in chosen if scene.name in SAMPLE]
    hows = options.how or list(HOWS)
    _import_all(light=options.sample)
    work = Path(tempfile.mkdtemp(prefix="hydrasurgeon-crash-", dir=_memory()))
    started = time.monotonic()
    scenes: dict[str, dict[str, int]] = {}
    races: dict[str, dict[str, int]] = {}
    violations: list[str] = []
    try:
        make_inputs(work / "inputs", light=options.sample)
        for scene in chosen:
            counts = {}
            for how in hows:
                every = 1 if how == "kill" or not options.sample else 4
                struck = strike(scene, how, work / "inputs", work / "scene", every=every)
                counts[how] = struck.blows
                violations += struck.violations
                print("\n".join(struck.violations), file=sys.stderr, end="\n" * bool(struck.violations))  # fmt: skip
            scenes[scene.name] = counts
            print(f"{scene.name}: {counts}, {time.monotonic() - started:.0f} s", flush=True)
            _record(options.out, hows, scenes, races, violations)
        for i in range(options.races):
            name = list(RACES)[i % len(RACES)]
            outcome, problems = race(name, work / "inputs", work / "race")
            tally = races.setdefault(name, {})
            tally[outcome] = tally.get(outcome, 0) + 1
            violations += problems
            print("\n".join(problems), file=sys.stderr, end="\n" * bool(problems))
            _record(options.out, hows, scenes, races, violations)
    finally:
        shutil.rmtree(work)
    totals = {how: sum(counts.get(how, 0) for counts in scenes.values()) for how in hows}
    print(f"{totals}, races {races}, {len(violations)} violations, {time.monotonic() - started:.0f} s")  # fmt: skip
    return 1 if violations else 0


def _record(
    path: Path | None,
    hows: Sequence[str],
    scenes: Mapping[str, Mapping[str, int]],
    races: Mapping[str, Mapping[str, int]],
    violations: Sequence[str],
) -> None:
    """After every scene and race, so that little is lost where a long run is stopped."""
    if path is None:
        return
    totals = {how: sum(counts.get(how, 0) for counts in scenes.values()) for how in hows}
    versions = {name: version(name) for name in ("torch", "safetensors", "timm", "accelerate")}
    result: dict[str, Any] = {
        "format": "hydrasurgeon.crash/1",
        "machine": {"system": platform.system(), "python": platform.python_version(), **versions},
        "how": {how: HOWS[how] for how in hows},
        "stages": sorted({name.partition(":")[0] for name in scenes}),
        "kills": totals.get("kill", 0) + totals.get("power", 0),
        "faults": totals.get("EIO", 0) + totals.get("ENOSPC", 0),
        "races": sum(sum(tally.values()) for tally in races.values()),
        "violations": len(violations),
        "scenes": scenes,
        "outcomes": races,
    }
    made = path.with_name(f".{path.name}")
    made.write_text(json.dumps(result, indent=1) + "\n")
    made.replace(path)


def _import_all(*, light: bool) -> None:
    """Everything that the commands import and build, once: each blow is then a fork away."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    import torch
    import typer.main

    import hydrasurgeon
    from hydrasurgeon.cli import app

    torch.set_num_threads(1)  # a forked process does not inherit threads
    for module in pkgutil.walk_packages(hydrasurgeon.__path__, "hydrasurgeon."):
        if not module.name.endswith(("__main__", "modeling_hydrasurgeon")):
            import_module(module.name)
    heavy = ["accelerate", "matplotlib.figure", "onnxruntime", "sklearn.cluster", "kmedoids", "kneed", "torch.onnx"]  # fmt: skip
    for name in ["timm", *([] if light else heavy)]:
        import_module(name)
    gc.freeze()  # what is never collected is not copied by the forked ones
    app.app = typer.main.get_command(app.app)  # type: ignore[assignment]


def _memory() -> Path | None:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


if __name__ == "__main__":
    raise SystemExit(main())
