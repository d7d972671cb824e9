"""Pictures: no display, no global state, the same bytes for the same
picture.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydrasurgeon.files.atomic import check_ending, output_file, write_bytes

SUFFIXES = (".png", ".svg")
"""Suffixes of a picture's file name, from which matplotlib takes the format."""


def check_plot(path: Path, *, force: bool, inputs: Iterable[object] = ()) -> Path:
    """Refuse what could not be drawn, before anything is computed."""
    check_ending(path, *SUFFIXES, option="--plot")
    return output_file(path, option="--plot", force=force, inputs=inputs)


def figure(width: float = 7, height: float = 4.5) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(drawn: Any, path: Path) -> None:
    import matplotlib

    buffer = io.BytesIO()
    # An SVG otherwise carries random identifiers and the time, a PNG the version of its writer.
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "hydrasurgeon"}):
        drawn.savefig(buffer, format=path.suffix[1:], dpi=150, metadata=metadata)
    write_bytes(path, buffer.getvalue())
