"""docs/reference/benchmarks.md: its template, and the figures that take arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Any

from hydrasurgeon.files.decided import SCORES
from pages.template import rendered

Points = list[dict[str, Any]]
SHAPES = {
    "cpu": (("float32", 1), ("float32", 16)),
    "cuda": (("float32", 1), ("bfloat16", 1), ("bfloat16", 16), ("bfloat16", 64)),
}
"""The dtypes and batch sizes that are shown, of each kind of device."""
TASKS = {"fashion-mnist": "Fashion-MNIST ViTs", "dinov2": "DINOv2-small", "minilm": "MiniLM"}


def page(result: Callable[[str], Any]) -> str:
    """Return the page."""
    return rendered(
        "benchmarks",
        result=result,
        shapes_of=SHAPES,
        contenders=contenders,
        single_ms=single_ms,
        engine_rows=engine_rows,
        float32_ms=float32_ms,
        decision_settings=decision_settings,
        tuned_tasks=tuned_tasks,
        words_rows=words_rows,
        suspects_rows=suspects_rows,
        learnt_rows=learnt_rows,
        scale_rows=scale_rows,
        growth_sentence=growth_sentence,
    )


def contenders(points: Points) -> dict[str, dict[str, Any]]:
    """Return each contender's row: its sizes, and its time at each shape."""
    rows: dict[str, dict[str, Any]] = {}
    for point in points:
        row = rows.setdefault(point["contender"], {"times": {}})
        row["times"][point["dtype"], point["batch"]] = f"{point['ratio']:.2f}"
        for name in ("params", "macs", "launches"):
            ratio = point.get(f"{name}_ratio")
            row[name] = f"{ratio:.2f}" if ratio else "–"
    return rows


def single_ms(points: Points, shape: tuple[str, int]) -> str:
    """Return the single model's time at a shape."""
    times = [
        point["ms"]
        for point in points
        if point["contender"] == "single" and (point["dtype"], point["batch"]) == shape
    ]
    return f"{times[0]:.0f}" if times else "–"


def engine_rows(processors: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield a row for each contender in each engine: multiply-adds, and its time at each
    processor's batch sizes.
    """
    for row in processors[0]["rows"]:
        if row["batch"] != 1:
            continue
        times = [
            f"{measured['time']:.2f}"
            for processor in processors
            for measured in processor["rows"]
            if (measured["contender"], measured["engine"]) == (row["contender"], row["engine"])
        ]
        yield [f"{row['contender']}, {row['engine']}", f"{row['macs_ratio']:.2f}", *times]


def float32_ms(processor: dict[str, Any]) -> list[str]:
    """Return the unit of time at each batch size: the single model's float32, in its faster engine."""
    single = [row for row in processor["rows"] if row["contender"] == "single"]
    units = {row["batch"]: row["ms"] / row["time"] for row in single}
    return [f"{ms:.0f}" for ms in units.values()]


def decision_settings(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each task's single model and hydra: means over seeds."""
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


RULES = ("never", "unshrunk", "always", "new")
"""Rules for the bag-of-words model, as the table lists them."""


def tuned_tasks(words: dict[str, Any]) -> bool:
    """Return whether some of the models were tuned."""
    return any(task.endswith(", tuned") for task in words["tasks"])


def words_rows(words: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each task and number of rows: the mean loss by each rule."""
    for task, sizes in words["tasks"].items():
        for rows, rules in sizes.items():
            cells = []
            for rule in RULES:
                kept = f" ({100 * rules[rule]['kept']:.0f} %)" if rule == "new" else ""
                cells.append(f"{rules[rule]['nll']:.3f}{kept}")
            yield [task, f"{int(rows):,}", *cells]


SUSPECTS = (
    "precision",
    "recall",
    "first",
    "first_recall",
    "plain",
    "cleanlab_precision",
    "cleanlab_recall",
)
"""Figures of lists of labels that look wrong."""


def suspects_rows(results: dict[str, Any]) -> Iterator[list[str]]:
    """Yield for each task its rows, and the figures of the lists of labels that look wrong."""
    for task, figures in results["tasks"].items():
        counts = [f"{figures[name][0]:,.0f}" for name in ("rows", "flipped", "listed")]
        shares = [f"{figures[name][0]:.2f}" if name in figures else "–" for name in SUSPECTS]
        yield [task, *counts, *shares]


def learnt_rows(results: dict[str, Any]) -> Iterator[list[str]]:
    """Yield for each task the accuracy and NLL of probes that learn all rows, some, or true labels."""
    for task, figures in results["tasks"].items():
        pairs = [
            (figures[f"{name}_accuracy"][0], figures[f"{name}_nll"][0])
            for name in ("all", "without", "true")
        ]
        yield [task, *(f"{100 * accuracy:.1f} %, {nll:.3f}" for accuracy, nll in pairs)]


def scale_rows(results: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the cells of each table size: seconds and memory until the first and the second file."""
    for case in sorted(results["cases"], key=lambda case: (case["classes"], case["rows"])):
        cells = [f"{case['rows']:,}", f"{case['classes']:,}"]
        for at in (0, 1):
            written = case["files"][at] if at < len(case["files"]) else None
            cells += [f"{written['cpu']:.0f}", f"{written['peak']:,}"] if written else ["–", "–"]
        yield cells


def growth_sentence(results: dict[str, Any]) -> str:
    """Return how the time to the first file grows with the rows."""
    powers = [
        f"{power:.2f} with {int(classes):,} classes"
        for classes, power in results["growth"].items()
        if power is not None
    ]
    return f"The time to the first file grows with the rows to the power of {', '.join(powers)}."
