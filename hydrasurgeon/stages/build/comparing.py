"""build's choice within each budget, and what else there is beside it: measured by eval's metrics, drawn as a front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.plots import figure, save_figure
from hydrasurgeon.measuring import metrics
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.stages.build.cost import UNITS, Budget
from hydrasurgeon.stages.build.search import Search
from hydrasurgeon.stages.build.choice import Answers, Choice, Estimate, Objective, Pool, choose, estimate

AXES = {"macs": "multiply-adds, times the backbone's", "params": "parameters, times the backbone's"}
"""What stands at the axis of each cost."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    members: int
    cost: Mapping[str, float]
    """Multiply-adds and parameters, times the backbone's."""
    worth: Mapping[str, float]
    """accuracy, nll, ece; and auroc, fpr95 of msp, the mean over OOD sets."""
    crossed: bool = False
    """Whether it was chosen on other samples than it was measured on; else nothing was chosen."""


def measured(members: Sequence[Answers]) -> dict[str, float]:
    """What members are worth together, in float64."""
    probs = metrics.mean_probs(torch.stack([member.val for member in members], dim=1))
    labels = members[0].labels
    worth = {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
    }
    foreign = [torch.stack(rows, dim=1) for rows in zip(*(m.foreign for m in members), strict=True)]
    if foreign:
        inside = 1 - probs.amax(dim=-1)
        outside = [1 - metrics.mean_probs(rows).amax(dim=-1) for rows in foreign]
        for name, measure in (("auroc", metrics.auroc), ("fpr95", metrics.fpr95)):
            values = [measure(inside, each) for each in outside]
            worth[name] = sum(value for value in values if value is not None) / len(values)
    return worth


def halved(*halves: Sequence[Answers]) -> dict[str, float]:
    """What members are worth on the second half of the samples and on the first; each may have members of its own."""
    parts = [
        measured([member.halves()[half] for member in members]) for half, members in zip((1, 0), halves, strict=True)
    ]
    return {name: sum(part[name] for part in parts) / 2 for name in parts[0]}


class Choosing:
    """The candidates' answers in the terms of the objective."""

    def __init__(self, search: Search, options: BuildOptions) -> None:
        self.search, self.options = search, options
        floor = measured(self.read([0]))["accuracy"] - options.spare
        answers = (search.cache.read(candidate) for candidate in search.candidates)
        self.pool = Pool.gathered(Objective(options.goal, floor), answers, len(search.candidates))

    def within(self, budget: Budget) -> tuple[Choice, Estimate]:
        """The choice on all samples, and what such a choice is worth on others."""
        affordable = partial(self.search.costs.affordable, budget)
        chosen = self._chosen(pools=self.search.pools, members=self.options.wanted, affordable=affordable)
        if chosen is None:
            what = f"--members {self.options.members}: no {self.options.members} candidates cost at most {budget}"
            raise SurgeryError(what, hint="Allow more, ask for fewer members, or try more --candidates.")
        return chosen

    def _chosen(self, **how: Any) -> tuple[Choice, Estimate] | None:
        choice, judged = choose(self.pool, **how), estimate(self.pool, **how)
        return (choice, judged) if choice and judged else None

    def read(self, members: Sequence[int]) -> list[Answers]:
        return [self.search.cache.read(self.search.candidates[i]) for i in members]

    def row(self, name: str, choice: Choice, judged: Estimate | None = None) -> Row:
        """Measured where it was not chosen: each half of the samples judges the other half's choice."""
        halves = (choice, choice) if judged is None else judged.choices
        cost: dict[str, float] = {unit: self.search.costs.cost(choice.members, unit) for unit in UNITS}
        worth = halved(*(self.read(half.members) for half in halves))
        return Row(name, len(choice.members), cost, worth, crossed=judged is not None)

    def references(self) -> list[Row]:
        """The single model, the best single member, and the paper's recipe."""
        rows = [self.row("single model", Choice((0,), 0.0))]
        paper = self.search.paper
        pruned = [i for i in range(1, len(self.search.candidates)) if i not in paper]
        one = self._chosen(pools=[pruned], members=1, affordable=lambda members: True)
        if one is not None:
            rows.append(self.row("best single member", *one))
        if paper:
            rows.append(self.row("the paper's recipe", Choice(tuple(paper), 0.0)))
        return rows


def draw_front(rows: Sequence[Row], front: Sequence[Row], unit: str, path: Path) -> None:
    """Quality against cost, the best within each budget and what else there is; the same bytes for the same rows."""
    import matplotlib

    measures = [name for name in ("accuracy", "auroc") if name in rows[0].worth]
    with matplotlib.rc_context({"font.size": 9}):
        drawn = figure(5.5 * len(measures))
        axes = drawn.subplots(1, len(measures), squeeze=False)[0]
        for place, measure in zip(axes, measures, strict=True):
            costs, worths = [row.cost[unit] for row in front], [100 * row.worth[measure] for row in front]
            place.plot(costs, worths, marker="o", color="C0", label="best within the budget")
            for at, row in enumerate(rows):
                look = {"marker": "s^Dv<>P"[at % 7], "color": f"C{at + 1}", "label": row.name, "zorder": 3}
                place.scatter(row.cost[unit], 100 * row.worth[measure], **look)
            place.set(xlabel=AXES[unit], ylabel=f"{measure} (%)")
            place.grid(alpha=0.3)
        axes[0].legend(frameon=False)
        save_figure(drawn, path)
