"""docs/guide/numbers.md: rows of regression on real data, from benchmarks/results/regression.json."""

from __future__ import annotations

import statistics
from typing import Any

from pages.tables import table

MARKS = (
    "<!-- regression: tools/render_docs.py writes it from benchmarks/results/regression.json -->",
    "<!-- end of regression -->",
)
FIGURES = {
    "rmse": "RMSE ↓",
    "r2": "R² ↑",
    "nll": "NLL ↓",
    "coverage": "coverage",
    "width": "width ↓",
    "auroc": "OOD AUROC ↑",
}


def passage(results: dict[str, Any]) -> str:
    """Means over seeds, with standard deviations where there are several."""
    runs = list(results["seeds"].values())
    base = runs[0]["single"]["macs"]
    rows = []
    for name in runs[0]:
        cost = statistics.mean(run[name]["macs"] for run in runs) / base
        cells = [[run[name][figure] for run in runs] for figure in FIGURES]
        rows.append([name, f"{cost:.2f}", *map(_spread, cells)])
    sizes, machine = results["rows"], results["machine"]
    return "\n".join(
        [
            *table(["", "multiply-adds", *FIGURES.values()], rows),
            "",
            f"{len(runs)} seed{'s' * (len(runs) > 1)}; {sizes['train']:,} packages train, {sizes['val']:,} validate and calibrate, {sizes['test']:,} test, one of"
            " each source; OOD: translations and fonts.",
            "The start is MiniLM: a probe on the frozen body; three tunings of its last four layers, the first of which is the single",
            "model; their mean; the ensemble of the three; and a hydra of three members that each lack a third of the heads of the",
            f"later half. {machine['cpu']}, torch {machine['torch']}, {results['dtype']}; `benchmarks/regression.py`.",
        ]
    )


def _spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"
