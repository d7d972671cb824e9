"""Checks that parameters are shared or unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def same(parts: Sequence[Sequence[nn.Module | nn.Parameter]]) -> bool:
    """Return True if all members hold the very same parameters, not only equal ones."""
    identities = [[id(p) for part in parts_of for p in _parameters(part)] for parts_of in parts]
    return all(identity == identities[0] for identity in identities)


def _parameters(part: nn.Module | nn.Parameter) -> list[nn.Parameter]:
    return [part] if isinstance(part, nn.Parameter) else list(part.parameters())


Place = tuple[dict[str, Any], str]
"""A module's dict of parameters and a name. The parameter there may be replaced later."""


class Watch:
    """A value that is true while parameters are unchanged: not replaced and, where `copied`, not
    written to.
    """

    def __init__(self, used: Sequence[Place], copied: Sequence[Place] = ()) -> None:
        self._used, self._copied = list(used), list(copied)
        self._before = self._now()

    def __bool__(self) -> bool:
        return self._now() == self._before

    def _now(self) -> tuple[list[int], list[int]]:
        used = [owner[name] for owner, name in self._used]
        copied = [owner[name] for owner, name in self._copied]
        return list(map(Tensor.data_ptr, used + copied)), list(map(_version, copied))


def _version(parameter: Tensor) -> int:
    return 0 if parameter.is_inference() else parameter._version


def captured() -> bool:
    """Return True while operations are being traced or transformed."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
