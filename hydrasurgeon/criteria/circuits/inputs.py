"""Model inputs held in memory: decoded once, then taken in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from hydrasurgeon.data import moved

MASK = "attention_mask"
"""Under which name texts say which of their tokens are real."""


@dataclass(frozen=True)
class Held:
    """All inputs of one set: a tensor, or tensors by name as text models take them."""

    parts: Mapping[str, Tensor]
    named: bool
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, batches: Iterable[Any], device: torch.device, dtype: torch.dtype) -> Held:
        """Batches may be padded to different lengths; the shorter ones are padded on (and masked)."""
        inputs = list(batches)
        named = bool(inputs) and isinstance(inputs[0], Mapping)
        rows: list[dict[str, Tensor]] = [dict(b) if named else {"": b} for b in inputs]
        return cls({k: _stacked([row[k] for row in rows]) for k in (rows[0] if rows else ())}, named, device, dtype)

    def __len__(self) -> int:
        return len(next(iter(self.parts.values()))) if self.parts else 0

    @property
    def lengths(self) -> Int[Tensor, " sample"] | None:
        """Tokens of each text; None where all inputs are of one size."""
        mask = self.parts.get(MASK)
        return None if mask is None else mask.ne(0).sum(dim=1)

    def take(self, index: Tensor) -> Any:
        """These samples as the model's input, on its device, without padding that none of them needs."""
        chosen = {name: part[index] for name, part in self.parts.items()}
        if MASK in chosen:
            used = int(chosen[MASK].ne(0).any(dim=0).nonzero().max()) + 1
            chosen = {name: part[:, :used] for name, part in chosen.items()}
        there: Any = moved(chosen, self.device, self.dtype)
        return there if self.named else there[""]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Any]]:
        """(index, inputs) in the order of the set."""
        for index in torch.arange(len(self)).split(size):
            if len(index):
                yield index, self.take(index)


def _stacked(parts: list[Tensor]) -> Tensor:
    if parts[0].dim() == 2:
        longest = max(part.shape[1] for part in parts)
        parts = [pad(part, (0, longest - part.shape[1])) for part in parts]
    return torch.cat([part.cpu() for part in parts])
