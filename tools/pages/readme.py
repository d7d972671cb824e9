"""Results of the demo: the output of README's commands, the guide's tables, docs/hydra.svg."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydrasurgeon.measuring.results import Report
from hydrasurgeon.report.columns import Cell, ReportTable, brief
from hydrasurgeon.report.markdown import results_table

COMMANDS = re.compile(r"```bash\n(?!make|pip)(.*?)```(\n\n```text\n.*?```)?", re.S)
"""Commands, and what they print where it is shown."""
DEMO = (
    "<!-- demo table: tools/render_docs.py writes it from the demo's results.json -->",
    "<!-- end of demo table -->",
)
LEFT_OUT = (
    *("disagreement", "latency_ms"),
    *("brier", "aece", "mi", "fpr95", "aupr"),
)
"""Columns of the terminal that the guide leaves out."""
COLOURS = ("#2a6f97", "#c1666b", "#6a994e")
TITLES = {
    "vit": "single model",
    "m1": "one member (Taylor)",
    "hydra": "hydra of three members",
    "mean": "mean of three fine-tunings",
    "ensemble": "Deep Ensemble of these three",
}


def with_outputs(text: str, folder: Path) -> str:
    """Run a page's commands in the demo's folder, one after another, and paste their output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "110", "NO_COLOR": "1"}

    def ran(block: re.Match[str]) -> str:
        done = subprocess.run(
            ["bash", "-ec", block[1]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        if block[2] is None:
            return block[0]
        lines = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
        return f"```bash\n{block[1]}```\n\n```text\n{lines}\n```"

    return COMMANDS.sub(ran, text)


def demo_table(report: dict[str, Any]) -> str:
    """Return two tables in Markdown: quality and cost, OOD detection."""
    results = Report.model_validate(report).results
    names = [TITLES.get(result.name, result.name) for result in results]
    shown = [table for table in brief(results) if table.title.endswith(" distribution")]
    return "\n\n".join(results_table(_kept(table), names) for table in shown)


LEAD = (
    "<!-- demo: tools/render_docs.py writes it from the demo's results.json -->",
    "<!-- end of demo -->",
)
"""Around README's table of what the demo's models are worth."""


def demo_lead(report: dict[str, Any]) -> str:
    """Return README's table: quality, OOD detection and cost of the demo's models."""
    head = [
        "",
        "accuracy ↑",
        "NLL ↓",
        "ECE ↓",
        "AUROC near ↑",
        "AUROC far ↑",
        "parameters, M",
        "multiply-adds, M",
    ]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for result in report["results"]:
        inside, cost = result["id"], result["cost"]
        auroc = {ood["group"]: ood["auroc"] for ood in result["ood"]}
        values = [inside["accuracy"], inside["nll"], inside["ece"], auroc["near"], auroc["far"]]
        lines.append(
            [
                TITLES[result["name"]],
                *(f"{value:.3f}" for value in values),
                f"{cost['params'] / 1e6:.2f}",
                f"{cost['macs'] / 1e6:.1f}",
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def _kept(table: ReportTable) -> ReportTable:
    """Drop intervals, second ranks and the columns that the README has no room for."""
    columns = [
        replace(
            c,
            cells=tuple(Cell(cell.text, "best" if cell.rank == "best" else "") for cell in c.cells),
        )
        for c in table.columns
        if c.metric.key not in LEFT_OUT and c.group != "all"
    ]
    return replace(table, columns=tuple(columns))


def hydra_svg(manifest: dict[str, Any]) -> str:
    """Return a picture with a square for each head, in the colour of the member that keeps it."""
    (tower,) = manifest["towers"].values()
    size, gap, left, top = 16, 3, 70, 46
    step = size + gap
    width = left + len(manifest["members"]) * (tower["heads"] * step + 36)
    height = top + tower["layers"] * step + 12
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
            ' font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for layer in range(tower["layers"]):
        parts.append(f'<text x="8" y="{top + layer * step + 12}" fill="#555">layer {layer}</text>')
    for i, member in enumerate(manifest["members"]):
        x = left + i * (tower["heads"] * step + 36)
        (rows,) = member["kept"].values()
        parts.append(
            f'<text x="{x}" y="{top - 14}" fill="{COLOURS[i]}" font-weight="bold">member {i + 1}</text>'
        )
        for layer, row in enumerate(rows):
            for head in range(tower["heads"]):
                fill = f'fill="{COLOURS[i]}"' if head in row else 'fill="none" stroke="#bbb"'
                parts.append(
                    f'<rect x="{x + head * step}" y="{top + layer * step}" width="{size}" height="{size}" rx="3"'
                    f" {fill}/>"
                )
    return "\n".join([*parts, "</svg>"]) + "\n"
