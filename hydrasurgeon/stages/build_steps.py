"""The commands that make what `build` chose: run as stages, or printed as a script that runs to the same bytes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.lookup import imported
from hydrasurgeon.visible import visible

STAGES = {name: f"hydrasurgeon.stages.{name}:{name}" for name in ("score", "prune", "finetune", "fuse", "calibrate")}
"""What each command runs."""


@dataclass(frozen=True)
class Command:
    """One command: a stage, what it reads, its keywords, and what it writes."""

    stage: str
    inputs: tuple[Path, ...]
    keywords: Mapping[str, Any]
    out: Path | None = None
    """None: it writes into its input."""

    def run(self, **more: Any) -> Any:
        """Run the stage in this process."""
        stage = imported(STAGES[self.stage])
        source: Any = list(self.inputs) if self.stage == "fuse" else self.inputs[0]
        out = {} if self.out is None else {"out": f"{self.out}{self.slash}"}
        keywords = {name: value for name, value in self.keywords.items() if value is not None}
        return stage(source, **keywords, **out, **more)

    def words(self, work: Path) -> list[str]:
        """As it is typed; what lies in the work folder stands below $work."""
        words = [self.stage, *(_place(path, work) for path in self.inputs)]
        for name, value in self.keywords.items():
            words += _option(name, value)
        return [*words, *([] if self.out is None else ["-o", _place(self.out, work) + self.slash])]

    @property
    def slash(self) -> str:
        """What makes a name a folder's: a path has lost it."""
        return "" if self.out is None or self.out.name.endswith(SUFFIX) else "/"


def _place(path: Path, work: Path) -> str:
    if path.parent == work:
        return f'"$work"/{shlex.quote(path.name)}'
    return shlex.quote(str(path))


def _option(name: str, value: Any) -> list[str]:
    """One option; repeated for several values, and left out where it has none."""
    option = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, Mapping):
        value = [f"{key}={each}" for key, each in value.items()]
    values = value if isinstance(value, list | tuple) else [value]
    return [word for each in values for word in (option, shlex.quote(str(each)))]


def script(commands: Sequence[Command], *, work: Path, out: Path) -> str:
    """A POSIX shell script of all commands; what they leave on the way goes into $work."""
    lines = [
        "#!/bin/sh",
        f"# Makes {visible(out.name)}.",
        "set -eu",
        f"work=${{WORK:-{shlex.quote(work.name)}.again}}",
        'mkdir -p "$work"',
    ]
    lines += [" ".join(["hydrasurgeon", *command.words(work)]) for command in commands]
    return "\n".join(lines) + "\n"
