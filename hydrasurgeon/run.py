"""What long work tells its caller, and which of several processes writes."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["Progress", "is_main_process"]

Progress = Callable[[str, int, int], None]
"""What is being done, steps done, steps in all."""


def is_main_process() -> bool:
    """Whether this process writes: the first of those that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0
