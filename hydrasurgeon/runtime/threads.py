"""Threads of a process, whatever computes in it. Nothing here imports PyTorch."""

from __future__ import annotations

import os
import sys

THREADS = "OMP_NUM_THREADS"
"""Environment variable for the number of threads of a product; PyTorch obeys it too."""


def threads() -> int:
    """Return PyTorch's number of threads where it is in use; 0 lets an engine choose."""
    torch = sys.modules.get("torch")
    if torch is not None:
        count: int = torch.get_num_threads()
        return count
    setting = os.environ.get(THREADS, "")
    return int(setting) if setting.isascii() and setting.isdigit() and len(setting) < 5 else 0


def share_threads(processes: int) -> None:
    """Give each of so many processes its part of the processor."""
    count = max(1, (threads() or os.cpu_count() or 1) // processes)
    os.environ[THREADS] = str(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
