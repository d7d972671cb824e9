"""A file made again by the script of its history."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from hydrasurgeon.stages.inspect import inspect


def remade(path: Path, beside: Iterable[Path], folder: Path) -> Path:
    """What the script writes in a new folder that holds copies of these files alone."""
    text = inspect(path, commands=True)
    assert isinstance(text, str)
    folder.mkdir()
    for each in beside:
        subprocess.run(["cp", "-R", str(each), str(folder)], check=True)
    command = f'hydrasurgeon() {{ {shlex.quote(sys.executable)} -m hydrasurgeon "$@"; }}\n'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(
        ["sh", "-c", command + text],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder / path.name
