"""Everything that people see: tables, progress, errors. The only package that prints, and the only
one that uses rich.
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
"""Views of the commands that measure."""


def __getattr__(name: str) -> Any:
    """Import a view when its command has something to show."""
    if name.startswith("_"):
        raise AttributeError(name)
    module = "described" if name in DESCRIBED else "made"
    return imported(f"hydrasurgeon.render.{module}:{name}")
