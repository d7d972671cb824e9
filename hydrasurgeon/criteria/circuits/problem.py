"""What every search is given: a model, its data in memory, and what is to be found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import pad

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.parts import Anatomy, Attention
from hydrasurgeon.criteria.circuits.objective import Objective, Outcomes, margins
from hydrasurgeon.data import moved
from hydrasurgeon.heads import Head
from hydrasurgeon.runtime.processes import World

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


@dataclass(frozen=True)
class Problem:
    """A model, its data and what is to be found."""

    module: nn.Module
    anatomy: Anatomy
    id_inputs: Held
    labels: Tensor
    ood_inputs: Held
    objective: Objective
    candidates: tuple[Head, ...]
    """In the order in which ties are decided."""
    batch_size: int
    together: int
    """How many sequences fill the device."""
    world: World = field(default_factory=World)
    tick: Callable[[float], None] = lambda _: None
    """Told what share of the round is done."""

    @property
    def sites(self) -> tuple[Attention, ...]:
        return self.anatomy.sites

    @property
    def precise(self) -> bool:
        """Whether rounding is small enough to be bounded."""
        return self.id_inputs.dtype in (torch.float32, torch.float64)

    @property
    def lengths(self) -> tuple[Tensor | None, Tensor | None]:
        """How long ID and OOD texts are."""
        return self.id_inputs.lengths, self.ood_inputs.lengths

    def left(self, removed: Sequence[Head]) -> list[Head]:
        gone = set(removed)
        return [head for head in self.candidates if head not in gone]


def measure(problem: Problem, off: Sequence[Head]) -> int:
    """Points of the model with these heads masked, as Algorithm 1 measures them."""
    ((low, _),) = problem.objective.points(outcomes_of(problem, off).one())
    return low


@torch.inference_mode()
def outcomes_of(problem: Problem, off: Sequence[Head]) -> Outcomes:
    """What the model predicts with these heads masked. Processes share the batches."""
    objective = problem.objective
    with ablated(problem.sites, off):
        logits = _logits(problem, problem.id_inputs)
        foreign = torch.zeros(0)
        if objective.needs_ood:
            foreign = objective.familiarity(_logits(problem, problem.ood_inputs))
    return Outcomes(margins(logits, problem.labels), objective.familiarity(logits), foreign)


def _logits(problem: Problem, inputs: Held) -> Tensor:
    world = problem.world
    mine = []
    for number, (_, batch) in enumerate(inputs.batches(problem.batch_size)):
        if number % world.size == world.rank:
            mine.append((number, problem.module(batch).double().cpu()))
    everyone = [pair for part in world.gather(mine) for pair in part]
    return torch.cat([logits for _, logits in sorted(everyone, key=lambda pair: pair[0])])
