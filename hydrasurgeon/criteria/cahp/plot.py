"""CAHP in a picture: the silhouette curve with its knee, and the heads in the plane with their clusters."""

from __future__ import annotations

from pathlib import Path

from hydrasurgeon.files.manifest import Score
from hydrasurgeon.files.plots import figure, save_figure
from hydrasurgeon.heads import Head


def draw_cahp(score: Score, path: Path) -> None:
    """Byte-identical for the same score and the same matplotlib."""
    import matplotlib

    settings = score.settings
    points = {Head(t, layer, h): (x, y) for t, layer, h, x, y in settings["points"]}
    kept = {
        Head(tower, layer, h) for tower, rows in settings["kept"].items() for layer, row in enumerate(rows) for h in row
    }
    clusters = [[Head(*head) for head in group] for group in settings["clusters"]]
    with matplotlib.rc_context({"font.size": 9}):
        drawn = figure(11)
        left, right = drawn.subplots(1, 2)
        ks = [k for k, _ in settings["curve"]]
        left.plot(ks, [height for _, height in settings["curve"]], marker=".", color="0.3")
        kind = "knee" if settings["knee"] else "no knee, highest point"
        label = f"{kind}: {settings['automatic']} clusters"
        left.axvline(settings["automatic"], color="C3", linestyle="--", label=label)
        if settings["clusters_from"] != "auto":
            clusters_wanted = settings["clusters_from"]
            left.axvline(clusters_wanted, color="C0", linestyle=":", label=f"asked for: {clusters_wanted}")
        left.set(xlabel="clusters", ylabel="mean simplified silhouette")
        left.legend(frameon=False)
        colours = matplotlib.colormaps["tab20"]
        for i, group in enumerate(clusters):
            for head in group:
                edge, width = ("black", 1.4) if head in kept else ("none", 0.0)
                right.scatter(*points[head], color=colours(i % 20), edgecolors=edge, linewidths=width, s=60)
                right.annotate(
                    f"{head.layer}.{head.number}", points[head], textcoords="offset points", xytext=(5, 3), fontsize=6
                )
        title = f"{len(clusters)} clusters of {len(points)} heads (layer.head), kept ones ringed"
        right.set(title=title, xticks=[], yticks=[])
        save_figure(drawn, path)
