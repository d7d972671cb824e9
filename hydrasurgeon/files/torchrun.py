"""Processes that torchrun started."""

from __future__ import annotations

import os


def is_main_process() -> bool:
    """Return True if this process writes: the first of those that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


def is_launched() -> bool:
    """Return True if torchrun started this process, and perhaps others beside it."""
    return "WORLD_SIZE" in os.environ


def process_count() -> int:
    """Return the number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return the number of this process among those of this machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))
