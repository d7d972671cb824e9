"""Low-rank pairs put into effect: W + B A in float64, rank after rank, rounded once to the dtype of W.

Every number of the sum depends on one row of W and B and one column of W and A only, and no library's matrix product is
asked:
the same bits come out whatever the threads, the processor, and the heads that were cut before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.lowrank import halves, is_half, whole_of
from hydrasurgeon.files.header import ITEMSIZE
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.scan import finite, spoiled
from hydrasurgeon.files.tensors import BLOCK_BYTES, CARRIER, Planned, Tensors, as_float, from_float, hashed

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.reading import Checkpoint
    from hydrasurgeon.files.tensors import Parts, Raw

MERGED = (
    "the low-rank changes are merged into their matrices, as other libraries load what is written; a hydra of such"
    " members stores each one's attention whole: give -o NAME.safetensors to fuse the changes alone"
)
"""What a command says that leaves pairs behind."""


@dataclass(frozen=True)
class Half:
    """A or B as it lies in a file."""

    name: str
    raw: Raw
    dtype: str


def has_pairs(checkpoint: Checkpoint) -> bool:
    """Whether some of its matrices run as W + B A."""
    return any(is_half(name) for name in checkpoint.tensors)


def added(base: Raw, dtype: str, a: Half, b: Half, path: Path) -> Raw:
    """W + B A; refused where A or B is not finite."""
    import numpy as np

    for half in (a, b):
        if not finite(np.ascontiguousarray(half.raw).reshape(-1).view("u1"), half.dtype):
            raise spoiled(half.name, path)
    down, up = as_float(a.raw, a.dtype), as_float(b.raw, b.dtype)
    whole = np.empty_like(base)
    # A few rows at a time: in float64 a large matrix is twice its own size, and its products once more.
    step = max(1, BLOCK_BYTES // max(1, 8 * base.shape[1]))
    # What the dtype cannot hold becomes infinite, and whoever runs it refuses that by name.
    with np.errstate(over="ignore"):
        for top in range(0, len(base), step):
            rows = slice(top, top + step)
            total = as_float(base[rows], dtype)
            for rank in range(len(down)):
                total += up[rows, rank, None] * down[rank]
            whole[rows] = from_float(total, dtype)
    return whole


class _InEffect(Tensors):
    """The tensors of a single model as it runs them: its pairs are part of their matrices."""

    def __init__(self, stored: Tensors, path: Path) -> None:
        super().__init__(stored.files, {n: stored.stored(n) for n in stored if not is_half(n)})
        self._file, self._path = stored, path

    def read(self, name: str) -> Raw:
        base = super().read(name)
        names = halves(name)
        if names[0] not in self._file:
            return base
        a, b = (Half(n, self._file.read(n), self._file[n].dtype) for n in names)
        return added(base, self[name].dtype, a, b, self._path)

    def blocks(self, name: str, *, start: int = 0, stop: int | None = None, most: int | None = None) -> Iterator[Raw]:
        if halves(name)[0] not in self._file:
            yield from super().blocks(name, start=start, stop=stop, most=most)
            return
        whole = self.read(name).reshape(-1)[start:stop]
        step = max(1, (most or BLOCK_BYTES) // whole.itemsize)
        for at in range(0, len(whole), step):
            yield whole[at : at + step]


def in_effect(checkpoint: Checkpoint) -> Checkpoint:
    """A single model without pairs, whose matrices read as they run; the hashes of its manifest are of the file's
    tensors."""
    if checkpoint.manifest.kind == "hydra" or not has_pairs(checkpoint):
        return checkpoint
    return replace(checkpoint, tensors=_InEffect(checkpoint.tensors, checkpoint.path))


def merged_plans(
    planned: Sequence[Planned], path: Path, unless: Callable[[str], bool] = lambda _: False
) -> list[Planned]:
    """What is to be written with its pairs merged, but for those of the matrices that are to keep them."""
    plans = {plan.name: plan for plan in planned}

    def plan(whole: Planned) -> Planned:
        a, b = halves(whole.name)
        if a not in plans or unless(whole.name):
            return whole

        def produce() -> Parts:
            base = _content(whole)
            down, up = (Half(n, _content(plans[n]), plans[n].dtype) for n in (a, b))
            return hashed([added(base, whole.dtype, down, up, path)])

        return Planned(whole.name, whole.dtype, whole.shape, produce)

    return [plan(each) for each in planned if not is_half(each.name) or unless(whole_of(each.name))]


def _content(plan: Planned) -> Raw:
    """A planned tensor in one piece."""
    import numpy as np

    parts = [part.reshape(-1) for part in plan.produce()]
    if not parts:
        return np.empty(plan.shape, dtype=CARRIER[ITEMSIZE[plan.dtype]])
    return np.concatenate(parts).reshape(plan.shape)


def check_whole(checkpoint: Checkpoint, what: str) -> None:
    """Refuse to write a model's pairs where other libraries read: they would run the matrices without them."""
    if checkpoint.manifest.kind == "hydra" or not has_pairs(checkpoint):
        return
    raise UsageError(
        f"{what}: {checkpoint.name} keeps low-rank pairs, which libraries that load a directory do not know",
        hint=(
            f"Write NAME.safetensors, or merge them first: hydrasurgeon prune {checkpoint.name} --mask"
            f" {sidecar(checkpoint.path).name} -o DIR/"
        ),
    )
