"""Pictures, where matplotlib is installed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoint import write_bytes
from hydrasurgeon.errors import MissingDependency, OutputError

__all__ = ["figure", "save_figure"]


def figure(x: str, y: str) -> Any:
    """Empty axes with these labels; needs no display and leaves matplotlib's global state alone."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(
            "--plot needs matplotlib", hint="pip install 'hydrasurgeon[plot]'"
        ) from error
    axes = Figure(figsize=(7, 4.5), layout="constrained").subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def save_figure(axes: Any, path: Path) -> None:
    """As .png, .svg or .pdf; the same picture gives the same bytes."""
    import matplotlib

    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise OutputError(f"--plot {path}: neither .png, .svg nor .pdf")
    buffer = io.BytesIO()
    # Otherwise an SVG carries random identifiers, and SVG and PDF the time.
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "hydrasurgeon"}):
        axes.figure.savefig(buffer, format=kind, dpi=150, metadata=undated)
    write_bytes(path, buffer.getvalue())
