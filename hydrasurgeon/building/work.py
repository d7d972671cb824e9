"""build's work folder: what it belongs to and what was measured in it, and commands that write into
it once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, OutputError
from hydrasurgeon.files.atomic import SUFFIX, named, write_text
from hydrasurgeon.files.resumable import Resumable, Work, there
from hydrasurgeon.files.untrusted import read_json
from hydrasurgeon.options.command_line import CommandLine
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.options.progress import Progress

STATE = "build.json"
"""File name of a work folder's record."""
SAVED = 100
"""Steps of a training after which it can go on from there."""
MOST_STATE = 4 << 20
"""Bytes of it."""


@dataclass(frozen=True)
class WorkState(Resumable):
    """Record of a work folder: its build, the measured times, and the output of an unfinished
    build.
    """

    work: Work = ("build", "hydrasurgeon.build-state/10")
    record: dict[str, Any] = field(default_factory=dict)
    continued_by: ClassVar = {"build": ()}

    def open(self) -> None:
        """Refuse a folder that belongs to other work, or begin one."""
        folder = self.path.parent
        files = [f for f in folder.iterdir() if f != self.path and not f.name.startswith(".")]
        if not files:  # nothing was made that other work could take for its own
            self.clear()
        if there(self.path):
            with self.judged():
                texts = read_json(self.path, most=MOST_STATE, error=ValueError)  # type: ignore[arg-type]
                record = self.position(texts, most=MOST_STATE)
                if not isinstance(record, dict):
                    raise ValueError("it does not say what was measured")
                self.record.update(record)
            self.noted()
            return
        # What lies in a folder without a state may come from anywhere.
        if files:
            message = f"{folder}: holds {files[0].name}, and no state of a build"
            raise OutputError(message, hint="Give another --cache, or delete the folder.")
        self.keep()

    def keep(self, **entries: Any) -> None:
        """Remember these too."""
        self.record.update(entries)
        write_text(self.path, json.dumps(self.texts(self.record)) + "\n")
        self.noted()

    @property
    def remedy(self) -> str:
        """Without its state a folder is of no use."""
        return f"Delete {self.path.parent}, or give another --cache."


def unfinished(options: BuildOptions) -> bool:
    """Return True if the output is what this build, of the same options, wrote before it was
    interrupted.
    """
    try:
        texts = read_json(options.work / STATE, most=MOST_STATE)
        written = json.loads(texts["position"])["unfinished"]
        return bool(written) and written == mark_of(options)
    except (CheckpointError, OutputError, ValueError, KeyError, TypeError, OSError):
        return False


def mark_of(options: BuildOptions) -> dict[str, Any]:
    """Return values that identify an output and what it was made for: a front's record, or a
    checkpoint's hash, and the options that choose.
    """
    (out, _) = named(options.out)
    goals = {"objective": options.goal}
    goals |= {name: getattr(options, name) for name in ("budget", "risk", "coverage")}
    if (out / "front.json").is_file():
        return {**goals, "output": read_json(out / "front.json", most=MOST_STATE)}
    slash = "/" * out.is_dir()
    return {**goals, "output": open_checkpoint(f"{out}{slash}").manifest.weights_sha256}


@dataclass(frozen=True)
class Workshop:
    """Runs commands that write into the work folder, each once."""

    options: BuildOptions
    progress: Progress

    def make(self, making: Iterable[CommandLine]) -> None:
        """Run the commands that make a model."""
        for command in making:
            self.perform(command)

    def perform(self, command: CommandLine) -> None:
        """Run a command unless what it writes is there; an interrupted training goes on."""
        assert command.out is not None
        if command.out.exists():
            return
        more: dict[str, Any] = {}
        if command.stage == "finetune":
            training_state = command.out.with_name(f"{command.out.stem}.training{SUFFIX}")
            more = {"resume": training_state.exists(), "save_every": SAVED}
        command.run(progress=self.progress, device=self.options.device, **more)
