"""CAHP in a picture: the silhouette curve with its knee, and the heads in the plane with their clusters."""

from __future__ import annotations

import io
from pathlib import Path

from hydrasurgeon.checkpoint import write_bytes
from hydrasurgeon.errors import OutputError, UsageError
from hydrasurgeon.heads import Head
from hydrasurgeon.manifest import Score
from hydrasurgeon.optional import need

__all__ = ["check_plot", "draw_cahp"]

SUFFIXES = (".png", ".svg")


def check_plot(path: Path, method: str, *, force: bool) -> Path:
    """Refuse what could not be drawn, before anything is computed."""
    if method != "cahp":
        raise UsageError(f"--plot: {method} has no curve to draw", hint="Use --method cahp.")
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--plot {path}: must end in {' or '.join(SUFFIXES)}")
    if path.exists() and not force:
        raise OutputError(
            f"{path}: already exists", hint="Give --force to replace it, or another --plot."
        )
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent}: no such folder", hint="Create it first.")
    need("matplotlib", purpose="--plot")
    return path


def draw_cahp(score: Score, path: Path) -> None:
    """Byte-identical for the same score and the same matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = score.settings
    points = {Head(t, layer, h): (x, y) for t, layer, h, x, y in settings["points"]}
    kept = {
        Head(tower, layer, h)
        for tower, rows in settings["kept"].items()
        for layer, row in enumerate(rows)
        for h in row
    }
    clusters = [[Head(*head) for head in group] for group in settings["clusters"]]
    # Fixed ids and no date, so that drawing again gives the same file.
    with matplotlib.rc_context({"svg.hashsalt": "hydrasurgeon", "font.size": 9}):
        figure = Figure(figsize=(11, 4.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        ks = [k for k, _ in settings["curve"]]
        left.plot(ks, [height for _, height in settings["curve"]], marker=".", color="0.3")
        found = "knee" if settings["knee"] else "no knee, highest point"
        label = f"{found}: {settings['automatic']} clusters"
        left.axvline(settings["automatic"], color="C3", linestyle="--", label=label)
        if settings["clusters_from"] != "auto":
            asked = settings["clusters_from"]
            left.axvline(asked, color="C0", linestyle=":", label=f"asked for: {asked}")
        left.set(xlabel="clusters", ylabel="mean simplified silhouette")
        left.legend(frameon=False)
        colours = matplotlib.colormaps["tab20"]
        for i, group in enumerate(clusters):
            for head in group:
                edge, width = ("black", 1.4) if head in kept else ("none", 0.0)
                right.scatter(
                    *points[head], color=colours(i % 20), edgecolors=edge, linewidths=width, s=60
                )
                right.annotate(
                    f"{head.layer}.{head.number}",
                    points[head],
                    textcoords="offset points",
                    xytext=(5, 3),
                    fontsize=6,
                )
        title = f"{len(clusters)} clusters of {len(points)} heads (layer.head), kept ones ringed"
        right.set(title=title, xticks=[], yticks=[])
        drawn = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(drawn, format=path.suffix[1:], dpi=150, metadata=metadata)
    write_bytes(path, drawn.getvalue())
