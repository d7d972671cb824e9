"""Copies of the weights that are trained: their moving average, and the best so far.

    average ← d · average + (1 − d) · weights,    d = min(ema, (1 + step) / (10 + step))

so that short trainings are averaged over, too, and forget where they started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from hydrasurgeon.tuning.recipes import Recipe
from hydrasurgeon.tuning.state import TrainingPosition

Copy = Mapping[str, Tensor]
"""A tensor for each parameter that is trained, by its name."""


class Copies:
    """What is kept of a model's trained parameters beside themselves."""

    def __init__(self, model: nn.Module, recipe: Recipe, *, validated: bool) -> None:
        self.live = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.recipe = recipe
        self.choosing = validated and recipe.keep == "best"
        self.kept: dict[str, Copy] = {"ema": _cloned(self.live)} if recipe.ema else {}

    def expected(self, position: TrainingPosition) -> set[str]:
        """Which copies there are where a training stands."""
        best = self.choosing and position.best is not None
        return {*(["ema"] if self.recipe.ema else []), *(["best"] if best else [])}

    def restore(self, kept: Mapping[str, Copy]) -> None:
        """The copies of an interrupted training."""
        device = next(iter(self.live.values())).device
        self.kept = {
            which: {name: t.to(device) for name, t in copy.items()} for which, copy in kept.items()
        }

    def average(self, step: int) -> None:
        """Take the weights after this many steps into their average."""
        if "ema" in self.kept:
            average = self.kept["ema"]
            update = get_ema_multi_avg_fn(min(self.recipe.ema, (1 + step) / (10 + step)))
            update([*average.values()], [self.live[name].detach() for name in average], step)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with the averaged weights, where they are averaged."""
        before = _cloned(self.live) if "ema" in self.kept else {}
        self._put("ema")
        yield
        for name, tensor in before.items():
            self.live[name].data.copy_(tensor)

    def close_epoch(self, position: TrainingPosition) -> None:
        """Keep what was just measured, where it is the best."""
        if self.choosing and position.best == len(position.log) - 1:
            self.kept["best"] = _cloned(self.kept.get("ema", self.live))

    def settle(self) -> None:
        """Leave in the model what is written: the best, the average, or what is there."""
        self._put("best" if "best" in self.kept else "ema")

    def _put(self, which: str) -> None:
        for name, tensor in self.kept.get(which, {}).items():
            self.live[name].data.copy_(tensor)


def _cloned(tensors: Copy) -> Copy:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
