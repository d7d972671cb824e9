"""A module whose parameters are called what files call them, whatever its library calls them in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn


class DiskNamed(nn.Module):
    """State dicts and `named_parameters` speak of `disk_name(name)`; loading translates back."""

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(_to_disk)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_to_memory)  # type: ignore[no-untyped-call]

    disk_name: Callable[[str], str]
    """A parameter's name in this module → its name in files."""

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in super().named_parameters("", recurse, remove_duplicate):
            yield (f"{prefix}." if prefix else "") + self.disk_name(name), parameter


def _to_disk(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    assert isinstance(module, DiskNamed)
    for name in [name for name in state if name.startswith(prefix)]:
        state[prefix + module.disk_name(name.removeprefix(prefix))] = state.pop(name)


def _to_memory(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    assert isinstance(module, DiskNamed)
    for name, _parameter in nn.Module.named_parameters(module):
        disk = prefix + module.disk_name(name)
        if disk in state:
            state[prefix + name] = state.pop(disk)
