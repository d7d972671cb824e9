"""Pieces that several results share: kept heads as a picture, sizes, notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hydrasurgeon.heads import Kept
from hydrasurgeon.render.console import say, show

if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Tower


def notes(texts: Iterable[str]) -> None:
    for text in texts:
        say(f"note: {text}")


def picture(kept: Kept, towers: Mapping[str, Tower]) -> None:
    """A row for each layer: ■ kept, · removed."""
    widest = max(map(len, kept), default=0)
    for name, rows in kept.items():
        for layer, row in enumerate(rows):
            cells = "".join("■" if head in row else "·" for head in range(towers[name].heads))
            prefix = f"{name:{widest}} " if len(kept) > 1 else ""
            show(f"    {prefix}{layer:2d} {cells} {len(row)}")


def millions(count: int) -> str:
    """1.36 M; of what would be 0.00 M, the number."""
    return f"{count / 1e6:.2f} M" if count >= 5000 else f"{count:,}"


def size(nbytes: int) -> str:
    amount = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"
