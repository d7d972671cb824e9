"""Tell timm about us as soon as both are imported, in either order, without importing timm or
torch.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

REGISTRY = "timm.models"
"""The module after which timm knows its models."""


def install() -> None:
    """Register now if timm is there already, else right after it is imported."""
    if REGISTRY in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]


def _register() -> None:
    from hydrasurgeon.sharing.timm_entry import register

    register()


class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != REGISTRY:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _register()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
