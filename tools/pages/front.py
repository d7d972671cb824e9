"""docs/reference/front.md and docs/front.svg: quality at every cost and time, from benchmarks/results/front.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages.template import rendered

LOWER = ("nll", "ece")
"""Metrics of which less is better."""
SCALE = {"accuracy": 100, "nll": 1, "ece": 1, "auroc": 100}
"""Factors of shown differences: points for all metrics but NLL and ECE."""
METRICS = {
    "accuracy": "accuracy ↑",
    "nll": "NLL ↓",
    "ece": "ECE ↓",
    "auroc": "AUROC ↑",
    "near flagged": "near ↑",
    "far flagged": "far ↑",
    "at 0.05": "at 5 % ↑",
}
ENGINES = ("float32", "int8")
PLAIN = ("probe", "single", "single, tuned longer", "single, distilled")
"""Rows that cost as much as one model, without surgery."""
Seeds = list[dict[str, dict[str, Any]]]
Rows = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Goal:
    """A goal for the best row within a time, against other rows."""

    time: float
    rivals: tuple[str, ...]
    """The best of them by VAL, in float32, is the one."""
    spare: dict[str, float]
    """Margins by which a metric may be worse; a standard error is always allowed."""
    words: str
    row: str = ""
    """The row that is meant; else any."""
    batch: int = 1
    """Batch size of the time."""


LEVEL = dict.fromkeys(("accuracy", "nll", "ece", "auroc"), 0.0)
GOALS = (
    Goal(
        0.2,
        ("single",),
        {"accuracy": 0.01, "nll": 0.02},
        "within 1 point and .02 NLL of the single model in float32",
    ),
    Goal(0.4, PLAIN, LEVEL, "no metric worse than the best model without surgery"),
    Goal(
        0.6,
        ("Deep Ensemble",),
        {"accuracy": 0.003, "nll": 0.005, "ece": 0.005, "auroc": 0.003},
        "level with the Deep Ensemble",
    ),
    Goal(
        1.05,
        ("Deep Ensemble",),
        {"nll": 0.0},
        "blend: NLL not above the Deep Ensemble's",
        row="single, words blend",
        batch=16,
    ),
    Goal(
        0.2,
        ("single",),
        {"accuracy": 0.003, "nll": 0.01},
        "cascade: within .3 points and .01 NLL of the single model",
        row="single, words cascade",
        batch=16,
    ),
)
"""Goals that were set before anything was measured."""


@dataclass(frozen=True)
class Task:
    """One task's results."""

    name: str
    machine: dict[str, Any]
    seeds: Seeds
    times: dict[str, Any]

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Each row and engine that was measured, in the order of the seed that has the most."""
        most = max(self.seeds, key=len)
        return [(row, engine) for row in most for engine in ENGINES if engine in most[row]]

    @property
    def names(self) -> list[str]:
        """Each row, once."""
        return [*dict.fromkeys(row for row, _ in self.rows)]

    def values(self, row: str, engine: str, metric: str) -> list[Any]:
        values = (seed.get(row, {}).get(engine, {}).get(metric) for seed in self.seeds)
        return [value for value in values if value is not None]

    def mean(self, row: str, engine: str, metric: str) -> float:
        return statistics.fmean(self.values(row, engine, metric))

    def time(self, row: str, engine: str, batch: int = 1) -> float | None:
        """Return the time relative to the single model's in float32; None if it was not measured."""
        times: dict[str, float] = self.times.get("rows", {}).get(row, {}).get(engine, {})
        return times.get(str(batch))

    def milliseconds(self, row: str, engine: str) -> float | None:
        """Return the milliseconds of one answer."""
        time = self.time(row, engine)
        return None if time is None else time * float(self.times["ms"]["1"])

    def within(self, goal: Goal) -> list[tuple[str, str]]:
        rows = [(row, engine) for row, engine in self.rows if goal.row in ("", row)]
        timed = [(self.time(row, engine, goal.batch), row, engine) for row, engine in rows]
        measured = [(t, row, engine) for t, row, engine in timed if t is not None]
        cheapest = min(measured, default=None)
        if goal.row and cheapest is not None and cheapest[0] > goal.time:
            return [cheapest[1:]]
        return [(row, engine) for t, row, engine in measured if t <= goal.time]

    def best(self, rows: Rows) -> tuple[str, str]:
        """Return the row with the least NLL of VAL, by the seed that has all rows."""
        most = max(self.seeds, key=len)

        def of_val(row: tuple[str, str]) -> float:
            name, engine = row
            return float(most[name][engine]["val"])

        return min(rows, key=of_val)

    def gain(self, row: str, engine: str, rival: str, metric: str) -> tuple[float, float] | None:
        """Return how much better a row is, and the standard error: of samples, and of seeds where
        there are several.
        """
        sign = -1 if metric in LOWER else 1
        gains, sampled = [], []
        for seed in self.seeds:
            measured = seed.get(row, {}).get(engine, {})
            if rival in measured.get("against", {}) and rival in seed:
                gains.append(sign * (measured[metric] - seed[rival]["float32"][metric]))
                sampled.append(measured["against"][rival][metric] ** 2)
        if not gains:
            return None
        seeded = statistics.variance(gains) / len(gains) if len(gains) > 1 else 0.0
        return statistics.fmean(gains), math.sqrt(statistics.fmean(sampled) + seeded)


