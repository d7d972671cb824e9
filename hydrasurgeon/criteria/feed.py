"""What a criterion is fed: a live model, and the batches that run through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.options.shared import Run


class NoData:
    """For criteria that run nothing."""

    rows = 0
    batch_size = 0
    records: tuple[DataRecord, ...] = ()

    def load(self) -> Any:
        raise AssertionError("this criterion was declared to need no model")

    def batches(self, name: str) -> Iterable[Any]:
        raise AssertionError("this criterion was declared to need no data")

    foreign_batches = batches


@dataclass
class Feed:
    """A live model and the batches that run through it."""

    module: Any
    sites: tuple[Any, ...]
    loader: Any
    rows: int
    records: tuple[DataRecord, ...]
    device: Any
    dtype: Any
    run: Run
    batch_size: int = 64
    foreign: tuple[Any, ...] = field(default=())

    @classmethod
    def open(
        cls, checkpoint: Single, data: str | None, ood: Sequence[str], *, method: str, towers: Sequence[str], run: Run
    ) -> Feed:
        """What a method runs on: the checkpoint's live model, the data and the OOD sets."""
        if data is None:
            raise UsageError(f"--method {method} needs data", hint="Give --data D.")
        from hydrasurgeon.data import Batches, by_length, open_data
        from hydrasurgeon.runtime.classifier import live_module
        from hydrasurgeon.runtime.processes import own_device
        from hydrasurgeon.runtime.tensors import device_of, dtype_of

        model = checkpoint.manifest.model
        samples = open_data(data, limit=run.limit, seed=run.seed, model=model)
        outside = [open_data(spec, limit=run.limit, seed=run.seed) for spec in ood]
        target, precision = device_of(own_device(run.device)), dtype_of(run.dtype)
        size = run.batch_size or (256 if target.type == "cuda" else 64)
        module = live_module(checkpoint).to(device=target, dtype=precision)
        family = checkpoint.family
        transform = family.transform(model, files=checkpoint.files)
        # cahp weighs heads on a quarter of the batches, as the data comes.
        order = (lambda _: None) if method == "cahp" else by_length
        loader, *foreign = (
            Batches(each, transform, batch_size=size, order=order(each), skip_bad=run.skip_bad)
            for each in (samples, *outside)
        )
        return cls(
            module=module,
            sites=tuple(s for s in family.anatomy(module).sites if s.tower in towers),
            loader=loader,
            rows=len(samples),
            records=tuple(DataRecord(**each.fingerprint()) for each in (samples, *outside)),
            device=target,
            dtype=precision,
            run=run,
            batch_size=size,
            foreign=tuple(foreign),
        )

    def load(self) -> tuple[Any, tuple[Any, ...]]:
        return self.module, self.sites

    def batches(self, name: str) -> Iterator[Any]:
        from hydrasurgeon.data import moved

        for done, batch in enumerate(self.loader, 1):
            yield moved(batch.inputs, self.device, self.dtype), batch.labels.to(self.device)
            self.run.tick(name, done, len(self.loader))

    def foreign_batches(self, name: str) -> Iterator[Any]:
        for loader in self.foreign:
            for done, batch in enumerate(loader, 1):
                yield batch.inputs
                self.run.tick(name, done, len(loader))
