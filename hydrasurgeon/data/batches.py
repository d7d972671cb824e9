"""Samples → batches, decoded and transformed once per pass; with torch, in worker processes beside
the model.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.samples import MEND, READS, Samples
from hydrasurgeon.deadline import check_deadline
from hydrasurgeon.errors import DataError

if TYPE_CHECKING:
    import torch

# Starting worker processes costs more than it gains below this many samples.
FEW = 512
DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of GPUs on Linux: of NVIDIA and AMD, and in WSL."""


@dataclass(frozen=True)
class Batch:
    """Samples that are answered together: tensors, or numpy's arrays."""

    inputs: Any
    labels: Any
    """None without labels."""
    index: Any
    """Position of each sample in the set."""
    chances: Any = None
    """Probabilities of each class, where these are the labels."""

    @property
    def truth(self) -> Any:
        """Targets of training: probabilities where the data have them, else labels."""
        return self.labels if self.chances is None else self.chances


def moved(inputs: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Move inputs of a model, a tensor or a dict of them, to a device; only floating-point ones
    change their dtype.
    """
    if isinstance(inputs, Mapping):
        return {name: moved(value, device, dtype) for name, value in inputs.items()}
    return inputs.to(device, dtype if inputs.is_floating_point() else None)


def is_prepared(inputs: Any) -> bool:
    """Return True for inputs as transforms return them: a tensor, or a mapping of tensors."""
    from torch import Tensor

    if isinstance(inputs, Mapping):
        return bool(inputs) and all(isinstance(value, Tensor) for value in inputs.values())
    return isinstance(inputs, Tensor)


def by_length(samples: Samples) -> NDArray[np.int64] | None:
    """Return the order of texts from long to short, so that batches have little padding; None for
    other samples.
    """
    if samples.kind != "text":
        return None
    lengths = (len(samples.content_if_any(i)) for i in range(len(samples)))
    return np.argsort(-np.fromiter(lengths, np.int64, len(samples)), kind="stable")


def batch_size_of(count: int | None) -> int:
    """Return the batch size: the given one, or a default that suits the device."""
    if count is not None:
        return count
    return 256 if has_gpu() else 64


@cache
def has_gpu() -> bool:
    """Return True if torch has a GPU; torch is imported only if the system has one."""
    if sys.platform == "linux" and not any(Path(device).exists() for device in DEVICES):
        return False
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


class Batches:
    """One pass over samples, repeatable; `failed` holds the samples that could not be read."""

    def __init__(
        self,
        samples: Samples,
        transform: Callable[[Any], Any],
        *,
        batch_size: int | None,
        order: Sequence[int] | NDArray[np.int64] | None = None,
        workers: int | None = None,
        arrays: bool = False,
        skip_bad: bool = False,
        augment_seed: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self.samples = samples
        self.failed: dict[int, str] = {}
        """Reasons why samples could not be read, by position, filled during the pass."""
        reads = getattr(transform, "kind", "image")
        if reads != samples.kind:
            raise DataError(
                f"{samples.spec}: holds {samples.kind}s, the model reads {reads}s",
                hint="Give data of the model's kind.",
            )
        model_inputs = getattr(transform, "inputs", None)
        if samples.kind == "text" and model_inputs not in (None, samples.inputs):
            raise DataError(
                f"{samples.spec}: holds {samples.contents}, the model was tuned on {READS[model_inputs]}",
                hint=MEND[model_inputs],
            )
        self._order: Any = range(len(samples)) if order is None else order
        if samples.kind == "text" and not skip_bad:
            # A missing text is reported before anything runs, not hours later.
            for i in np.sort(self._order):
                samples.read(int(i))
        self._size, self._drop_last = batch_size_of(batch_size), drop_last
        self._prepared = _Prepared(samples, transform, skip_bad, augment_seed)
        self._collated = partial(
            _collated,
            collate=getattr(transform, "arrays" if arrays else "collate", None),
            labelled=samples.labels is not None,
            arrays=arrays,
        )
        if workers is None:
            # A tokenizer is faster than the way to another process.
            alone = arrays or samples.kind == "text" or len(self._order) < FEW
            workers = 0 if alone else max(1, min(os.cpu_count() or 1, 8) - 1)
        self._workers, self._arrays = workers, arrays

    @property
    def skipped(self) -> list[str]:
        """Reasons why samples could not be read."""
        return list(self.failed.values())

    def __len__(self) -> int:
        full, rest = divmod(len(self._order), self._size)
        return full + (rest > 0 and not self._drop_last)

    def _loaded(self) -> Iterator[tuple[Batch | None, list[Failure]]]:
        if self._workers == 0:
            for at in range(len(self)):
                places = self._order[at * self._size : (at + 1) * self._size]
                yield self._collated([self._prepared[int(i)] for i in places])
            return
        import torch
        from torch.utils.data import DataLoader

        loader = DataLoader[Any](
            self._prepared,  # type: ignore[arg-type]
            batch_size=self._size,
            sampler=array("q", self._order),
            num_workers=self._workers,
            collate_fn=self._collated,
            drop_last=self._drop_last,
            # The loader draws a seed for its workers, which must not move the caller's random
            # numbers.
            generator=torch.Generator().manual_seed(0),
        )
        try:
            yield from _started(loader)
        except (RuntimeError, ConnectionError, EOFError) as error:
            if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
                raise
            raise DataError(
                f"{self.samples.spec}: a process that reads the samples ended before it was done",
                hint="It was killed, or memory is short: free some, or run smaller batches.",
            ) from error

    def _with(self, chances: NDArray[np.float32], batch: Batch) -> Batch:
        """Return a copy of a batch with the probabilities of its samples."""
        some = chances[np.asarray(batch.index)]
        if self._arrays:
            return replace(batch, chances=some)
        import torch

        return replace(batch, chances=torch.from_numpy(some))

    def __iter__(self) -> Iterator[Batch]:
        self.failed.clear()
        written = self.samples.written
        chances = None if written is None else written.chances
        for batch, failures in self._loaded():
            for message, hint, fatal, i in failures:
                if fatal:
                    raise DataError(message, hint=hint)
                self.failed[i] = self.samples.unread[i] = message
            check_deadline()
            if batch is not None:
                yield batch if chances is None else self._with(chances, batch)


def _started(loader: Iterable[Any]) -> Iterator[Any]:
    """Start a loader's workers, and undo that PyTorch then raises an exception at whatever line
    runs when a worker dies: the loader finds that out at the next batch.
    """
    if not hasattr(signal, "SIGCHLD") or current_thread() is not main_thread():
        return iter(loader)
    usual = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        signal.signal(signal.SIGCHLD, usual)


def first_batch(
    samples: Samples, transform: Callable[[Any], Any], count: int, *, skip_bad: bool = False
) -> Any:
    """Return the inputs of the first samples, as one batch on the CPU."""
    batch = next(
        iter(Batches(samples, transform, batch_size=count, workers=0, skip_bad=skip_bad)), None
    )
    if batch is None:
        raise unreadable(samples)
    return batch.inputs


def unreadable(samples: Samples) -> DataError:
    """Return the error for data without a single readable sample."""
    return DataError(
        f"{samples.spec}: none of its {len(samples)} samples can be read",
        hint="Run without --skip-bad to see what is wrong with the first.",
    )


@dataclass
class _Prepared:
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
        import torch

        # In the caller's own process its random numbers must not notice.
        saved = torch.get_rng_state(), random.getstate(), np.random.get_state()
        seed = int(np.random.SeedSequence((self.augment_seed, i)).generate_state(1)[0])
        # torch.manual_seed would seed every device, and formats a stack trace to do so.
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            return self.transform(raw)
        finally:
            torch.set_rng_state(saved[0])
            random.setstate(saved[1])
            np.random.set_state(saved[2])


Failure = tuple[str, str | None, bool, int]
"""Unreadable sample: the error message, the hint, whether it ends the pass, and the position."""


def _collated(
    items: list[Any],
    *,
    collate: Callable[[list[Any]], Any] | None,
    labelled: bool,
    arrays: bool,
) -> tuple[Batch | None, list[Failure]]:
    """Return the readable samples as a batch, and the failures of the others."""
    failures = [item for item in items if isinstance(item[0], str)]
    good = [item for item in items if not isinstance(item[0], str)]
    if not good:
        return None, failures
    index = np.array([i for i, _, _ in good])
    labels = np.stack([label for _, label, _ in good]) if labelled else None
    inputs = [inputs for _, _, inputs in good]
    if arrays:
        assert collate is not None
        return Batch(collate(inputs), labels, index), failures
    import torch
    from torch.utils.data import default_collate

    truth = None if labels is None else torch.from_numpy(labels)
    return Batch((collate or default_collate)(inputs), truth, torch.from_numpy(index)), failures
