"""Shapes of arrays in signatures: jaxtyping's where it is loaded, so that tests check them;
otherwise without any import.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.modules.get("jaxtyping"):
    from jaxtyping import Bool, Float, Int
else:

    class _Unchecked:
        def __class_getitem__(cls, shape: object) -> Any:
            return Any

    Bool = Float = Int = _Unchecked

__all__ = ["Bool", "Float", "Int"]
