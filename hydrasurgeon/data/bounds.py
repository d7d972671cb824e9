"""How much memory a file may ask for."""

from __future__ import annotations

# What any file may unpack to: 1 GiB.
FREE = 1 << 30
# Beyond that: how many times its own size. Pictures do not compress better.
RATIO = 100


def expands(unpacked: int, stored: int) -> bool:
    """Whether `unpacked` bytes are more than a file of `stored` bytes can honestly hold."""
    return unpacked > max(FREE, RATIO * stored)
