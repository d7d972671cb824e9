"""One process or several that split the samples: small results travel between them, nothing else
does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hydrasurgeon.files.torchrun import local_rank, process_count

Part = TypeVar("Part")
Made = TypeVar("Made")
REST = 0.1
"""Seconds in which gloo's threads free what they sent, for which they want Python's lock. Else the
end of a group may wait for ever (torch below 2.8), or the end of the process abort.
"""


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def gather(self, local: Any) -> list[Any]:
        """Return the values of all processes, in the order of their ranks, to every process."""
        if self.size == 1:
            return [local]
        everyone: list[Any] = [None] * self.size
        # The threads of an old torch fill the tensors outside of the mode in which they were made.
        with torch.inference_mode(False):
            dist.all_gather_object(everyone, local)
        return everyone

    def shared(self, parts: Iterable[Part], make: Callable[[Part], Made]) -> list[Made]:
        """Apply `make` to each part in one of the processes; return all results to every process."""
        local = [
            (number, make(part))
            for number, part in enumerate(parts)
            if number % self.size == self.rank
        ]
        everyone = [pair for results in self.gather(local) for pair in results]
        return [result for _, result in sorted(everyone, key=lambda pair: pair[0])]


@contextlib.contextmanager
def joined() -> Iterator[World]:
    """Yield the processes that torchrun started, or this one alone."""
    if process_count() == 1:
        yield World()
        return
    started_here = not dist.is_initialized()
    if started_here:
        # Predictions are small and travel over the CPU, whatever device the model runs on.
        dist.init_process_group("gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        if started_here:
            time.sleep(REST)
            dist.destroy_process_group()


def own_device(name: str) -> str:
    """Return the GPU of this process of torchrun; otherwise the name itself."""
    if process_count() > 1 and name in ("auto", "cuda"):
        return f"cuda:{local_rank()}" if torch.cuda.is_available() else name
    return name
