"""Files that take time to make, made once in a process and written again from memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path

CACHE: dict[Hashable, dict[str, bytes]] = {}
"""The content of files by what they are called in the folder."""


def once(key: Hashable, folder: Path, make: Callable[[Path], object]) -> None:
    """Have `make` write into `folder`, or write what it wrote there the first time."""
    if key not in CACHE:
        before = set(folder.rglob("*"))
        make(folder)
        CACHE[key] = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in set(folder.rglob("*")) - before
            if path.is_file()
        }
        return
    for name, content in CACHE[key].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
