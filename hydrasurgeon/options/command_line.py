"""Commands as values: those that `build` chooses and that history records; they run as stages or
are printed as a shell script.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydrasurgeon.commands import RECORDED
from hydrasurgeon.errors import ManifestError, UsageError
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.files.manifest import Step
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.lookup import imported
from hydrasurgeon.options.base import Options, words


@dataclass(frozen=True)
class CommandLine:
    """One command: a stage, what it reads, its options, and what it writes."""

    stage: str
    inputs: tuple[Path | str, ...]
    options: Mapping[str, Any]
    out: Path | None = None
    """Output; None if the command writes into its input."""

    def run(self, **more: Any) -> Any:
        """Run the stage in this process, with those of the options `more` that it takes."""
        record = RECORDED[self.stage].options
        source: Any = list(self.inputs) if self.stage == "fuse" else self.inputs[0]
        options = {name: value for name, value in self.options.items() if value is not None}
        options |= {name: value for name, value in more.items() if name in record.model_fields}
        if self.out is not None:
            options["out"] = f"{self.out}{self.slash}"
        return imported(RECORDED[self.stage].place)(record.of(source, **options))

    def line(self) -> str:
        """Return the command as it is typed, without options that have their default."""
        record = RECORDED[self.stage].options
        usual = {name: field.default for name, field in record.model_fields.items()}
        options = {name: value for name, value in self.options.items() if value != usual[name]}
        out = [] if self.out is None else ["-o", f"{self.out}{self.slash}"]
        inputs = map(str, self.inputs)
        return shlex.join(["hydrasurgeon", self.stage, *inputs, *words(options, record), *out])

    def but(self, **changed: Any) -> CommandLine:
        """Return the same command with other options."""
        return replace(self, options={**self.options, **changed})

    @property
    def slash(self) -> str:
        """Slash that marks the output as a folder, which a path does not keep."""
        return "" if self.out is None or self.out.name.endswith(SUFFIX) else "/"


def script(title: str, lines: Iterable[str]) -> str:
    """Return a POSIX shell script that stops at the first failing command."""
    return "\n".join(["#!/bin/sh", f"# {visible(title)}", "set -eu", *lines]) + "\n"


def recalled(entry: Step, where: str) -> Options:
    """Return the options of a step in a history; ManifestError for commands and options that this
    version does not record.
    """
    if entry.command not in RECORDED:
        raise ManifestError(
            f"{where}: its history has a step {entry.command!r}, which cannot be repeated",
            hint=f"Only {', '.join(RECORDED)} can.",
        )
    args = {name: value for name, value in entry.args.items() if name != "checkpoint"}
    try:
        return RECORDED[entry.command].options.recalled(args)
    except (ValueError, UsageError) as error:
        raise ManifestError(f"{where}: its history's {entry.command}: {error}") from error
