"""build's work folder: what it belongs to, and commands that write into it once."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from hydrasurgeon.checkpoints.reading import open_checkpoint, open_single, undecided
from hydrasurgeon.errors import CheckpointError, OutputError
from hydrasurgeon.files.atomic import SUFFIX, sweep, write_text
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.manifest import OF_NEURONS, sidecar
from hydrasurgeon.files.resumable import Resumable, Work, there
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.processes import joined
from hydrasurgeon.stages.commands import Command

MOST_STATE = 4 << 20
"""Bytes of a work folder's state."""
LEFT = re.compile(r"\.(.+)\.(?:[0-9a-f]{8}\.(?:part|old)|exclusive\.lock)")
"""What a killed run leaves beside an output, and the output's name in it."""


@dataclass(frozen=True)
class State(Resumable):
    """What a work folder belongs to, and what `finetune` said of each file that it wrote there."""

    work: Work = ("build", "hydrasurgeon.build-state/4")

    def read(self) -> dict[str, list[str]]:
        """Refused where the folder belongs to other work."""
        folder = self.path.parent
        if there(self.path):
            with self.judged():
                texts = read_json(self.path, most=MOST_STATE, error=ValueError)  # type: ignore[arg-type]
                kind = TypeAdapter(dict[str, list[str]])
                return kind.validate_python(self.position(texts, most=MOST_STATE), strict=True)
        # What lies in a folder without a state may come from anywhere.
        files = [file for file in folder.iterdir() if not file.name.startswith(".")]
        if files:
            what = f"{folder}: holds {files[0].name}, and no state of a build"
            raise OutputError(what, hint="Give another --cache, or delete the folder.")
        return {}

    @property
    def remedy(self) -> str:
        """Without its state a folder is of no use."""
        return f"Delete {self.path.parent}, or give another --cache."

    def write(self, notes: dict[str, list[str]]) -> None:
        write_text(self.path, json.dumps(self.texts(notes)) + "\n")


def tidy(work: Path) -> None:
    """Remove what a killed build left half-written in its folder, and give whole files their
    sidecars back.
    """
    for folder in (work, work / "answers"):
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
            if match := LEFT.fullmatch(name):
                weights = folder / match[1].replace(".heads.json", SUFFIX)
                sweep(weights, sidecar(weights))
                sweep(folder / match[1])
                with contextlib.suppress(OSError):
                    (folder / f".{match[1]}.exclusive.lock").unlink(missing_ok=True)
    for weights in sorted(work.glob(f"*{SUFFIX}")):
        if not sidecar(weights).exists() and not weights.name.endswith(f".training{SUFFIX}"):
            # The last to be written; the manifest is in the file, too.
            write_text(sidecar(weights), open_checkpoint(weights).manifest.to_json())


def score_into(
    target: Path, commands: list[Command], options: BuildOptions, *, weights: str
) -> None:
    """Run what scores a copy, of which the first command makes it, where scores are missing; other
    weights are refused.
    """
    with joined() as world:
        present = set[str]()
        if target.exists():
            copy = undecided(open_single(target))
            if copy.record(copy.digests()).sha256 != weights:
                what = f"{target}: holds other weights than what is to be built from"
                raise CheckpointError(what, hint="Delete the folder, or give another --cache.")
            present = set(copy.manifest.scores)
        present = world.gather(present)[0]  # before anyone writes
        for command in commands:
            neurons = OF_NEURONS if command.options.get("part") == "neurons" else ""
            if f"{neurons}{command.options['method']}" not in present:
                command.run(device=options.device, progress=options.progress)
                world.gather(None)  # the first process writes


def perform(command: Command, options: BuildOptions, state: State) -> list[str]:
    """Run a command unless what it writes is there, and what a training said; an interrupted
    training goes on.
    """
    assert command.out is not None
    if not command.out.exists():
        begun = command.out.with_name(f"{command.out.stem}.training{SUFFIX}").exists()
        more = {"resume": True} if begun and command.stage == "finetune" else {}
        made = command.run(device=options.device, progress=options.progress, **more)
        if command.stage == "finetune" and made.notes:
            state.write(state.read() | {command.out.name: list(made.notes)})
    return state.read().get(command.out.name, [])
