"""A file made again by the script of its history."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from hydrasurgeon.cli.app import run
from hydrasurgeon.stages.inspect import inspect

NOTED = 'hydrasurgeon() { printf "%s\\0" "$#" "$@" >>words; }\n'
"""A shell function in place of the command. It notes the words, which this process then runs."""


def remade(path: Path, beside: Iterable[Path], folder: Path) -> Path:
    """Run the script of a file's history in a new folder that holds copies of these files alone;
    return the file that it writes.
    """
    text = inspect(path, commands=True)
    assert isinstance(text, str)
    folder.mkdir()
    for file in beside:
        copy = shutil.copytree if file.is_dir() else shutil.copy
        copy(file, folder / file.name)
    subprocess.run(["sh", "-c", NOTED + text], cwd=folder, check=True)
    words = (folder / "words").read_text().split("\0")
    with contextlib.chdir(folder):
        while words and words[0]:
            count, words = int(words[0]), words[1:]
            assert run([*words[:count], "--quiet"]) == 0
            words = words[count:]
    return folder / path.name
