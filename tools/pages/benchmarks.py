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
        by_way=by_way,
        goals=goals,
        reached=reached,
        mean=lambda runs, name: f"{mean(run[name] for run in runs):.3f}",
    )


def by_way(rows: Points) -> list[tuple[str, str, str, Points]]:
    """Model, use of words, engine, and the runs of each."""

    def way(row: dict[str, Any]) -> tuple[str, str, str]:
        return row["model"], row["words"], row["engine"]

    ways = dict.fromkeys(map(way, rows))
    return [(*each, [row for row in rows if way(row) == each]) for each in ways]


def reached(runs: Points, name: str) -> str:
    """A mean over runs; of what is answered at a promise, and in brackets how much of it is wrong."""
    values = [run[name] for run in runs if name in run]
    if not values:
        return "–"
    if isinstance(values[0], list):
        answered, wrong = (mean(value[place] for value in values) for place in (0, 1))
        return f"{answered:.2f} ({wrong:.3f})"
    return f"{mean(values):.3f}"


NLL, ACCURACY = 0.01, 0.003
"""What words first may lose."""


def goals(task: str, words: dict[str, Any]) -> list[str]:
    """Whether words beside and first do what was wanted of them."""
    runs = {(model, way, engine): rows for model, way, engine, rows in by_way(words["tasks"][task])}
    times = words.get("times", {}).get(task, {})

    def figure(way: tuple[str, str, str], name: str) -> float | None:
        return mean(row[name] for row in runs[way]) if way in runs else None

    beside, first = ("single", "beside", "torch"), ("single", "first", "int8")
    if first not in runs:
        first = ("single", "first", "torch")
    single, ensemble = ("single", "off", "torch"), ("ensemble", "off", "torch")
    least = [times[f"single beside {name}"] for name in ("torch", "onnx") if times]
    told: dict[str, list[tuple[Any, Any]]] = {
        f"{task}, beside: NLL at most the Deep Ensemble's, at 1.05 of the time": [
            (figure(beside, "nll"), figure(ensemble, "nll")),
            (min(least, default=None), 1.05),
        ],
        f"{task}, first: .2 of the time, within .3 points and .01 NLL of the single": [
            (times.get(" ".join(first)), 0.2),
            (figure(single, "accuracy"), (figure(first, "accuracy") or 0) + ACCURACY),
            (figure(first, "nll"), (figure(single, "nll") or 0) + NLL),
        ],
    }
    lines = []
    for goal, pairs in told.items():
        known = [(value, most) for value, most in pairs if value is not None and most is not None]
        missed = any(value > most for value, most in known)
        verdict = "missed" if missed else "met" if len(known) == len(pairs) else "not all measured"
        shown = ", ".join(f"{value:.3f} (at most {most:.3f})" for value, most in known)
        lines.append(f"{goal}: **{verdict}**. {shown}")
    return lines


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
