"""demo: the whole story on real images, through the same commands that a user types."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from hydrasurgeon import render
from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.atomic import SUFFIX, claims, hold, real, write_bytes
from hydrasurgeon.files.manifest import sidecar

DATA = "--data demo:test --ood near:held-out=demo:near --ood far:digits=demo:digits"
"""What the comparison is measured on; textures are what members and OOD scores are chosen by."""
CHOOSING = "--ood demo:textures"
"""Foreign data that choices may look at."""

COMMANDS = (
    (
        (
            "One command: the best within one and a half times the cost, which is the model itself "
            "where nothing beats it."
        ),
        (
            f"build backbone.safetensors --data demo:train --val demo:val {CHOOSING} --criteria "
            "taylor,fisher"
            " --candidates 16 --budget macs=1.5 -o built.safetensors"
        ),
    ),
    (
        "The single model, given the same calibration.",
        (
            f"calibrate backbone.safetensors --data demo:val --fit-data demo:train {CHOOSING} -o "
            "single.safetensors"
        ),
    ),
    (
        (
            "The same by hand, as in the paper. Which heads matter? Measured on validation images, "
            "layer after layer."
        ),
        "score --method taylor --keep 5 --data demo:val backbone.safetensors",
    ),
    (
        "Remove three of eight heads in each layer: the paper's Taylor member.",
        "prune --method taylor --keep 5 backbone.safetensors -o taylor.safetensors",
    ),
    (
        "Three different members: each loses another 12 of the 30 least important heads.",
        "prune --method taylor --sample 12/30 --seed 1 backbone -o m1.safetensors",
    ),
    (None, "prune --method taylor --sample 12/30 --seed 2 backbone -o m2.safetensors"),
    (None, "prune --method taylor --sample 12/30 --seed 3 backbone -o m3.safetensors"),
    (
        "Tune each for a few epochs; MLPs stay as they are, so that fusing them is exact.",
        (
            "finetune m1 --recipe demo --freeze mlp,embedding --data demo:train --seed 1 -o "
            "t1.safetensors"
        ),
    ),
    (
        None,
        (
            "finetune m2 --recipe demo --freeze mlp,embedding --data demo:train --seed 2 -o "
            "t2.safetensors"
        ),
    ),
    (
        None,
        (
            "finetune m3 --recipe demo --freeze mlp,embedding --data demo:train --seed 3 -o "
            "t3.safetensors"
        ),
    ),
    (
        "Fuse them into one model, and check it against its members.",
        "fuse t1 t2 t3 -o hydra.safetensors --check demo:val --tolerance 1e-5",
    ),
    (
        "A Deep Ensemble of three independently trained models, for comparison.",
        (
            f"eval backbone independent-2 independent-3 --ensemble {DATA} --json ensemble.json "
            "--predictions"
            " ensemble.predictions.safetensors --quiet"
        ),
    ),
    (
        (
            "The comparison: one model, as it is and calibrated; what was built; a pruned member, "
            "the paper's Hydra,"
            " the Deep Ensemble."
        ),
        (
            f"eval backbone single built taylor hydra {DATA} --predictions-in "
            "ensemble.predictions.safetensors --json"
            " results.json --html report.html"
        ),
    ),
)
"""What each command is for, and the command as it is typed."""


WORK = "built.build"
"""What `build` leaves of its search."""
SHIPPED = ("backbone", "independent-2", "independent-3")
"""Checkpoints that come with the package."""


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


@claims()
def demo(folder: Path, *, run: Callable[[list[str]], int], force: bool) -> None:
    """Run the commands in `folder`, printing each before it runs; with `force` its own files there
    are replaced.
    """
    import os

    if folder.exists() and not folder.is_dir():
        raise OutputError(f"-o {folder}: is not a directory", hint="Give another -o.")
    if folder.exists() and any(folder.iterdir()) and not force:
        hint = "Give --force to replace the demo's files in it, or another -o."
        raise OutputError(f"{folder}: is not empty", hint=hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        hold(real(folder), option="-o")
        for name in written([command for _, command in COMMANDS]):
            (folder / name).unlink(missing_ok=True)
        if (folder / WORK / "build.json").is_file():
            shutil.rmtree(folder / WORK)
    except OSError as error:
        raise OutputError(f"-o {folder}: cannot be written ({error.strerror})") from error
    source = files("hydrasurgeon") / "demo"
    for name in SHIPPED:
        weights = f"{name}.safetensors"
        write_bytes(folder / weights, (source / weights).read_bytes())
    started, here = time.monotonic(), Path.cwd()
    render.say(f"cd {folder}", style="bold cyan", fold=False)
    os.chdir(folder)
    try:
        for comment, command in COMMANDS:
            if comment:
                render.say("")
                render.say(f"# {comment}", style="dim")
            render.say(f"hydrasurgeon {command}", style="bold cyan", fold=False)
            code = run(shlex.split(command))
            if code:
                raise SystemExit(code)
    finally:
        os.chdir(here)
    render.say("")
    render.say(
        f"Done in {time.monotonic() - started:.0f} s; the files are in {folder}.", style="dim"
    )
