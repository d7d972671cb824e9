"""Kernel launches of one pass: the launch overhead that a small batch is dominated by."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        self.count += not views and func is not torch.ops.aten._unsafe_view.default
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def launches(model: nn.Module, inputs: Any) -> int:
    """Count the kernel launches of one pass, whose overhead dominates a small batch."""
    model(inputs)  # what is settled once is no part of a pass
    with Launches() as counter:
        model(inputs)
    return counter.count
