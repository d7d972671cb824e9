"""A history as a shell script: the commands that make the file again, each writing what a later one
reads.

What a step read is known by its hash: an earlier step wrote it, or the history begins with it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydrasurgeon.checkpoints.checkpoint import Checkpoint
from hydrasurgeon.checkpoints.checks import history_check, short
from hydrasurgeon.checkpoints.hub import is_hub_id
from hydrasurgeon.errors import ManifestError
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.files.manifest import Step
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.options.base import FRESH, words
from hydrasurgeon.options.command_line import recalled, script

MAX_NAME = 200
"""Bytes of a file's name: file systems allow 255, and a file that is being written has a longer
one.
"""


@dataclass(eq=False)
class File:
    """A checkpoint that a step reads or writes."""

    sha256: str | None
    name: str = ""
    """Name in the step that reads it."""
    place: str = ""
    """Its path below the folder in which the script runs."""
    of_step: bool = False


@dataclass(frozen=True)
class Retraced:
    """A step, with its files."""

    entry: Step
    inputs: tuple[File, ...]
    output: File

    def line(self) -> str:
        """Return the step as a command line."""
        entry = self.entry
        args = {name: value for name, value in entry.args.items() if name != "checkpoint"}
        options = words({**args, "seed": entry.seed or None}, type(recalled(entry, "history")))
        start = [] if self.inputs else [str(entry.args["checkpoint"])]
        names = [_typed(file) for file in self.inputs]
        return shlex.join(
            ["hydrasurgeon", entry.command, *names, *start, *options, "-o", _typed(self.output)]
        )


def retraced(checkpoint: Checkpoint) -> str:
    """Return a POSIX shell script that makes the checkpoint again; raise ManifestError if its
    history is insufficient.
    """
    where, steps = checkpoint.name, checkpoint.manifest.history
    if not steps:
        raise ManifestError(
            f"{where}: has no history", hint="Only files that hydrasurgeon wrote have one."
        )
    check = history_check(checkpoint.manifest)
    if check.holds is False:
        raise ManifestError(f"{where}: its history is incomplete: {check.detail}")
    linked_runs = _linked(steps)
    linked_runs[-1].output.name = checkpoint.path.name
    needed = {linked_runs[-1].output}
    runs: list[Retraced] = []
    for run in reversed(linked_runs):
        if run.output in needed:
            # A step with these options can have read so many checkpoints.
            command, count = run.entry.command, len(run.inputs)
            recalled(run.entry, where)
            start = str(run.entry.args.get("checkpoint", ""))
            fresh = count == 0 and start.startswith(FRESH) and start.isprintable()
            fresh = fresh and command == "finetune"
            if not fresh and ((count < 2) if command == "fuse" else (count != 1)):
                raise ManifestError(f"{where}: its history says that {command} read {count} files")
            runs.insert(0, run)
            run.output.of_step = True
            needed |= {*run.inputs}
    _place(runs, where)
    lines = [*_beside(runs)]
    for run in runs:
        folder = Path(run.output.place).parent
        if folder.name:
            lines.append(f"mkdir {folder}")
        lines.append(run.line())
    return script(
        f"How {where} was made. Names have no folders: copy or link these here, then run this:",
        lines,
    )


def _linked(steps: Sequence[Step]) -> list[Retraced]:
    """Link each step with the files that earlier steps wrote. Among equal weights, one with the
    recorded name wins, then the latest.
    """
    runs: list[Retraced] = []
    beginnings: dict[str, File] = {}
    for entry in steps:
        inputs = []
        for read in entry.inputs:
            alike = [run.output for run in reversed(runs) if run.output.sha256 == read.sha256]
            alike.sort(key=lambda file: file.name not in ("", read.name))
            file = alike[0] if alike else beginnings.setdefault(read.sha256, File(read.sha256))
            file.name = file.name or read.name
            inputs.append(file)
        runs.append(Retraced(entry, tuple(inputs), File(entry.output)))
    return runs


def _place(runs: Sequence[Retraced], where: str) -> None:
    """Give each file the name that history knows it by; a folder of its own where two would share
    one.
    """
    names_in_use: set[str] = set()

    def put(file: File, number: int) -> None:
        name = file.name or f"step-{number}{SUFFIX}"
        plain = name.isprintable() and Path(name).name == name and name not in (".", "..")
        if not plain or len(name.encode()) > MAX_NAME:
            raise ManifestError(f"{where}: its history names a file {name[:80]!r}")
        file.place = name if name not in names_in_use else f"{number}/{name}"
        names_in_use.add(name)

    for file in dict.fromkeys(file for run in runs for file in run.inputs):
        if file.of_step:
            continue
        if is_hub_id(file.name) and file.name.isprintable():
            file.place = file.name
        else:
            put(file, 0)
    for number, run in enumerate(runs, 1):
        put(run.output, number)


def _beside(runs: Sequence[Retraced]) -> Iterator[str]:
    """Yield the comment lines that begin the script: the files and data that must exist."""
    read = dict.fromkeys(file for run in runs for file in run.inputs if not file.of_step)
    written = {run.output.sha256 for run in runs}
    for file in read:
        yield f"#   {visible(file.place)}, weights {short(str(file.sha256))}"
    teachers = dict.fromkeys(teacher for run in runs for teacher in run.entry.teachers)
    for teacher in teachers:
        if teacher.sha256 not in written | {file.sha256 for file in read}:
            yield f"#   {visible(teacher.name)}, weights {short(teacher.sha256)}, a teacher"
    for spec, rows in dict.fromkeys((d.spec, d.rows) for run in runs for d in run.entry.data):
        yield f"#   {visible(spec)}, {rows} rows"


def _typed(file: File) -> str:
    """Return a file as it is typed. A trailing slash marks a directory."""
    place = f"./{file.place}" if file.place.startswith("-") else file.place
    return f"{place}/" if file.of_step and not place.endswith(SUFFIX) else place
