"""Members that are tuned at once behind the trunk that they share.

Each learns by its own loss, from an order of samples and perturbations of its own: what is
minimised is the sum of the members' losses, never the loss of their mean. Behind the trunk nothing
stays shared, so that with a frozen trunk each member becomes what it would have become alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydrasurgeon.checkpoints.layout import in_trunk
from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.data import Batch, Batches
from hydrasurgeon.runtime.classifier import members_of
from hydrasurgeon.runtime.hydra import Hydra, Started
from hydrasurgeon.tuning.learning import Learning
from hydrasurgeon.tuning.loop import Training
from hydrasurgeon.tuning.trunk_cache import TrunkCache


def seed_of(seed: int, member: int) -> int:
    """By which a member's order of samples and augmentations are drawn."""
    return int(np.random.SeedSequence((seed, member)).generate_state(1)[0])


class Branches(nn.Module):
    """A hydra whose members answer inputs of their own; `free` lets the trunk learn, too."""

    def __init__(self, checkpoint: Checkpoint, *, free: bool) -> None:
        super().__init__()
        manifest = checkpoint.manifest
        assert manifest.kind == "hydra"
        trunk = manifest.fusion.trunk
        self.shared = in_trunk(checkpoint.weights, manifest.towers, trunk)
        modules = members_of(checkpoint, manifest, shares=self.shared)
        self.hydra = Hydra(modules, checkpoint.family.anatomy, trunk=trunk, mode="apart")
        self.frozen = trunk > 0 and not free

    def forward(self, inputs: Any) -> Any:
        """A member's answer to each of several inputs, or all members' to one."""
        if not isinstance(inputs, tuple):
            return self.hydra(inputs)
        return self.hydra.each([self.start(one) for one in inputs])

    def start(self, inputs: Any) -> Started:
        """What a member goes on from; a frozen trunk drops nothing out."""
        if isinstance(inputs, Started):
            return inputs
        if not self.hydra.trunk:
            return Started(inputs, None)
        if not self.frozen:
            return self.hydra.start(inputs)
        training = self.hydra.training
        with torch.no_grad():
            started = self.hydra.eval().start(inputs)
        self.hydra.train(training)
        return started

    def owners(self) -> dict[str, tuple[int | None, str]]:
        """For each parameter the number of its member, None of the trunk, and its name in the
        member's file.
        """
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        return {
            names[id(parameter)]: (None if self.shared(name) else number, name)
            for number, member in enumerate(self.hydra.members)
            for name, parameter in member.named_parameters()
        }


@dataclass(frozen=True)
class Abreast:
    """A batch for each member at a time."""

    each: Sequence[Batches]

    def __len__(self) -> int:
        return min(len(batches) for batches in self.each)

    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        return zip(*self.each, strict=False)


@dataclass
class Apart(Learning):
    """Every member learns for itself."""

    members: Sequence[Learning] = ()
    cache: TrunkCache | None = None

    def backward(self, accelerator: Any, model: nn.Module, parts: Sequence[Any]) -> float:
        """Gradients of the sum of all losses; their mean is what is told."""
        return super().backward(accelerator, model, parts) / len(self.members)

    def _loss(self, model: nn.Module, batch: Any, device: torch.device) -> Tensor:
        prepared = [
            member.prepared(one, device) for member, one in zip(self.members, batch, strict=True)
        ]
        inputs = [inputs for inputs, _ in prepared]
        if self.cache is not None:
            inputs = [
                self.cache(x, one.index, device) for x, one in zip(inputs, batch, strict=True)
            ]
        answers = model(tuple(inputs))
        each = zip(self.members, answers, prepared, batch, strict=True)
        return torch.stack(
            [member.of(logits, x, mixed, one.index) for member, logits, (x, mixed), one in each]
        ).sum()


def each_taught(learning: Learning, members: int) -> list[Learning]:
    """What each member learns by: from a teacher of its own, where there are as many."""
    teachers = learning.teachers
    groups = [teachers] * members
    if len(teachers) == members:
        groups = [[teacher] for teacher in teachers]
    return [replace(learning, teachers=group) for group in groups]


SeededBatches = Callable[[int, int, int, int, int], Batches]
"""(seed, epoch, rank, world, batches to skip) → a process's batches of one model."""


@dataclass(frozen=True)
class OneModel:
    """One model, as what is tuned."""

    module: nn.Module

    @property
    def live(self) -> nn.Module:
        """What answers inputs with logits."""
        return self.module

    @property
    def models(self) -> Sequence[nn.Module]:
        """The family's own modules."""
        return [self.module]

    def training(
        self, plain: Training, batches: SeededBatches, seed: int, still: Batches | None
    ) -> Training:
        """The training as it is."""
        return plain


@dataclass(frozen=True)
class AllMembers:
    """All members of a hydra, as what is tuned."""

    module: Branches

    @property
    def live(self) -> nn.Module:
        return self.module.hydra

    @property
    def models(self) -> Sequence[nn.Module]:
        return [*self.module.hydra.members]

    def training(
        self, plain: Training, batches: SeededBatches, seed: int, still: Batches | None
    ) -> Training:
        """Each member by the plain training; a frozen trunk's outputs of `still` inputs are kept."""
        branches, learning = self.module, plain.loss
        assert isinstance(learning, Learning)
        owners, count = branches.owners(), len(self.models)
        cache = TrunkCache(branches, still) if still is not None and branches.frozen else None

        def moves(name: str) -> bool:
            owner, stored = owners[name]
            return plain.trainable(stored) and not (owner is None and branches.frozen)

        def pace(name: str) -> float:
            owner, stored = owners[name]
            return plain.recipe.trunk_lr if owner is None else plain.pace(stored)

        def abreast(*place: int) -> Abreast:
            return Abreast([batches(seed_of(seed, i), *place) for i in range(count)])

        return replace(
            plain,
            epoch_batches=abreast,
            trainable=moves,
            owner=lambda name: owners[name][0],
            pace=pace,
            loss=Apart(members=each_taught(learning, count), cache=cache, problem=learning.problem),
        )


Subject = OneModel | AllMembers
"""What is tuned: its module, the family's models in it, and how it is trained."""
