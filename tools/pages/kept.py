"""docs/reference/methods.md: which epoch a training should keep, from benchmarks/results/kept_epoch.json."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from pages.tables import table

MARKS = (
    "<!-- kept: tools/render_docs.py writes it from benchmarks/results/kept_epoch.json -->",
    "<!-- end of kept -->",
)
WAYS = {"plain": "least NLL", "calibrated": "least calibrated NLL"}


def passage(results: dict[str, Any]) -> str:
    """Each task by both ways."""
    rows = []
    for task, seeds in results["tasks"].items():
        for way, called in WAYS.items():
            runs = [run[way] for run in seeds.values()]
            epochs = ", ".join(f"{run['epoch']:.0f}" for run in runs)
            cells = [_mean(runs, "accuracy", 100, 1), _mean(runs, "f1", 100, 1)]
            share = next(cell for cell in cells if cell)
            rows.append([task, called, epochs, share, _mean(runs, "nll"), _mean(runs, "ece")])
    head = ["TEST", "kept", "epochs", "accuracy, F1 (%) ↑", "NLL ↓", "ECE ↓"]
    lines = table(head, rows)
    about = (
        "MiniLM, 1,500 texts of movies and CLINC150 and 1,200 tweets with entities, trained longer than they need (`patience=0`); what is "
        "kept is calibrated on VAL and measured on TEST; means over the seeds, whose epochs are named (0: the probe that the training began with). "
        f"Measured by `benchmarks/kept_epoch.py` on {results['cpu']}, torch {results['torch']}."
    )
    return "\n".join([*lines, "", about])


def _mean(runs: list[dict[str, Any]], name: str, factor: float = 1, digits: int = 3) -> str:
    if runs[0][name] is None:
        return ""
    return f"{factor * fmean(run[name] for run in runs):.{digits}f}"