def tasks(results: dict[str, Any]) -> list[Task]:
    return [
        Task(name, task, list(task["seeds"].values()), task.get("times", {}))
        for name, task in results.items()
    ]


ABOUT = {
    "clinc": "MiniLM (6 layers) on 3,600 queries of 60 intents of CLINC150; near: other intents, far: out-of-scope queries",
    "movies": "MiniLM on 4,000 sentences of movie reviews, good or bad; near: reviews of products, far: a newspaper",
    "topics": "MiniLM on 3,200 descriptions of Debian packages in 8 sections; near: 3 other sections, far: a newspaper",
    "tags": "MiniLM on 3,000 descriptions of Debian packages with some of 24 tags (`multi_label`); near: games, far: a newspaper",
    "claims": "MiniLM on 3,000 pairs of such a description and a claim that it entails, contradicts or leaves open; near: games, far: a newspaper",
    "cifar": "DINOv2-small at 56 pixels on 4,000 images of six classes of CIFAR-10; near: the other four, far: digits and shapes of animals",
    "fashion": "Fashion-MNIST: DINOv2-small's probe, and as the single model the demo's tuned ViT; near: held-out classes, far: digits",
}


TITLES = {
    ", words blend": ", blend",
    ", words cascade": ", cascade",
    ", taught": ", pseudo-labels",
}
"""Part of a row's name in the results → what the page calls it."""


def title(row: str) -> str:
    """Return a row's name in the words of the guide."""
    for part, words in TITLES.items():
        row = row.replace(part, words)
    return row


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    measured = tasks(results)
    return rendered(
        "front",
        tasks=measured,
        machines=sorted({f"torch {t.machine['torch']}, {t.machine['cpu']}" for t in measured}),
        goals=GOALS,
        verdicts=[
            [str(number), *row]
            for number, goal in enumerate(GOALS, 1)
            for task in measured
            if (row := _verdict(goal, task))
        ],
        about=ABOUT,
        most=max(_in_int8(task, row) for task in measured for row in task.names),
        metrics=METRICS,
        seeds=_seeds,
        title=title,
        time=_time,
        cell=_cell,
    )


def _verdict(goal: Goal, task: Task) -> list[str]:
    """Return a goal with its result on a task; an empty list if it was not measured."""
    rows = task.within(goal)
    rivals = [(rival, "float32") for rival in goal.rivals if task.values(rival, "float32", "val")]
    if not rows or not rivals:
        return []
    row, engine = task.best(rows)
    rival, _ = task.best(rivals)
    gains = {metric: task.gain(row, engine, rival, metric) for metric in goal.spare}
    measured = {metric: gain for metric, gain in gains.items() if gain is not None}
    if len(measured) < len(gains):
        return []
    time = task.time(row, engine, goal.batch)
    good = (time or 0) <= goal.time and all(
        gain >= -max(goal.spare[metric], error) for metric, (gain, error) in measured.items()
    )
    return [
        task.name,
        f"{title(row)}, {engine}",
        f"{time:.3f}",
        rival,
        *(_difference(metric, measured.get(metric)) for metric in LEVEL),
        "**reached**" if good else "**missed**",
    ]


def _difference(metric: str, gain: tuple[float, float] | None) -> str:
    """Return how much better a row is, with its standard error; a dash where the goal has no such metric."""
    if gain is None:
        return "–"
    factor = SCALE[metric]
    digits = 1 if factor > 1 else 3
    return f"{factor * gain[0]:+.{digits}f} ± {factor * gain[1]:.{digits}f}"


