"""How long work says how far it is; what is done with that is the caller's."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress"]

Progress = Callable[[str, int, int], None]
"""What is being done, steps done, steps in all."""
