"""CAHP's weight of a head: the mean |∂L/∂m_h| over a quarter of the batches, L a batch's mean cross-entropy.

The mean of a batch comes before the absolute value, so the weights depend on how large batches are: they hold 32
samples in the order of the data, as the authors' do, in whatever batches the model runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.anatomy.parts import Attention

BATCH = 32
"""Samples whose mean loss is differentiated at once."""
# The authors take the first quarter. Data in class folders comes sorted by class, so it is every fourth batch here.
EVERY = 4


class Weigher:
    """Adds up mask gradients of the batches that count, as the samples come."""

    def __init__(self, model: nn.Module, sites: Sequence[Attention], samples: int) -> None:
        self.model, self.sites = model, sites
        batches = -(-samples // BATCH)
        self.weighed = range(0, EVERY * max(1, batches // EVERY), EVERY)
        self.seen = 0
        self._masks = {
            (s.tower, s.layer): torch.ones(len(s.heads), device=s.out.weight.device, requires_grad=True)
            for s in sites
            if s.heads
        }
        self._samples = 0
        self._total = torch.zeros(sum(len(mask) for mask in self._masks.values()), dtype=torch.float64)
        self._batches = 0

    def add(self, inputs: Any, labels: Tensor) -> None:
        """The next samples of the data, in any number."""
        for batch, part in self._parts(len(labels)):
            if batch in self.weighed:
                with masked(self.sites, self._masks):
                    logits = self.model(_slice(inputs, part)).float()
                    # A sum, so that a batch may come in pieces.
                    cross_entropy(logits, labels[part], reduction="sum").backward()
                self._samples += part.stop - part.start
            if self.seen % BATCH == 0:
                self._close()

    def weights(self) -> Float[Tensor, " head"]:
        """Over all heads, site after site."""
        self._close()
        return self._total / max(1, self._batches)

    def _parts(self, samples: int) -> Iterator[tuple[int, slice]]:
        """The samples cut where one batch of 32 ends: each part with its batch's number."""
        start = 0
        while start < samples:
            batch, place = divmod(self.seen, BATCH)
            stop = min(samples, start + BATCH - place)
            self.seen += stop - start
            yield batch, slice(start, stop)
            start = stop

    def _close(self) -> None:
        """The end of a batch of 32, or of the data."""
        if not self._samples:
            return
        gradients = [m.grad for m in self._masks.values() if m.grad is not None]
        self._total += torch.cat(gradients).double().cpu().abs() / self._samples
        for mask in self._masks.values():
            mask.grad = None
        self._samples, self._batches = 0, self._batches + 1


def _slice(inputs: Any, part: slice) -> Any:
    if isinstance(inputs, Mapping):
        return {name: value[part] for name, value in inputs.items()}
    return inputs[part]
