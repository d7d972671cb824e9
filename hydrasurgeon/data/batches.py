"""Samples → batches: decoded and transformed once per pass, in worker processes beside the model."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from hydrasurgeon.data.samples import MEND, READS, Samples
from hydrasurgeon.errors import DataError

# Starting worker processes costs more than it gains below this many samples.
FEW = 512


@dataclass(frozen=True)
class Batch:
    inputs: Any
    labels: Tensor | None
    index: Tensor
    """Position of each sample in the set."""
    chances: Tensor | None = None
    """The probability of each class, where these are the labels."""

    @property
    def truth(self) -> Tensor | None:
        """What is learnt: probabilities where they were given, else labels."""
        return self.labels if self.chances is None else self.chances


def moved(inputs: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Inputs of a model, a tensor or a dict of them, on its device; only floating-point ones change
    their dtype.
    """
    if isinstance(inputs, Mapping):
        return {name: moved(value, device, dtype) for name, value in inputs.items()}
    return inputs.to(device, dtype if inputs.is_floating_point() else None)


def is_prepared(inputs: Any) -> bool:
    """Whether inputs are what a transform makes of samples: a tensor, or a mapping of tensors."""
    if isinstance(inputs, Mapping):
        return bool(inputs) and all(isinstance(value, Tensor) for value in inputs.values())
    return isinstance(inputs, Tensor)


def by_length(samples: Samples) -> NDArray[np.int64] | None:
    """Texts from long to short, so that a batch holds little padding; None for what has no length."""
    if samples.kind != "text":
        return None
    lengths = (len(samples.content_if_any(i)) for i in range(len(samples)))
    return np.argsort(-np.fromiter(lengths, np.int64, len(samples)), kind="stable")


def batch_size_of(count: int | None) -> int:
    """Samples in one pass: as many as were asked for, or as suit the device."""
    if count is not None:
        return count
    return 256 if torch.cuda.is_available() else 64


class Batches:
    """One pass over samples, repeatable; `failed` says which samples could not be read."""

    def __init__(
        self,
        samples: Samples,
        transform: Callable[[Any], Any],
        *,
        batch_size: int | None,
        order: Sequence[int] | NDArray[np.int64] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int | None = None,
        skip_bad: bool = False,
        augment_seed: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self.samples = samples
        self.failed: dict[int, str] = {}
        """Why samples could not be read, by their places, as they are met."""
        reads = getattr(transform, "kind", "image")
        if reads != samples.kind:
            raise DataError(
                f"{samples.spec}: holds {samples.kind}s, the model reads {reads}s",
                hint="Give data of the model's kind.",
            )
        wanted = getattr(transform, "inputs", None)
        if samples.kind == "text" and wanted not in (None, samples.inputs):
            raise DataError(
                f"{samples.spec}: holds {samples.contents}, the model was tuned on {READS[wanted]}",
                hint=MEND[wanted],
            )
        collate = collate or getattr(transform, "collate", None)
        order = range(len(samples)) if order is None else order
        if samples.kind == "text" and not skip_bad:
            # A missing text is reported before anything runs, not hours later.
            for i in np.sort(order):
                samples.read(int(i))
        if workers is None:
            workers = max(1, min(os.cpu_count() or 1, 8) - 1)
            # A tokenizer is faster than the way to another process.
            if samples.kind == "text" or len(order) < FEW:
                workers = 0
        self._loader: DataLoader[Any] = DataLoader(
            _Prepared(samples, transform, skip_bad, augment_seed),
            batch_size=batch_size_of(batch_size),
            sampler=array("q", order),
            num_workers=workers,
            collate_fn=partial(
                _collated, collate=collate or default_collate, labelled=samples.labels is not None
            ),
            drop_last=drop_last,
            # The loader draws a seed for its workers, which must not move the caller's random
            # numbers.
            generator=torch.Generator().manual_seed(0),
        )

    @property
    def skipped(self) -> list[str]:
        """Why samples could not be read."""
        return list(self.failed.values())

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        self.failed.clear()
        written = self.samples.written
        chances = None
        if written is not None and written.chances is not None:
            chances = torch.from_numpy(written.chances)
        for batch, failures in self._loader:
            for message, hint, fatal, i in failures:
                if fatal:
                    raise DataError(message, hint=hint)
                self.failed[i] = message
            if batch is not None:
                yield batch if chances is None else replace(batch, chances=chances[batch.index])


def first_batch(
    samples: Samples, transform: Callable[[Any], Any], count: int, *, skip_bad: bool = False
) -> Any:
    """The inputs of the first samples, as one batch on the CPU."""
    batch = next(
        iter(Batches(samples, transform, batch_size=count, workers=0, skip_bad=skip_bad)), None
    )
    if batch is None:
        raise unreadable(samples)
    return batch.inputs


def unreadable(samples: Samples) -> DataError:
    """The error for data of which not one sample can be read."""
    return DataError(
        f"{samples.spec}: none of its {len(samples)} samples can be read",
        hint="Run without --skip-bad to see what is wrong with the first.",
    )


@dataclass
class _Prepared(Dataset[Any]):
    samples: Samples
    transform: Callable[[Any], Any]
    skip_bad: bool
    augment_seed: int | None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Any:
        try:
            raw = self.samples.read(i)
        except DataError as error:  # an exception would lose its words on the way out of a worker
            return error.message, error.hint, not self.skip_bad, i
        label = None if self.samples.labels is None else self.samples.labels[i]
        return i, label, self._prepare(raw, i)

    def _prepare(self, raw: Any, i: int) -> Any:
        if self.augment_seed is None:
            return self.transform(raw)
        # In the caller's own process its random numbers must not notice.
        saved = torch.get_rng_state(), random.getstate(), np.random.get_state()
        self._seed(i)
        try:
            return self.transform(raw)
        finally:
            torch.set_rng_state(saved[0])
            random.setstate(saved[1])
            np.random.set_state(saved[2])

    def _seed(self, i: int) -> None:
        seed = int(np.random.SeedSequence((self.augment_seed or 0, i)).generate_state(1)[0])
        # torch.manual_seed would seed every device, and formats a stack trace to do so.
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)


def _collated(
    items: list[Any], *, collate: Callable[[list[Any]], Any], labelled: bool
) -> tuple[Batch | None, list[tuple[str, str | None, bool, int]]]:
    """The samples that could be read as a batch, and why others could not."""
    failures = [item for item in items if isinstance(item[0], str)]
    good = [item for item in items if not isinstance(item[0], str)]
    if not good:
        return None, failures
    index = torch.tensor([i for i, _, _ in good])
    labels = None
    if labelled:
        labels = torch.from_numpy(np.stack([label for _, label, _ in good]))
    return Batch(collate([inputs for _, _, inputs in good]), labels, index), failures
