"""Importance sampling: samples drawn with unequal inclusion probabilities, systematically, in nested stages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def inclusion_probabilities(size: Float[Tensor, " sample"], share: float) -> Float[Tensor, " sample"]:
    """Probabilities in proportion to `size`, none above 1, that add up to this share of the samples."""
    wanted = share * len(size)
    largest = float(size.max())
    size = size / largest if largest > 0 else torch.ones_like(size)  # so that tiny sizes add up
    sure = torch.zeros_like(size, dtype=torch.bool)
    while True:
        left = wanted - int(sure.sum())
        rest = torch.where(sure, 0.0, size)
        chance = torch.where(sure, 1.0, rest * (left / rest.sum().clamp(min=1e-300)))
        over = (chance > 1) & ~sure
        if not bool(over.any()):
            return chance
        sure |= over


@dataclass
class Drawn:
    """What was drawn so far, and how probable it was."""

    chance: Float[Tensor, " sample"]
    taken: Bool[Tensor, " sample"]
    generator: torch.Generator

    @classmethod
    def nothing(cls, samples: int, seed: int) -> Drawn:
        generator = torch.Generator().manual_seed(seed)
        return cls(torch.zeros(samples, dtype=torch.float64), torch.zeros(samples, dtype=torch.bool), generator)

    def up_to(self, chance: Float[Tensor, " sample"], order: Int[Tensor, " sample"]) -> Int[Tensor, " new"]:
        """The samples that come in when each is to be drawn with these (higher) probabilities; spread evenly along
        `order`."""
        chance = torch.maximum(chance, self.chance)
        # Chance to come in now, for those that did not before.
        now = ((chance - self.chance) / (1 - self.chance).clamp(min=1e-12)).clamp(0, 1)
        now = torch.where(self.taken, 0.0, now)[order]
        start = torch.rand(1, generator=self.generator, dtype=torch.float64)
        steps = now.cumsum(0) + start
        new = order[(steps.floor() > (steps - now).floor()) | (now >= 1)]
        self.chance = chance
        self.taken = self.taken.clone()
        self.taken[new] = True
        return new.sort().values
