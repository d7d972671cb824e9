"""Projections of any size, and one whose bias does not lie beside its weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class Biased(nn.Module):
    """One linear that packs q, k and v, with the biases that their owner has for some of the three."""

    weight: Tensor
    owner: nn.Module

    def __init__(self, packed: nn.Linear, owner: nn.Module, names: Sequence[str | None]) -> None:
        super().__init__()
        # The very dictionary: what is replaced there is replaced here.
        self._parameters = packed._parameters
        self.names = tuple(names)
        self.__dict__["owner"] = owner  # no part of this module

    @property
    def bias(self) -> Tensor:
        """The bias of all rows; zeros where a part has none."""
        none = self.weight.new_zeros(len(self.weight) // len(self.names))
        return torch.cat(
            [none if name is None else getattr(self.owner, name) for name in self.names]
        )

    @property
    def out_features(self) -> int:
        return len(self.weight)

    @property
    def places(self) -> list[tuple[dict[str, Any], str]]:
        """Parameter dictionaries and keys of the parts of the bias."""
        return [(self.owner._parameters, name) for name in self.names if name is not None]

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def resize(linear: nn.Linear, *, rows: int | None = None, columns: int | None = None) -> nn.Linear:
    """Resize a linear layer in place; its new parameters are uninitialised until weights are loaded."""
    shape = (
        linear.out_features if rows is None else rows,
        linear.in_features if columns is None else columns,
    )
    if shape != tuple(linear.weight.shape):
        linear.out_features, linear.in_features = shape
        linear.weight = nn.Parameter(torch.empty(shape, device=linear.weight.device))
        if linear.bias is not None and len(linear.bias) != shape[0]:
            linear.bias = nn.Parameter(torch.empty(shape[0], device=linear.weight.device))
    return linear
