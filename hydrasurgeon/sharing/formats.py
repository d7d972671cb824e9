"""Formats that `export` writes: one file for each, and its line in the list."""

from __future__ import annotations

from hydrasurgeon.lookup import find_named
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
    return find_named(name, FORMATS, option="--format", noun="format")
