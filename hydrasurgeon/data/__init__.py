"""Data specs (`D` in the commands) → samples → batches; torch and numpy are imported with what
needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydrasurgeon.lookup import imported

if TYPE_CHECKING:
    from hydrasurgeon.data.batches import (
        Batch,
        Batches,
        by_length,
        first_batch,
        is_prepared,
        moved,
    )
    from hydrasurgeon.data.samples import Samples, fit_classes, fit_held_out
    from hydrasurgeon.data.sources import open_data, read_data

_HOME = {
    **dict.fromkeys(
        ("Batch", "Batches", "by_length", "first_batch", "is_prepared", "moved"), "batches"
    ),
    **dict.fromkeys(("Samples", "fit_classes", "fit_held_out"), "samples"),
    **dict.fromkeys(("open_data", "read_data"), "sources"),
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    """Import a name from its module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'hydrasurgeon.data' has no attribute {name!r}")
    return imported(f"hydrasurgeon.data.{_HOME[name]}:{name}")
