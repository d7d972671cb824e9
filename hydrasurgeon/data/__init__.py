"""Data specs (`D` in the commands) → samples → batches."""

from __future__ import annotations

from hydrasurgeon.data.loading import Batch, Batches
from hydrasurgeon.data.samples import Samples, fit_classes
from hydrasurgeon.data.sources import open_data

__all__ = ["Batch", "Batches", "Samples", "fit_classes", "open_data"]
