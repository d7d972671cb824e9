"""Data specs (`D` in the commands) → samples → batches."""

from __future__ import annotations

from hydrasurgeon.data.batches import Batch, Batches, by_length, first_batch, moved
from hydrasurgeon.data.samples import Samples, fit_classes
from hydrasurgeon.data.sources import open_data
