"""timm's registry of architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add_architecture(build: Callable[..., Any]) -> None:
    """Make `timm.create_model` know a function by its name."""
    from timm.models import is_model, register_model

    if not is_model(build.__name__):
        register_model(build)
