"""What an interrupted command says: what it has saved, and the command that goes on."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from hydrasurgeon.options.base import Options

STATES = (".training.safetensors", ".search.json", ".partial")
"""Endings of files, beside what a command writes, that it goes on from."""
RESUMED = STATES[0]
"""Of these, what is gone on from when `--resume` says so."""


def typed(words: list[str]) -> str:
    """The command line that this process was started with, to be copied."""
    return shlex.join(["hydrasurgeon", *words])


def go_on(options: Options) -> str:
    """One line on what was saved, and how to go on."""
    words = sys.argv[1:]
    state = _state(options)
    if state is None:
        return f"interrupted: nothing was saved; to start over: {typed(words)}"
    if state.name.endswith(RESUMED):
        words += [] if "--resume" in words else ["--resume"]
    elif "--force" in words and not Path(str(getattr(options, "out", None))).exists():
        words.remove("--force")  # which would start over
    return f"interrupted: {state} holds what is done; to go on: {typed(words)}"


def _state(options: Options) -> Path | None:
    """What the command has left of its work."""
    work = getattr(options, "work", None)  # of build
    if isinstance(work, Path):
        return work if work.is_dir() else None
    place = Path(str(getattr(options, "out", None) or getattr(options, "checkpoint", None) or "-"))
    stem = f"{place.name.removesuffix('.safetensors')}."
    try:
        states = [path for path in place.parent.iterdir() if path.name.startswith(stem) and path.name.endswith(STATES)]
    except OSError:
        return None
    return max(states, key=lambda path: path.stat().st_mtime, default=None)
