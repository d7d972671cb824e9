"""Batches of real data for `bench`: what a cascade takes depends on what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydrasurgeon.errors import DataError, UsageError

CASCADE = "cascade"
"""The kind of contender that is one."""
BATCHES = 8
"""Batches of each size, at most: a batch of one sample goes on or does not, so several make the mean."""


def check_cascade(*, data: str | None, compiled: bool) -> None:
    if data is None:
        raise UsageError("bench --cascade: how many rows go on depends on the data", hint="Give --data D.")
    if compiled:
        raise UsageError(
            "bench --cascade: does not go with --compile: its batches have a size that nobody knows before",
            hint="Leave one of them out.",
        )


class Real:
    """The first samples of a data set, read once for each batch size."""

    def __init__(self, spec: str, *, seed: int) -> None:
        from hydrasurgeon.data import open_data

        self.samples = open_data(spec, seed=seed)

    def batches(self, model: Any, count: int) -> list[Any]:
        """As this model reads them; the last one may be dropped, for it could be smaller."""
        from hydrasurgeon.data import Batches, moved

        whole = min(BATCHES, len(self.samples) // count)
        if whole == 0:
            raise DataError(
                f"{self.samples.spec}: has {len(self.samples)} samples, a batch of {count} is to be timed",
                hint="Give a smaller --batch.",
            )
        classifier = getattr(model, "model", model)
        weight = next(model.parameters())
        batches = Batches(self.samples, classifier.transform, batch_size=count, order=range(whole * count), workers=0)
        return [moved(batch.inputs, weight.device, weight.dtype) for batch in batches]


class Through:
    """A model that takes several batches, one after another."""

    def __init__(self, model: Callable[[Any], Any]) -> None:
        self.model = model

    def __call__(self, batches: Sequence[Any]) -> list[Any]:
        return [self.model(batch) for batch in batches]


def expected_macs(models: Mapping[str, Any], batches: Sequence[Any]) -> dict[str, int]:
    """Multiply-adds of the cascades among these, by the share that goes on here."""
    from hydrasurgeon.measuring.cost import step_macs
    from hydrasurgeon.runtime.cascaded import Cascading, cascade_in, rows_in, said

    expected = {}
    for name, each in models.items():
        if not isinstance(each, Cascading):
            continue
        _, cascade = cascade_in(each.model)
        if cascade.gate.everything:
            continue
        went = sum(
            len(part.rows)
            for batch in batches
            for part in said(each.model, batch)
            if len(part.members) == len(cascade.order)
        )
        share = went / sum(map(rows_in, batches))
        expected[name] = round(step_macs(each.model, batches[0], cascade.starters).expected(share))
    return expected
