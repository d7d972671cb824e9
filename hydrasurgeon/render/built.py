"""What `build` chose, beside what could be had otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydrasurgeon.render.console import as_json, raw, show
from hydrasurgeon.render.pieces import notes
from hydrasurgeon.render.tables import Column, Table, show_table
from hydrasurgeon.render.tables import Row as Line

if TYPE_CHECKING:
    from hydrasurgeon.stages.build import Built
    from hydrasurgeon.stages.build.choice import Row

WORTH = {
    "accuracy": ("acc", 100, 1),
    "nll": ("nll", 1, 3),
    "ece": ("ece", 1, 3),
    "auroc": ("auroc", 100, 1),
    "fpr95": ("fpr95", 100, 1),
}
"""Column, factor and digits of each measure."""
COST = ("macs", "params")
"""Columns of cost."""


def built(result: Built, *, json: bool, quiet: bool) -> None:
    if not result.is_main:
        return None
    if json:
        return as_json(result.to_json())
    if result.path is None:
        return raw(result.script)
    if quiet:
        return None
    show_table(_table("on validation data, each half judging the other's choice", result.rows))
    if len(result.front) > 1:
        show("")
        show_table(_table("the best within each budget", result.front))
    show("")
    show(
        f"{result.objective} {result.estimate:.4f} on samples that it was not chosen by "
        f"({result.optimism:+.4f} on those that it was)"
    )
    for label in result.members:
        show(f"  {label}")
    notes(result.notes)
    show("written ", (str(result.path), "bold"))
    return None


def _table(title: str, rows: Sequence[Row]) -> Table:
    measures = [name for name in WORTH if name in rows[0].worth]
    columns = [Column("members"), *(Column(WORTH[name][0]) for name in measures)]
    columns += [Column(name, "x the backbone") for name in COST]
    lines = []
    for row in rows:
        cells = [str(row.members)]
        cells += [f"{row.worth[n] * WORTH[n][1]:.{WORTH[n][2]}f}" for n in measures]
        cells += [f"{row.cost[name]:.2f}" for name in COST]
        lines.append(Line(row.name, tuple(cells)))
    return Table(title, tuple(columns), tuple(lines))
