"""How many bytes of tensors are alive at once: counted, so that it is the same on every machine."""

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
        taken = {_place(each) for each in _tensors((args, kwargs))}
        made = func(*args, **kwargs)
        for tensor in _tensors(made):
            place = _place(tensor)
            if place not in taken and place not in self.alive:
                storage = tensor.untyped_storage()
                self.alive[place] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, place, None)
        self.bytes = max(self.bytes, sum(self.alive.values()))
        return made


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [each for one in value for each in _tensors(one)] if isinstance(value, list | tuple) else []
    )
