"""docs/reference/front.md and docs/front.svg: quality at every cost, from benchmarks/results/front.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = {
    "price": "cost",
    "accuracy": "accuracy ↑",
    "nll": "NLL ↓",
    "ece": "ECE ↓",
    "auroc": "AUROC ↑",
    "near": "near ↑",
    "far": "far ↑",
    "msp": "by msp ↑",
    "disagreement": "pairs that disagree",
}
"""Field of a row → what the table calls it."""
LOWER = ("nll", "ece")
"""Metrics of which less is better."""
SCALE = {"accuracy": 100, "nll": 1, "ece": 1, "auroc": 100}
"""What differences are multiplied by where they are shown: points, but for NLL and ECE."""
Seeds = list[dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Goal:
    """What one row should reach against others."""

    price: str
    row: str
    rivals: tuple[str, ...]
    metrics: tuple[str, ...]
    spare: dict[str, float] | None = None
    """By how much a metric may be worse; None: it must be better by more than a standard error."""
    level: bool = False
    """Whether a standard error of the difference is allowed for too."""


def _rivals(size: str) -> tuple[str, ...]:
    rivals = ("Torch-Pruning by magnitude", "Torch-Pruning by taylor", "first layers")
    return tuple(f"{size}, {rival}, taught" for rival in rivals)


BETTER = ("accuracy", "nll", "auroc")
"""What must be better where a goal says so."""
GOALS = (
    Goal("1/3", "third, taught", ("single",), ("accuracy",), {"accuracy": 0.02}),
    Goal("1/3", "third, taught", _rivals("third"), BETTER),
    Goal("1/2", "half", ("single",), ("accuracy",), {"accuracy": 0.015}),
    Goal(
        "1/2",
        "half, taught",
        ("single, tuned as long",),
        BETTER,
        {"accuracy": 0.005, "nll": 0.0, "auroc": 0.0},
        level=True,
    ),
    Goal("1/2", "half, taught", _rivals("half"), BETTER),
    Goal(
        "1",
        "hydra of three: third, taught",
        ("single, tuned as long", "single, tuned twice as long"),
        BETTER,
    ),
    Goal("1", "hydra of three: third, taught", ("single, taught",), BETTER),
    Goal(
        "1.5",
        "hydra of three: half",
        ("Deep Ensemble",),
        ("accuracy", "nll", "ece", "auroc"),
        {"accuracy": 0.01, "nll": 0.02, "ece": 0.02, "auroc": 0.02},
    ),
    Goal(
        "1.5",
        "hydra of three: half, taught",
        ("Deep Ensemble, tuned as long",),
        ("accuracy", "nll", "ece", "auroc"),
        {"accuracy": 0.005, "nll": 0.01, "ece": 0.01, "auroc": 0.01},
        level=True,
    ),
    Goal("1.5", "hydra of three: half, taught", ("single, taught",), ("nll", "auroc")),
)
"""What was set as a goal before anything was measured."""


def _seeds(task: dict[str, Any]) -> Seeds:
    """What each seed gave."""
    return list(task["seeds"].values())


def distilled(text: str) -> str:
    """Names of rows in the words of the docs; result files have older ones."""
    text = text.replace("taught by its own whole", "distilled from its own unpruned model")
    return text.replace("taught", "distilled")


def alike(task: dict[str, Any], rows: Sequence[str]) -> Seeds:
    """The seeds that have the most of these rows: means over different seeds would be figures of different models."""
    seeds = _seeds(task)
    known = [sum(row in seed for row in rows) for seed in seeds]
    return [seed for seed, count in zip(seeds, known, strict=True) if count == max(known)]


def gain(seeds: Seeds, row: str, rival: str, metric: str) -> tuple[float, float] | None:
    """How much better a row is, and the standard error: of samples, and of seeds where there are several."""
    both = [seed for seed in seeds if row in seed and rival in seed[row].get("against", {})]
    if not both:
        return None
    sign = -1 if metric in LOWER else 1
    gains = [sign * (seed[row][metric] - seed[rival][metric]) for seed in both]
    sampled = statistics.fmean(seed[row]["against"][rival][metric] ** 2 for seed in both)
    seeded = statistics.variance(gains) / len(gains) if len(gains) > 1 else 0.0
    return statistics.fmean(gains), math.sqrt(sampled + seeded)


def reached(goal: Goal, metric: str, difference: float, error: float) -> bool:
    """Whether a difference is what a goal asks for."""
    if goal.spare is None:
        return difference > error
    return difference >= -max(goal.spare[metric], error if goal.level else 0.0)


def page(results: dict[str, Any]) -> str:
    """The page."""
    tables = [_table(name, task) for name, task in results.items()]
    return distilled("\n\n".join([HEAD, _goals(results), _steps(results), *tables])) + "\n"


HEAD = """# Quality at every cost

