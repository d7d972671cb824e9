"""Where libraries make their modules: with weights that are drawn, or with shapes alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FILLING = {
    *("normal_", "uniform_", "erfinv_", "kaiming_uniform_", "xavier_uniform_", "trunc_normal_"),
    *("fill_", "zero_", "constant_", "zeros_", "ones_", "copy_"),
    *("add_", "sub_", "mul_", "div_", "clamp_"),
}
"""What initialises a tensor, and changes nothing of one without storage."""


class _Unfilled(TorchFunctionMode):
    """Within the block tensors on the meta device are not initialised, which would take most of the
    time.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__name__", "") in FILLING:
            tensor = args[0] if args else named["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **named)


@contextmanager
def construction(*, fresh: bool) -> Iterator[None]:
    """Within the block modules have weights if they are `fresh`, else shapes on the meta device."""
    if fresh:
        with torch.device("cpu"):
            yield
    else:
        with torch.device("meta"), _Unfilled():
            yield
