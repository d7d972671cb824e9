"""The kinds of hostile input: how files come in from somewhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from random import Random

from fuzz.bases import Bases
from fuzz.guard import Attempt


@dataclass(frozen=True)
class Kind:
    name: str
    share: int
    """How many there are of it beside the others: the cheap ones are many."""

    @property
    def exits(self) -> set[int]:
        """The exit codes that are right for it."""
        return import_module(f"fuzz.kinds.{self.name}").EXITS

    def attempt(self, seed: int, bases: Bases) -> Attempt:
        return self.drawn(Random(f"{self.name}:{seed}"), bases)

    def drawn(self, random: Random, bases: Bases) -> Attempt:
        make: Callable[[Random, Bases], Attempt] = import_module(f"fuzz.kinds.{self.name}").make
        return make(random, bases)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("headers", 260),
        Kind("manifests", 30),
        Kind("configs", 12),
        Kind("datasets", 60),
        Kind("predictions", 60),
        Kind("states", 12),
    )
}
