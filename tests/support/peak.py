"""A counter of the bytes of tensors that are alive at once, which is the same on every machine."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Peak(TorchDispatchMode):
    """Within the block, the most bytes of tensors made in it that lived at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = {_place(tensor) for tensor in _tensors((args, kwargs))}
        outputs = func(*args, **kwargs)
        for tensor in _tensors(outputs):
            place = _place(tensor)
            if place not in before and place not in self.alive:
                storage = tensor.untyped_storage()
                self.alive[place] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, place, None)
        self.bytes = max(self.bytes, sum(self.alive.values()))
        return outputs


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [tensor for one in value for tensor in _tensors(one)]
        if isinstance(value, list | tuple)
        else []
    )
