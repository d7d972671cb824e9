"""A context in which libraries build modules: with random weights, or as shapes on the meta device."""

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
"""Functions that initialise a tensor; they do nothing to one without storage."""


class _Unfilled(TorchFunctionMode):
    """A mode that skips initialising tensors on the meta device, which would take most of the time."""

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
    """Build modules with random weights if `fresh`, else as shapes on the meta device."""
    if fresh:
        with torch.device("cpu"):
            yield
    else:
        with torch.device("meta"), _Unfilled():
            yield
