"""What people see: tables, progress, errors. The only folder that prints, and the only one that
knows rich.
"""

from typing import Any

from hydrasurgeon.lookup import imported
from hydrasurgeon.render.console import (
    NEXT,
    as_json,
    failed,
    finish_streams,
    prepare_streams,
    progress,
    raw,
    say,
    show,
    writing,
)

DESCRIBED = ("benched", "evaluated", "inspected", "monitored", "verified")
"""Views of what measures."""


def __getattr__(name: str) -> Any:
    """A view, which is imported when its command has something to show."""
    if name.startswith("_"):
        raise AttributeError(name)
    module = "described" if name in DESCRIBED else "made"
    return imported(f"hydrasurgeon.render.{module}:{name}")
