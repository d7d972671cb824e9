"""What every search is given, and what each of its rounds gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.parts import Anatomy, Attention
from hydrasurgeon.criteria.circuits.inputs import Held
from hydrasurgeon.criteria.circuits.objective import Objective, Outcomes, margins
from hydrasurgeon.heads import Head
from hydrasurgeon.runtime.processes import World


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


@dataclass(frozen=True)
class NextHead:
    """The outcome of one round."""

    head: Head
    score: float


class Search(Protocol):
    """One way to find the head that is missed least, given those that are gone."""

    @property
    def guarantee(self) -> str: ...

    def start(self) -> float:
        """The objective before anything is removed."""
        ...

    def next(self, removed: Sequence[Head]) -> NextHead: ...

    def counts(self) -> dict[str, Any]:
        """What was computed so far, for the manifest."""
        ...

    def resume(self, removed: Sequence[Head], counts: Mapping[str, Any]) -> bool:
        """Go on behind removals that a search like it ended with, from the order alone; False where that would not give
        what a search from the start gives. ValueError for counts that it cannot have made."""
        ...

    def memory(self) -> dict[str, Any]:
        """What the next round needs besides the heads removed so far; plain JSON."""
        ...

    def recall(self, memory: dict[str, Any]) -> None:
        """Know again what `memory` gave; ValueError for what it cannot have given."""
        ...


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
