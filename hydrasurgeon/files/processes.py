"""What torchrun says of several processes."""

from __future__ import annotations

import os


def is_main_process() -> bool:
    """Whether this process writes: the first of those that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


def is_launched() -> bool:
    """Whether torchrun started this process, and perhaps others beside it."""
    return "WORLD_SIZE" in os.environ


def process_count() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Which of this machine's processes this one is."""
    return int(os.environ.get("LOCAL_RANK", "0"))
