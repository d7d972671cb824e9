"""Command lines as people type them → as Typer reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hydrasurgeon.errors import UsageError


def spread(arguments: list[str], option: str) -> list[str]:
    """`--vs a b c` → `--vs a --vs b --vs c`: everything up to the next option belongs to it."""
    words: list[str] = []
    inside = False
    for argument in arguments:
        if argument.startswith("-"):
            inside = argument == option
            words += [] if inside else [argument]
        else:
            words += [option, argument] if inside else [argument]
    return words


PAGES = {".html", ".htm", ".md", ".tex", ".json", ".csv", ".log", ".out"}
"""No checkpoint ends so: who writes one behind an option means a file."""


def printed(arguments: list[str], suffixes: Mapping[str, tuple[str, ...]]) -> list[str]:
    """`--markdown` alone → `--markdown -`: it takes the next word only where that ends as such a file does, or is
    `-`."""
    words: list[str] = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        alone = word in suffixes and following != "-" and not following.endswith(suffixes[word])
        if alone and Path(following).suffix in PAGES:
            raise UsageError(
                f"{word} {following}: must end in {' or '.join(suffixes[word])}",
                hint=f"Write {word}={following} to call it so.",
            )
        words += [word, "-"] if alone else [word]
    return words