def _seeds(task: Task) -> str:
    count = max(len(task.values(row, engine, "nll")) for row, engine in task.rows)
    return "One seed" if count == 1 else f"Means of up to {count} seeds ± standard error"


def _in_int8(task: Task, row: str) -> float:
    """Return the largest difference between the NLL in 8 bits and in float32."""
    pairs = zip(task.values(row, "float32", "nll"), task.values(row, "int8", "nll"), strict=False)
    return max((abs(float(one) - float(other)) for one, other in pairs), default=0.0)


def _time(task: Task, row: str, engine: str) -> str:
    alone, among = task.time(row, engine, 1), task.time(row, engine, 16)
    return "–" if alone is None or among is None else f"{alone:.2f} ({among:.2f})"


def _cell(task: Task, row: str, metric: str) -> str:
    """Return a mean over seeds, with its standard error for accuracy and NLL. For a promise, return
    the fraction that is answered, with the fraction of wrong answers in brackets.
    """
    values = task.values(row, "float32", metric)
    if not values:
        return "–"
    if isinstance(values[0], list):
        answered, wrong = map(statistics.fmean, zip(*values, strict=True))
        if not answered:
            return "0"
        return f"{answered:.2f} ({wrong:.3f})"
    mean = f"{statistics.fmean(values):.3f}"
    if len(values) == 1 or metric not in ("accuracy", "nll"):
        return mean
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


DRAWN = {
    "mean, and its half": ("half of the mean", "mean"),
    "single model, cascade and blend": ("single, words cascade", "single, words blend"),
    "hydra behind the mean trunk": ("hydra behind the mean trunk",),
    "Deep Ensemble": ("Deep Ensemble",),
    "single model": ("single",),
    "probe": ("probe",),
}
"""Lines of the plot, in float32 (hollow) and in 8 bits (filled)."""
ABREAST = 3
"""Panels in a line."""
COLOURS = ("#1b6ca8", "#c0392b", "#0b8a5c", "#5c5c5c", "#c7762b", "#a3338b")
"""One a line."""


def plot(results: dict[str, Any], path: Path) -> None:
    """Plot milliseconds of one answer against NLL, with a panel for each task."""
    from matplotlib.figure import Figure

    measured = [task for task in tasks(results) if task.milliseconds("single", "float32")]
    lines = max(1, math.ceil(len(measured) / ABREAST))
    drawn = Figure(figsize=(3.4 * ABREAST, 3 * lines + 0.6), layout="constrained")
    panels = drawn.subplots(lines, ABREAST, squeeze=False).flatten()
    for panel in panels[len(measured) :]:
        panel.set_visible(False)
    for task, panel in zip(measured, panels, strict=False):
        for (label, rows), colour in zip(DRAWN.items(), COLOURS, strict=True):
            _line(panel, task, rows, label, colour)
        panel.set_title(task.name)
        panel.set_xlabel("milliseconds of one answer")
        panel.grid(visible=True, alpha=0.25)
        panel.set_xlim(left=0)
    for panel in panels[::ABREAST]:
        panel.set_ylabel("NLL (lower is better)")
    saved(drawn, panels[0], path)


def saved(drawn: Any, panel: Any, path: Path) -> None:
    """Save a figure as an SVG with the same bytes each time, with a panel's legend below it."""
    import matplotlib

    drawn.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        ncol=3,
        frameon=False,
        fontsize=8,
    )
    # An SVG otherwise carries random identifiers and the time.
    with matplotlib.rc_context({"svg.hashsalt": "hydrasurgeon"}):
        drawn.savefig(path, format="svg", metadata={"Date": None})


def _line(panel: Any, task: Task, rows: Sequence[str], label: str, colour: str) -> None:
    """Plot a line: filled marks in 8 bits, hollow ones in float32."""
    for engine in ENGINES:
        points = []
        for row in rows:
            x = task.milliseconds(row, engine)
            if x is not None and task.values(row, engine, "nll"):
                points.append((x, task.mean(row, engine, "nll")))
        if points:
            face = colour if engine == "int8" else "white"
            panel.plot(
                *zip(*sorted(points), strict=True),
                "o-",
                color=colour,
                markerfacecolor=face,
                markersize=5,
                linewidth=1.2,
                label=label if engine == ENGINES[0] else None,
            )
