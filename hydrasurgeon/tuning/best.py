"""The best weights so far, by the validation set."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from hydrasurgeon.tuning.recipes import Recipe
from hydrasurgeon.tuning.state import TrainingPosition


class BestEpoch:
    """A copy of what is trained, as it was after the best epoch."""

    def __init__(self, model: nn.Module, recipe: Recipe, *, validated: bool) -> None:
        self.live = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.choosing = validated and recipe.keep == "best"
        self.kept: Mapping[str, Tensor] | None = None
        """A tensor for each parameter that is trained, by its name."""

    def expected(self, position: TrainingPosition) -> bool:
        """Whether there is a copy where a training stands."""
        return self.choosing and position.best is not None

    def restore(self, kept: Mapping[str, Tensor] | None) -> None:
        """The copy of an interrupted training."""
        if kept is not None:
            kept = {name: tensor.to(self.live[name].device) for name, tensor in kept.items()}
        self.kept = kept

    def close_epoch(self, position: TrainingPosition) -> None:
        """Keep what was just measured, where it is the best."""
        if self.choosing and position.best == len(position.log) - 1:
            self.kept = {name: tensor.detach().clone() for name, tensor in self.live.items()}

    def settle(self) -> None:
        """Leave in the model what is written."""
        for name, tensor in (self.kept or {}).items():
            self.live[name].data.copy_(tensor)
