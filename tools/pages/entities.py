"""docs/reference/entities.md: what models of entities are worth on tweets, and whether promises are kept."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from pages.template import rendered

FIGURES = {
    "f1": "F1 ↑",
    "nll": "NLL ↓",
    "entity_ece": "entity ECE ↓",
    "aurc": "AURC ↓",
    "near": "near AUROC ↑",
}
WAYS = {"calibrate": "`calibrate`", "independent": "limits for independent entities"}
COST = {"wrong": "answered", "missed": "covered"}
"""Unit of a promise's cost: the fraction of entities that are answered, or of words that belong to
one.
"""
SHOWN = ("missed 0.05", "missed 0.1", "wrong 0.1", "wrong 0.2")
"""The promises that the page has room for."""


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    seeds = list(results["seeds"].values())
    ends = [row["float32"]["ci"]["f1"] for rows in seeds for row in rows.values()]
    return rendered(
        "entities",
        results=results,
        figures=FIGURES,
        rows=list(_rows(results)),
        mean=lambda runs, figure: f"{fmean(run[figure] for run in runs):.3f}",
        interval=max(high - low for low, high in ends) / 2,
        kept_promises=list(_promises(results.get("promises") or {})),
        cost=COST,
    )


def _rows(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each engine of each model."""
    seeds = list(results["seeds"].values())
    for name in dict.fromkeys(name for rows in seeds for name in rows):
        models = [rows[name] for rows in seeds if name in rows]
        for engine in ("float32", "int8"):
            runs = [model[engine] for model in models if engine in model]
            if runs:
                yield {
                    "name": name,
                    "engine": engine,
                    "runs": runs,
                    "cost": fmean(model["cost"] for model in models),
                    "time": results.get("time", {}).get(name, {}).get(engine),
                }


def _promises(promises: dict[str, Any]) -> Iterator[tuple[str, float, str, dict[str, float]]]:
    for name in SHOWN:
        promise, risk = name.split()
        for way, rates in promises.get(name, {}).items():
            yield promise, float(risk), WAYS[way], rates
