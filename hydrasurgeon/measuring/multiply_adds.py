"""Multiply-adds of all that runs in a block: matrix products, convolutions and attention, by formulas of our own.

torch's own counter knows attention under some names only, and which name it runs under depends on torch's version,
the device and the dtype: one model would have as many figures as there are machines.
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operator → where its left factor stands; each number of the result sums over the factor's last dimension.
LEFT_FACTOR = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "matmul": 0, "linear": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "convolution", "_convolution")
"""torch's operators that convolve."""
# The first in inference mode. With gradients, `_scaled_dot_product_` is followed by what device, version and dtype
# choose: flash_attention_for_cpu, efficient_attention, cudnn_attention … Written out as products, it counts as those.
ATTENTION = ("scaled_dot_product_attention", "_scaled_dot_product_")


class MultiplyAdds(TorchDispatchMode):
    """Within the block, `count` grows by what each operator multiplies and adds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in LEFT_FACTOR:
            result = func(*args, **kwargs)
            self.count += result.numel() * args[LEFT_FACTOR[name]].shape[-1]
        elif name in CONVOLUTIONS:
            result = func(*args, **kwargs)
            self.count += result.numel() * prod(args[1].shape[1:])
        elif name.startswith(ATTENTION):
            result = func(*args, **kwargs)
            self.count += _attention(*args[:3])
        else:
            with self:  # what others are made of, einsum for one, may multiply
                result = func.decompose(*args, **kwargs)
            if result is NotImplemented:
                result = func(*args, **kwargs)
        return result


def _attention(query: Tensor, key: Tensor, value: Tensor) -> int:
    """q kᵀ and the maps times v: every query meets every key, whatever a mask then hides."""
    queries, keys = prod(query.shape[:-1]), key.shape[-2]
    return queries * keys * (query.shape[-1] + value.shape[-1])
