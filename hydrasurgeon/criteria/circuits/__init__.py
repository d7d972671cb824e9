"""Greedy circuit extraction (paper D.1.2, Algorithm 1): one objective, two searches, resumable
and shareable.
"""

from __future__ import annotations

from pathlib import Path

from hydrasurgeon.files.atomic import real
from hydrasurgeon.files.resumable import clear

SEARCH = ("search", "hydrasurgeon.search/5")
"""Name of the work, and format of its state."""


def state_path(output: Path, key: str) -> Path:
    """Return the state's path: `vit.circuit-avg.search.json` beside `vit.safetensors` or `vit/`."""
    place = real(output)
    return place.with_name(f"{place.name.removesuffix('.safetensors')}.{key}.search.json")


def clear_search(output: Path, key: str) -> None:
    """Delete the state of an interrupted search; it is useless once the order is written."""
    clear(state_path(output, key), SEARCH)
