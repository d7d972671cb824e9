"""demo: a hydra from a small ViT on real images, by the commands that a user types."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from hydrasurgeon import render
from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.atomic import SUFFIX, claims, hold, real, write_bytes
from hydrasurgeon.files.manifest import sidecar

MEMBERS = tuple(
    command
    for seed in (1, 2, 3)
    for command in (
        (
            "A member: half of the 32 least important heads are cut out, drawn by the seed …"
            if seed == 1
            else None,
            f"prune vit --method taylor --sample 16/32 --seed {seed} -o p{seed}.safetensors",
        ),
        (
            "… and what is left is fine-tuned for one epoch." if seed == 1 else None,
            f"finetune p{seed} --recipe demo "
            f"--data demo:train --seed {seed} -o m{seed}.safetensors",
        ),
    )
)
COMMANDS = (
    (
        "Score the attention heads of a small ViT. The scores go into vit.heads.json.",
        "score backbone --method taylor --data demo:train --limit 1000 -o vit.safetensors",
    ),
    *MEMBERS,
    (
        "The hydra: one model that runs all three members in a single forward pass.",
        "fuse m1 m2 m3 -o hydra.safetensors",
    ),
    (
        "For comparison: the mean of three fine-tunings of one start, an ordinary model …",
        "fuse --mean backbone seed-2 seed-3 -o mean.safetensors",
    ),
    (
        "… and their Deep Ensemble, in one file that answers as the three models do.",
        "fuse backbone seed-2 seed-3 --mlp separate -o ensemble.safetensors",
    ),
    (
        "Accuracy, calibration, OOD detection and cost, on rows that were not used before.",
        "eval vit m1 hydra mean ensemble --data demo:test --ood near:held-out=demo:near "
        "--ood far:digits=demo:digits --json results.json --html report.html",
    ),
    (
        "Calibrate the hydra, so that it says when it does not know.",
        "calibrate hydra --data demo:val --fit-data demo:train --ood demo:textures --risk 0.05 "
        "-o calibrated.safetensors",
    ),
    (
        "Answers: label, probability, prediction set, or why there is none.",
        "predict calibrated --data demo:test -o answers.csv",
    ),
)
"""Each command as it is typed, behind the comment that is printed above it."""
SHIPPED = ("backbone", "seed-2", "seed-3")
"""Checkpoints that come with the package."""


def output_names() -> set[str]:
    """Return the names of all files that the demo leaves in its folder."""
    words = [word for _, command in COMMANDS for word in shlex.split(command)]
    outputs = [after for word, after in pairwise(words) if word in ("-o", "--json", "--html")]
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
        for name in output_names():
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"-o {folder}: cannot be written ({error.strerror})") from error
    source = files("hydrasurgeon") / "demo"
    for name in SHIPPED:
        weights = f"{name}.safetensors"
        write_bytes(folder / weights, (source / weights).read_bytes())
    started, here = time.monotonic(), Path.cwd()
    render.say(f"cd {folder}", style="bold cyan")
    os.chdir(folder)
    hints = render.NEXT.set(False)
    try:
        for comment, command in COMMANDS:
            if comment:
                render.say("")
                render.say(f"# {comment}", style="dim")
            render.say(f"hydrasurgeon {command}", style="bold cyan")
            code = run(shlex.split(command))
            if code:
                raise SystemExit(code)
    finally:
        os.chdir(here)
        render.NEXT.reset(hints)
    render.say("")
    render.say(
        f"Done in {time.monotonic() - started:.0f} s. The files are in {folder}; open {folder}/report.html "
        "in a browser.",
        style="dim",
    )