Written by `tools/render_docs.py` from `benchmarks/results/front.json`, the result of `benchmarks/front.py`.

The cost of a model is the number of multiply-adds of one answer, as a multiple of the unpruned model's.

- The *single* model is the first of three trainings, the *Deep Ensemble* is all three, and the *mean of three* is one model of their mean weights (`fuse --mean`). Fashion-MNIST's
  models start from different random weights and have no useful mean.
- A *half* and a *third* keep some heads and neurons of each layer, chosen by taylor on 960 training samples, with W_O and W_2 repaired by least squares. Nothing else is trained,
  unless a row says *distilled* (from the three unpruned models, `finetune --teacher`; each member of a hydra from the model that it was cut from) or *tuned* (on labels, for as many
  steps).
- A *hydra of three* has a part of each model, and no trunk. A hydra of *branches* has three pruned second halves of the single model behind its first half, which is left as it is, each
  distilled from one unpruned model. *Behind a mean trunk*, each of the three models has its own pruned second half behind the mean of their first halves.
- The *larger* model has half as many layers again (Fashion-MNIST only: the others start from weights of one size). It is *cut to* a multiple of the single model's cost.
- A *cascade* is a hydra whose other members run only where its first is unsure, fitted by `calibrate --cascade --max-drop 0.5`. Its cost is the mean over test data.

Every row is a checkpoint to which `calibrate` gave a temperature and an OOD score on validation data. Training keeps the epoch with the lowest validation NLL; a model tuned without teachers
counts as its start where that is better on validation data, both calibrated. AUROC is the mean over near and far OOD data by that score. Neither the test data nor the OOD data reported were used to choose
anything.

| task | model | trained on | for | near OOD | far OOD |
|---|---|---|---|---|---|
| clinc | MiniLM, 6 layers | 3,600 queries of 60 intents of CLINC150 | at most 6 epochs | other intents | out-of-scope queries |
| movies | MiniLM, 6 layers | 4,000 sentences of movie reviews, good or bad | at most 3 epochs | reviews of products | a newspaper |
| cifar | DINOv2-small at 56 pixels | 12,000 images of six classes of CIFAR-10 | at most 2 epochs | the other four classes | digits, shapes of animals |
| fashion | the demo's ViT, from random weights | 47,000 images of eight classes of Fashion-MNIST | 9 epochs | the other two classes | digits |

Distillation and further tuning take 4, 2, 1 and 2 more epochs. Not all trainings were continued until nothing improved: the single model *tuned as long* shows what was left. On
cifar, and for one seed each of clinc and movies, it *is* the single model, because further tuning made it worse on validation data.

