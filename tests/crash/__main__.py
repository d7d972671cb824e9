"""`python -m crash`: blows at every call that changes a disk."""

from __future__ import annotations

import argparse
import gc
import os
import pkgutil
import shutil
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from crash.blows import HOWS


def main() -> int:
    from crash.scenes import SAMPLE, SCENES
    from crash.trial import build, make_inputs, strike, unharmed

    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument(
        "--scene", action="append", help="only scenes whose name holds this; repeatable"
    )
    parser.add_argument(
        "--how", action="append", choices=list(HOWS), help="only these blows; repeatable"
    )
    parser.add_argument("--sample", action="store_true", help="the few scenes that need no model")
    parser.add_argument("--unharmed", action="store_true", help="run each scene, and strike none")
    options = parser.parse_args()
    chosen = [
        s for s in SCENES if not options.scene or any(part in s.name for part in options.scene)
    ]
    if options.sample:
        chosen = [scene for scene in chosen if scene.name in SAMPLE]
    hows = options.how or list(HOWS)
    _import_all(light=options.sample)
    work = Path(tempfile.mkdtemp(prefix="hydrasurgeon-crash-", dir=_memory()))
    started = time.monotonic()
    blows, violations = Counter[str](), 0
    try:
        make_inputs(work / "inputs")
        for scene in chosen if options.unharmed else ():
            build(scene, work / "inputs", work / "scene")
            print(f"{scene.name}: {len(unharmed(scene, work / 'scene'))} files", flush=True)
            shutil.rmtree(work / "scene")
        for scene in () if options.unharmed else chosen:
            for how in hows:
                every = 1 if how == "kill" or not options.sample else 4
                struck = strike(scene, how, work / "inputs", work / "scene", every=every)
                blows[how] += struck.blows
                violations += len(struck.violations)
                print(
                    "\n".join(struck.violations),
                    file=sys.stderr,
                    end="\n" * bool(struck.violations),
                )
            print(
                f"{scene.name}: {dict(blows)} so far, {time.monotonic() - started:.0f} s",
                flush=True,
            )
    finally:
        shutil.rmtree(work)
    print(f"{dict(blows)}, {violations} violations, {time.monotonic() - started:.0f} s")
    return 1 if violations else 0


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
    heavy = [
        "accelerate",
        "matplotlib.figure",
        "onnxruntime",
        "sklearn.cluster",
        "kmedoids",
        "kneed",
        "torch.onnx",
    ]
    for name in ["timm", *([] if light else heavy)]:
        import_module(name)
    gc.freeze()  # what is never collected is not copied by the forked ones
    made = typer.main.get_command(app.application(None))
    app.application = lambda command: made  # type: ignore[assignment]


def _memory() -> Path | None:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


if __name__ == "__main__":
    raise SystemExit(main())
