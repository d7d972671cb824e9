"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of the histogram of latency, besides infinity."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Bounds of the histogram of batch sizes, besides infinity."""


class Counts:
    """Requests and their latency; inputs, what was answered, and how sure it was."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def named(kind: type[Any], name: str, what: str, *labels: str, **more: Any) -> Any:
            return kind(f"hydrasurgeon_{name}", what, labels, registry=registry, **more)

        self.requests = named(Counter, "requests", "Requests by status.", "status")
        self.seconds = named(Histogram, "request_seconds", "Latency of answered requests.", buckets=SECONDS)
        self.waiting = named(Gauge, "waiting", "Inputs that wait or are being answered.")
        self.batches = named(Histogram, "batch_size", "Inputs in one pass.", buckets=SIZES)
        self.inputs = named(Counter, "inputs", "Inputs that were answered.")
        self.abstained = named(Counter, "abstained", "Answers that were not sure enough.")
        self.unfamiliar = named(Counter, "unfamiliar", "Inputs that looked out-of-distribution.")
        self.went_on = named(Counter, "went_on", "Inputs that all members answered.")
        self.uncertainty = named(Summary, "uncertainty", "Total uncertainty of answers, in nats.")
        self.predicted = named(Counter, "predicted", "Most probable classes.", "label")

    def add(self, rows: Sequence[dict[str, Any]], members: int) -> None:
        """Count the answers of one pass of a model with so many members."""
        self.batches.observe(len(rows))
        self.inputs.inc(len(rows))
        for row in rows:
            self.abstained.inc(row["answer"] == "abstain")
            self.unfamiliar.inc(bool(row["unfamiliar"]))
            self.went_on.inc(row["members_run"] == members)
            self.uncertainty.observe(row["total"])
            self.predicted.labels(row.get("label", row["answer"])).inc()

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)