![Cost against NLL, accuracy and AUROC](../front.svg)
"""


def _goals(results: dict[str, Any]) -> str:
    """Each goal, and what became of it on each task."""
    lines = [
        "## Goals",
        "",
        "Differences are positive where the row is better, in points (NLL and ECE: as they are), ± their standard error over resampled test"
        " data (and over seeds, where there are several).",
        "",
        f"| cost | row | against | {' | '.join(results)} |",
        f"|---|---|---|{'---|' * len(results)}",
    ]
    for goal in GOALS:
        for rival in goal.rivals:
            cells = [_verdict(goal, rival, _seeds(task)) for task in results.values()]
            lines.append(f"| {goal.price} | {goal.row} | {rival} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _verdict(goal: Goal, rival: str, seeds: Seeds) -> str:
    """Differences in words, and whether they are what was asked for."""
    gains = {metric: gain(seeds, goal.row, rival, metric) for metric in goal.metrics}
    good = all(
        measured is not None and reached(goal, metric, *measured)
        for metric, measured in gains.items()
    )
    told = _told(seeds, goal.row, rival, goal.metrics)
    return f"{told}: **{'reached' if good else 'missed'}**" if told else "not measured"


def _told(seeds: Seeds, row: str, rival: str, metrics: Sequence[str]) -> str:
    """By how much a row is better; nothing where that was not measured."""
    texts = []
    for metric in metrics:
        measured = gain(seeds, row, rival, metric)
        if measured is None:
            return ""
        factor, digits = SCALE[metric], 1 if SCALE[metric] > 1 else 3
        difference, error = (
            f"{factor * each:{sign}.{digits}f}"
            for each, sign in zip(measured, ("+", ""), strict=True)
        )
        texts.append(
            f"{'accuracy' if metric == 'accuracy' else metric.upper()} {difference} ± {error}"
        )
    return ", ".join(texts)


STEPS = {
    "repaired: least squares": ("half", "half, not repaired"),
    "the same, both taught": ("half, taught", "half, not repaired, taught"),
    "taught": ("half, taught", "half"),
    "from teachers, not from labels alone": ("half, taught", "half, tuned without a teacher"),
    "from three teachers, not its own unpruned model alone": (
        "half, taught",
        "half, taught by its own whole",
    ),
    "tokens masked; images not mixed": ("half, taught", "half, taught on other inputs"),
    "as long, not twice as long": ("half, taught", "half, taught twice as long"),
    "three halves, not three branches of one model": (
        "hydra of three: half, taught",
        "hydra of branches, taught",
    ),
    "three halves, not three branches behind the mean of three trunks": (
        "hydra of three: half",
        "hydra behind a mean trunk",
    ),
    "the mean of three, not one of them": ("mean of three", "single"),
    "the mean of three, not one distilled from them": ("mean of three", "single, taught"),
    "the mean of three, not their ensemble": ("mean of three", "Deep Ensemble"),
    "the mean's half, not the half of one": ("mean of three: half", "half"),
    "the same, each half taught": ("mean of three: half, taught", "half, taught"),
    "branches behind a mean trunk, not the mean of three": (
        "hydra behind a mean trunk",
        "mean of three",
    ),
    "the same, the branches taught": ("hydra behind a mean trunk, taught", "mean of three"),
    "a larger model cut to the cost of one, not the single model": (
        "larger, cut to one",
        "single",
    ),
    "a larger model cut to three quarters, not the single model's": (
        "larger, cut to three quarters",
        "three quarters",
    ),
    "a larger model cut to three quarters and distilled, not the unpruned single model distilled": (
        "larger, cut to three quarters, taught",
        "single, taught",
    ),
}
"""What is done, instead of what: the row with it, and the row without."""


def _steps(results: dict[str, Any]) -> str:
    """What each step gains."""
    lines = [
        "## What each step gains",
        "",
        "How much better the first is, as above. The last ten were no goals: they were measured when the goals had been.",
        "",
        f"| | {' | '.join(results)} |",
        f"|---|{'---|' * len(results)}",
    ]
    for step, (row, without) in STEPS.items():
        cells = [
            _told(_seeds(task), row, without, BETTER) or "not measured" for task in results.values()
        ]
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _table(name: str, task: dict[str, Any]) -> str:
    """All rows of one task."""
    seeds: Seeds = _seeds(task)
    lines = [
        f"## {name}",
        "",
        f"Means of as many seeds, ± standard error; torch {task['torch']}, {task['cpu']}.",
        "",
        f"| | seeds | {' | '.join(COLUMNS.values())} |",
        f"|---|{'---:|' * (1 + len(COLUMNS))}",
    ]
    for row in dict.fromkeys(row for seed in sorted(seeds, key=len, reverse=True) for row in seed):
        count = sum(row in seed for seed in seeds)
        lines.append(
            f"| {row} | {count} | {' | '.join(_cell(seeds, row, key) for key in COLUMNS)} |"
        )
    return "\n".join(lines)


def _cell(seeds: Seeds, row: str, key: str) -> str:
    values = [seed[row][key] for seed in seeds if key in seed.get(row, {})]
    if not values or (key == "disagreement" and not any(values)):
        return "–"
    mean, digits = statistics.fmean(values), 2 if key == "price" else 3
    if len(values) == 1 or key == "price":
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {statistics.stdev(values) / len(values) ** 0.5:.{digits}f}"


DRAWN = {
    "one model, nothing trained": ("third", "half", "three quarters", "single"),
    "one model, distilled": ("third, taught", "half, taught", "single, taught"),
    "mean of three, nothing trained": (
        "mean of three: third",
        "mean of three: half",
        "mean of three",
    ),
    "hydra of three, nothing trained": (
        "hydra of three: third",
        "hydra of three: half",
        "Deep Ensemble",
    ),
    "hydra of three, distilled": ("hydra of three: third, taught", "hydra of three: half, taught"),
    "hydra of halves as a cascade": (
        "cascade of hydra of three: half",
        "cascade of hydra of three: half, taught",
    ),
}
"""Lines of the picture, through their rows from the cheapest on; they end at the unpruned model and the Deep Ensemble."""
COLOURS = ("#1b6ca8", "#0b8a5c", "#b8a000", "#c7762b", "#a3338b", "#5c5c5c")
"""One a line."""


def plot(results: dict[str, Any], path: Path) -> None:
    """Cost against NLL, accuracy and AUROC, a column of panels for each task."""
    from hydrasurgeon.files.plots import figure, save_figure

    metrics = {"accuracy": "accuracy", "nll": "NLL (lower is better)", "auroc": "AUROC of OOD data"}
    drawn = figure(3.1 * len(results), 7)
    grid = drawn.subplots(3, len(results), squeeze=False, sharex=True)
    for (name, task), panels in zip(results.items(), grid.T, strict=True):
        for metric, panel in zip(metrics, panels, strict=True):
            _panel(panel, alike(task, [row for rows in DRAWN.values() for row in rows]), metric)
        panels[0].set_title(name)
        panels[-1].set_xlabel("cost (multiply-adds)")
    for label, panel in zip(metrics.values(), grid[:, 0], strict=True):
        panel.set_ylabel(label)
    drawn.legend(
        *grid[0][0].get_legend_handles_labels(),
        loc="outside lower center",
        ncol=3,
        frameon=False,
        fontsize=8,
    )
    save_figure(drawn, path)


def _panel(panel: Any, seeds: Seeds, metric: str) -> None:
    """One metric of one task."""
    for (label, rows), colour in zip(DRAWN.items(), COLOURS, strict=True):
        points = _points(seeds, rows, metric)
        panel.plot(*points, "o-", color=colour, markersize=4, linewidth=1.4, label=label)
    for row, sign in (("single", "one model"), ("Deep Ensemble", "Deep Ensemble")):
        (x,), (y,) = _points(seeds, (row,), metric)
        panel.annotate(
            sign, (x, y), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=8
        )
    panel.margins(0.12, 0.2)
    panel.grid(visible=True, alpha=0.25)


def _points(seeds: Seeds, rows: Sequence[str], metric: str) -> tuple[list[float], list[float]]:
    measured = [row for row in rows if all(row in seed for seed in seeds)]
    return (
        [statistics.fmean(seed[row]["price"] for seed in seeds) for row in measured],
        [statistics.fmean(seed[row][metric] for seed in seeds) for row in measured],
    )
