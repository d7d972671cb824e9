"""Notes that a forward pass leaves for its caller: what the classifiers of its members were given.

Each call of `noting` has notes of its own, in whatever thread it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

Notes = list[tuple[nn.Module, Tensor]]
"""A part and what it was given, in the order of the calls."""

_NOTES: ContextVar[Notes | None] = ContextVar("notes", default=None)


@contextlib.contextmanager
def noting() -> Iterator[Notes]:
    """Collect notes within the block, in this thread alone."""
    notes: Notes = []
    before = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(before)


def note(part: nn.Module, features: Tensor) -> None:
    """Keep what a part was given, if the caller of this pass wants to know."""
    notes = _NOTES.get()
    if notes is not None:
        notes.append((part, features))


def note_inputs(part: nn.Module) -> None:
    """Let a part note what it is given, from now on."""
    if _note not in part._forward_pre_hooks.values():
        part.register_forward_pre_hook(_note)


def _note(part: nn.Module, arguments: tuple[Any, ...]) -> None:
    note(part, arguments[0])
