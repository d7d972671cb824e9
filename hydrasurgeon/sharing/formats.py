"""Formats that `export` writes: one file for each, and its line in the list."""

from __future__ import annotations

from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.sharing.base import Format
from hydrasurgeon.sharing.graph_format import GraphFormat
from hydrasurgeon.sharing.stock_format import StockFormat

FORMATS: tuple[Format, ...] = (
    GraphFormat(),
    StockFormat(),
)
"""Every format."""


def format_named(name: str) -> Format:
    """Return a format; refuse a name that none has."""
    for candidate in FORMATS:
        if candidate.name == name:
            return candidate
    names = [candidate.name for candidate in FORMATS]
    raise UsageError(
        f"--format {name}: no such format{did_you_mean(name, names)}",
        hint=f"Available: {', '.join(names)}.",
    )
