"""docs/reference/paper.md from benchmarks/results/paper.json."""

from __future__ import annotations

import importlib
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages.template import rendered

SCRIPTS = Path(__file__).parents[2] / "examples" / "paper"
HIGHER = (
    "accuracy",
    "auroc_all",
    "auroc_near",
    "auroc_far",
    "mi",
    "disagreement",
    "euclidean_all",
    "mahalanobis_all",
    "accuracy_severity_5",
)
"""Figures that are better when they are higher."""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper: a row of a table is better than another, in one figure."""

    table: str
    row: str
    other: str
    figure: str = "auroc_all"
    margin: float | None = None
    """None: the row is better. A number: it is worse by this much at most."""


TAYLOR, CIRC = "Hydra (Taylor)", "Hydra (Circ)"
ENSEMBLE, SINGLE = "Deep Ensemble", "Single"
HALVED = ("CircAvg −4", "Taylor −4")
"""Rows of figures 5 and 6 without half of the heads."""
CLAIMS = (
    Claim("1", CIRC, ENSEMBLE),
    Claim("1", CIRC, SINGLE),
    Claim("1", TAYLOR, SINGLE),
    Claim("1", CIRC, "CircAvg"),
    Claim("1", CIRC, "MC Dropout"),
    Claim("1", CIRC, "LoRA-Ensemble"),
    Claim("1", CIRC, "Packed-Ensembles"),
    Claim("1", CIRC, ENSEMBLE, "accuracy", 0.015),
    Claim("1", TAYLOR, "Taylor", "accuracy"),
    Claim("1", TAYLOR, "Taylor", "nll"),
    Claim("1", "CircAvg", "Taylor"),
    Claim("2", CIRC, "Deep Ensemble (D)"),
    Claim("2", CIRC, SINGLE),
    Claim("2", TAYLOR, SINGLE),
    Claim("2", CIRC, "Deep Ensemble (D)", "accuracy", 0.015),
    Claim("2", "CircAvg", "Taylor"),
    Claim("4", "CircAvg", "Taylor", "accuracy"),
    Claim("figure-5", *HALVED, "accuracy"),
    Claim("figure-5", *HALVED),
    Claim("figure-6", HALVED[1], HALVED[0], "accuracy"),
    Claim("figure-6", *HALVED),
    Claim("5", "CircOOD", SINGLE, "euclidean_all"),
    Claim("5", "CircOOD", SINGLE, "mahalanobis_all"),
    Claim("6", "CircAcc", "CircOOD", "accuracy"),
    Claim("6", "CircOOD", "CircAcc"),
    Claim("9", "pruning seed", "batch order", "disagreement"),
    Claim("10", "Hydra, 5 members", "Hydra, 3 members", "accuracy"),
    Claim("11", CIRC, "Hydra (Circ), separate MLPs", "accuracy", 0.005),
    Claim("13", TAYLOR, SINGLE, "accuracy_severity_5"),
)
"""Claims of the paper that its tables test."""


def verdict(claim: Claim, rows: dict[str, Any]) -> str | None:
    """Return yes or no, with a hundred times the paired difference ± its standard error; None without
    the rows.
    """
    pairs = [
        (one[claim.figure], rows[claim.other][seed][claim.figure])
        for seed, one in rows.get(claim.row, {}).items()
        if claim.figure in one and claim.figure in rows.get(claim.other, {}).get(seed, {})
    ]
    if len(pairs) < 2:
        return None
    sign = 1 if claim.figure in HIGHER else -1
    differences = [sign * (value - other) for value, other in pairs]
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    holds = mean > error if claim.margin is None else mean >= -claim.margin
    return f"{'**yes**' if holds else 'no'} ({100 * mean:+.1f}±{100 * error:.1f})"


def claims(results: dict[str, Any], tables: Any) -> Iterator[list[str]]:
    """Yield the lines of the table of claims, with the verdict for each setting."""
    measured = [results[number] for number in tables.TABLES if number in results]
    settings = [*dict.fromkeys(name for rows in measured for name in rows)]
    yield ["", "figure", "row", "row", *settings]
    yield ["---"] * (4 + len(settings))
    for claim in CLAIMS:
        verdicts = [verdict(claim, results.get(claim.table, {}).get(name, {})) for name in settings]
        if any(verdicts):
            margin = "" if claim.margin is None else f" − {claim.margin:g}"
            place = claim.table.replace("figure-", "F")
            figure = tables.HEADS[claim.figure]
            rows = [claim.row, f"{claim.other}{margin}"]
            yield [place, figure, *rows, *(one or "–" for one in verdicts)]


STARTS = {
    "single": "single, mean of the three",
    "best": "… the best of them, by NLL",
    "single 0, 8 bits": "… the first in 8 bits",
    "distilled": "… the first tuned on towards all three",
    "mean": "mean of their weights",
    "hydra, thirds": "hydra of thirds",
    "hydra, thirds, cascade": "… with a cascade",
    "hydra, half the heads, a quarter of the neurons": "hydra of half the heads, a quarter of the neurons",
    "hydra, half the heads, a quarter of the neurons, cascade": "… with a cascade",
    "hydra, halves": "hydra of halves",
    "hydra, halves, cascade": "… with a cascade",
    "Deep Ensemble": "Deep Ensemble",
}
"""Row of benchmarks/starts.py → its title."""
START_TASKS = {
    "clothes": (
        "small ViTs, trained from different random weights, which have no mean.",
        "A hydra with half the heads and a quarter of the neurons costs one model. It beats the average single model in NLL in "
        "every trio.",
    ),
    "clinc": (
        "MiniLM on 60 intents of CLINC150, tuned by three recipes.",
        "In every trio the best model beats all hydras in NLL, and hydras of halves beat the mean of weights.",
    ),
}
"""Task of benchmarks/starts.py → its models, and what its table shows."""
START_COLUMNS = ("macs", "accuracy", "nll", "ece", "near", "far", "all")


def start_rows(trios: dict[str, dict[str, dict[str, float]]]) -> Iterator[list[str]]:
    """Yield the rows of trios: means ± standard errors over the trios."""
    for name, title in STARTS.items():
        seeds = []
        for rows in trios.values():
            singles = [row for key, row in rows.items() if key.removeprefix("single ").isdigit()]
            models = [rows[name]] if name in rows else []
            if name == "single":
                models = singles
            if name == "best":
                models = [min(singles, key=lambda row: row["nll"])]
            if not models:
                continue
            figures = {
                key: statistics.fmean(row[key] for row in models) for key in START_COLUMNS[:-1]
            }
            seeds.append(figures | {"all": (figures["near"] + figures["far"]) / 2})
        if seeds:
            cells = (start_cell([seed[key] for seed in seeds], key) for key in START_COLUMNS)
            yield [title, *cells]


def start_cell(values: list[float], key: str) -> str:
    """Format a mean and its standard error; of costs the mean alone."""
    if key == "macs":
        return f"{statistics.fmean(values):.2f}"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.3f}±{error:.3f}"


def page(results: dict[str, Any], starts: dict[str, Any] | None) -> str:
    """Return the page: the claims, every table that was measured, and trios that share no start."""
    sys.path.insert(0, str(SCRIPTS))
    tables = importlib.import_module("tables")
    measured = {
        tables.caption(number): (table, tables.markdown(table, results[number]))
        for number, table in tables.TABLES.items()
        if number in results
    }
    settings = {name for number in tables.TABLES for name in results.get(number, ())}
    return rendered(
        "paper",
        tables=measured,
        claims="\n".join(f"| {' | '.join(line)} |" for line in claims(results, tables)),
        machine=results["machine"],
        starts={name: task for name, task in (starts or {}).items() if name in START_TASKS},
        start_tasks=START_TASKS,
        start_rows=start_rows,
        described={name: DESCRIBED[name] for name in DESCRIBED if name in settings},
        missing=[name for name in DESCRIBED if name not in settings],
    )


DESCRIBED = {
    "clothes": (
        "a ViT of 0.3 M parameters, trained from random weights on eight classes of Fashion-MNIST. Near OOD data are the "
        "other two classes, far ones are digits."
    ),
    "cifar": (
        "DINOv2-small on six classes of CIFAR-10. Near OOD data are the other four classes, far ones are digits and "
        "animal shapes."
    ),
    "movies": "MiniLM, film reviews.",
    "clinc": "MiniLM on 60 intents of CLINC150. Near OOD data are other intents, far ones are out of scope.",
}
"""Setting → a sentence on its data and model."""
