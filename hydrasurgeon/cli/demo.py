"""demo: the whole story on real images, through the same commands that a user types."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from hydrasurgeon import render
from hydrasurgeon.errors import MissingDependency, OutputError
from hydrasurgeon.files.atomic import SUFFIX, claims, hold, real, write_bytes
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.lookup import need

DATA = "--data demo:test --ood near:held-out=demo:near --ood far:digits=demo:digits"
"""What the comparison is measured on: it chose nothing."""
FIT = "--data demo:val --fit-data demo:train --ood demo:textures"
"""What decision states are fitted to."""
THIN = "--neurons 0.5 --compensate lstsq --data demo:train --limit 1000"
"""Half of the neurons go too, and the others make up for it."""
LATE = f"--layers 3-5 {THIN}"

COMMANDS = (
    (
        "Three fine-tunings of one pretrained ViT come with the demo. Their mean is one ordinary model.",
        "fuse --mean backbone seed-2 seed-3 -o mean.safetensors",
    ),
    (
        "Half of the mean: the heads and neurons that matter most, repaired in closed form.",
        f"prune --method taylor --keep 4 mean.safetensors {THIN} -o half.safetensors",
    ),
    (
        "Members of a hydra: each fine-tuning without half of its last three layers.",
        f"prune --method taylor --keep 4 backbone.safetensors {LATE} -o m1.safetensors",
    ),
    (None, f"prune --method taylor --keep 4 seed-2.safetensors {LATE} -o m2.safetensors"),
    (None, f"prune --method taylor --keep 4 seed-3.safetensors {LATE} -o m3.safetensors"),
    (
        "The hydra: one model that runs all three behind the mean of their first three layers.",
        "fuse m1 m2 m3 -o hydra.safetensors --mean-trunk 3",
    ),
    (
        "For comparison their Deep Ensemble, in one file that answers as the three do.",
        "fuse backbone seed-2 seed-3 -o ensemble.safetensors --mlp separate",
    ),
    (
        "Calibrate them alike: temperature, OOD score, thresholds.",
        f"calibrate backbone {FIT} -o ready-single.safetensors",
    ),
    (None, f"calibrate mean {FIT} -o ready-mean.safetensors"),
    (None, f"calibrate half {FIT} -o ready-half.safetensors"),
    (None, f"calibrate hydra {FIT} -o ready-hydra.safetensors"),
    (None, f"calibrate ensemble {FIT} -o ready-ensemble.safetensors"),
)
"""What each command is for, and the command as it is typed."""
INT8 = (
    (
        "The mean in 8 bits: calibrated on its own outputs, and exported.",
        f"calibrate mean --engine int8 {FIT} -o int8-mean.safetensors",
    ),
    (None, "export int8-mean --int8 --check demo:val -o mean.int8.onnx"),
)
"""Where onnxruntime is installed."""
READY = "ready-single ready-mean ready-half ready-hydra ready-ensemble"
"""The rows of the comparison."""
SHIPPED = ("backbone", "seed-2", "seed-3")
"""Checkpoints that come with the package."""


def commands(*, int8: bool) -> list[tuple[str | None, str]]:
    """The demo's commands, in order; the last one compares."""
    more, rows = (INT8, f"{READY} mean.int8.onnx") if int8 else ((), READY)
    compare = f"eval {rows} {DATA} --json results.json --html report.html"
    return [*COMMANDS, *more, ("What each is worth, on data that chose nothing.", compare)]


def written(commands: Sequence[str]) -> set[str]:
    """The names of all files that the demo leaves in its folder."""
    words = [word for command in commands for word in shlex.split(command)]
    outputs = [
        after
        for word, after in pairwise(words)
        if word in ("-o", "--json", "--html", "--predictions")
    ]
    weights = [*outputs, *(f"{name}.safetensors" for name in SHIPPED)]
    return {*weights, *(sidecar(Path(name)).name for name in weights if name.endswith(SUFFIX))}


def in_time(results: Path) -> str:
    """What 8 bits are worth in time, in the same run."""
    report = json.loads(results.read_text(encoding="utf-8"))
    took = {each["name"]: f"{each['cost']['latency_ms']:.2g} ms" for each in report["results"]}
    return (
        f"One image took the mean {took['ready-mean']} in torch, and {took['mean.int8.onnx']} in "
        "8 bits in onnxruntime."
    )


@claims()
def demo(folder: Path, *, run: Callable[[list[str]], int], force: bool) -> None:
    """Run the commands in `folder`, printing each before it runs; with `force` its own files there
    are replaced.
    """
    import os

    from hydrasurgeon.engines import PACKAGES

    if folder.exists() and not folder.is_dir():
        raise OutputError(f"-o {folder}: is not a directory", hint="Give another -o.")
    if folder.exists() and any(folder.iterdir()) and not force:
        hint = "Give --force to replace the demo's files in it, or another -o."
        raise OutputError(f"{folder}: is not empty", hint=hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        hold(real(folder), option="-o")
        for name in written([command for _, command in commands(int8=True)]):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"-o {folder}: cannot be written ({error.strerror})") from error
    source = files("hydrasurgeon") / "demo"
    for name in SHIPPED:
        weights = f"{name}.safetensors"
        write_bytes(folder / weights, (source / weights).read_bytes())
    lacking = ""
    try:
        need(*PACKAGES, purpose="The mean in 8 bits")
    except MissingDependency as error:
        lacking = f"{error.message}: left out."
    started, here = time.monotonic(), Path.cwd()
    render.say(f"cd {folder}", style="bold cyan")
    os.chdir(folder)
    try:
        for comment, command in commands(int8=not lacking):
            if comment:
                render.say("")
                render.say(f"# {comment}", style="dim")
            render.say(f"hydrasurgeon {command}", style="bold cyan")
            code = run(shlex.split(command))
            if code:
                raise SystemExit(code)
    finally:
        os.chdir(here)
    render.say("")
    render.say(lacking or in_time(folder / "results.json"))
    render.say(
        f"Done in {time.monotonic() - started:.0f} s; the files are in {folder}.", style="dim"
    )
