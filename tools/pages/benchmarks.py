"""What docs/reference/benchmarks.md is made of: its template, and the figures that take arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

from hydrasurgeon.files.decided import SCORES
from pages.template import rendered

Points = list[dict[str, Any]]
BATCHES = (1, 16)
TASKS = {"fashion-mnist": "Fashion-MNIST ViTs", "dinov2": "DINOv2-small", "minilm": "MiniLM"}


def page(result: Callable[[str], Any]) -> str:
    """The whole page."""
    return rendered(
        "benchmarks",
        result=result,
        shapes_of=shapes_of,
        contenders=contenders,
        single_ms=single_ms,
        decision_settings=decision_settings,
        share=share,
        mean=lambda runs, name: f"{mean(run[name] for run in runs):.3f}",
    )


def share(runs: Points) -> str:
    """Accuracy, or of tags F1, in percent."""
    name = "f1" if runs[0]["accuracy"] is None else "accuracy"
    return f"{100 * mean(run[name] for run in runs):.1f}"


def shapes_of(points: Points) -> list[tuple[str, int]]:
    """Each dtype, at the batch sizes that are shown, float32 first."""
    shapes = {(point["dtype"], point["batch"]) for point in points if point["batch"] in BATCHES}
    return sorted(shapes, key=lambda shape: (shape[0] != "float32", shape))


def contenders(points: Points) -> dict[str, dict[str, Any]]:
    """Each contender's row: its sizes, and its time at each shape."""
    rows: dict[str, dict[str, Any]] = {}
    for point in points:
        row = rows.setdefault(point["contender"], {"times": {}})
        row["times"][point["dtype"], point["batch"]] = f"{point['ratio']:.2f}"
        for name in ("params", "macs", "launches"):
            ratio = point.get(f"{name}_ratio")
            row[name] = f"{ratio:.2f}" if ratio else "–"
    return rows


def single_ms(points: Points, shape: tuple[str, int]) -> str:
    """The single model's time at a shape."""
    times = [
        point["ms"]
        for point in points
        if point["contender"] == "single" and (point["dtype"], point["batch"]) == shape
    ]
    return f"{times[0]:.0f}" if times else "–"


def decision_settings(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Each task's single model and hydra: means over seeds."""
    return [
        _setting(f"{title}, {kind}", list(seeds.values()))
        for task, title in TASKS.items()
        for kind, seeds in results["pieces"][task]["models"].items()
    ]


def _setting(name: str, seeds: Points) -> dict[str, Any]:
    scores = [score for score in seeds[0]["auroc"] if score in SCORES]
    aurocs = {score: mean(seed["auroc"][score]["mean"] for seed in seeds) for score in scores}
    auto = {
        by: mean(seed["auroc"][seed["auto"][by]]["mean"] for seed in seeds)
        for by in ("foreign", "perturbed")
    }
    promised = seeds[0]["promises"]
    risk = promised["risk"]
    before, after = (mean(seed["nll"][when] for seed in seeds) for when in ("before", "after"))
    worse, better = (mean(seed["ece"][when] for seed in seeds) for when in (0, 1))
    return {
        "name": name,
        "scores": scores,
        "auroc": {score: f"{value:.3f}" for score, value in aurocs.items()},
        "auto": {by: f"{value:.3f}" for by, value in auto.items()},
        "sets": f"{promised['coverage']['lac']:.3f} ({promised['size']['lac']:.2f})",
        "risk": f"{risk['broken']} of {risk['splits'] - risk['refused']}, {risk['refused']} refused",
        "nll": f"{before:.3f} → {after:.3f}",
        "ece": f"{worse:.3f} → {better:.3f}",
    }
