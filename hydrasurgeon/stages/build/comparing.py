"""build's choice within each budget, and what else there is beside it: measured by eval's metrics,
drawn as a front.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.plots import figure, save_figure
from hydrasurgeon.measuring.answers import Answered, Reading, answered
from hydrasurgeon.measuring.bootstrap import bootstrap, ood_intervals, quality
from hydrasurgeon.measuring.predictions import OodSet, Predictions
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.stages.build.choice import (
    Answers,
    Choice,
    Estimate,
    Objective,
    Pool,
    choose,
    estimate,
)
from hydrasurgeon.stages.build.cost import UNITS, Budget
from hydrasurgeon.stages.build.search import Search
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.probabilities import TINY
from hydrasurgeon.statistics.temperature import calibrated, temperature_of

TWO_SIDES = 2 * 1.96
"""Standard errors within a 95 % interval."""
RIVAL = "single model, calibrated"
"""The row of the model as it is."""
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
    errors: Mapping[str, float] = field(default_factory=dict)
    """Standard errors of what it is worth; calibrated rows have them."""

    @property
    def price(self) -> str:
        """`1.44x`."""
        return f"{self.cost['macs']:.2f}x"


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
    """What members are worth on the second half of the samples and on the first; each may have
    members of its own.
    """
    parts = [
        measured([member.halves()[half] for member in members])
        for half, members in zip((1, 0), halves, strict=True)
    ]
    return {name: sum(part[name] for part in parts) / 2 for name in parts[0]}


def crossed(*halves: Sequence[Answers]) -> Answered:
    """What members answer on the second half of the samples and on the first, each calibrated by
    one temperature on the other half; each half may have members of its own.
    """
    parts: list[tuple[Answers, list[torch.Tensor]]] = []
    for half, members in zip((1, 0), halves, strict=True):
        fitting, judging = ([member.halves()[at] for member in members] for at in (1 - half, half))
        at = temperature_of(torch.stack([each.val for each in fitting], dim=1), fitting[0].labels)
        sets = (
            torch.stack(rows, dim=1) for rows in zip(*(each.sets for each in judging), strict=True)
        )
        parts.insert(
            0, (judging[0], [calibrated(rows, at).clamp_min(TINY).log()[:, None] for rows in sets])
        )
    logits, *foreign = (torch.cat(rows) for rows in zip(*(rows for _, rows in parts), strict=True))
    labels = torch.cat([judged.labels for judged, _ in parts])
    ood = tuple(OodSet(str(at), "near", rows) for at, rows in enumerate(foreign))
    return answered(Predictions("calibrated", "hydra", logits, labels, ood), Reading())


def calibrated_row(
    name: str, members: int, cost: Mapping[str, float], halves: Sequence[Sequence[Answers]]
) -> Row:
    """A row of calibrated answers, with standard errors."""
    all_answers = crossed(*halves)
    rows = torch.arange(len(all_answers.inside.labels))[None]
    worth = {
        name: float(value)
        for name, value in quality(all_answers.inside, rows).items()
        if name != "brier"
    }
    ends = bootstrap(lambda drawn: quality(all_answers.inside, drawn), rows.shape[1])
    if all_answers.foreign:
        inside = all_answers.scores["msp"]
        for name_, measure in (("auroc", metrics.auroc), ("fpr95", metrics.fpr95)):
            values = [measure(inside, each.scores["msp"]) for each in all_answers.foreign]
            worth[name_] = sum(value for value in values if value is not None) / len(values)
        ends |= ood_intervals(all_answers, level=0.95, seed=0)[1]["all"]
    errors = {key: (ends[key][1] - ends[key][0]) / TWO_SIDES for key in worth if key in ends}
    return Row(name, members, cost, worth, True, errors)


class Choosing:
    """The candidates' answers in the terms of the objective."""

    def __init__(self, search: Search, options: BuildOptions) -> None:
        self.search, self.options = search, options
        self.calibrated = search.ladder is not None and options.calibrate
        """Whether members are chosen, and shown, as they are once calibrated."""
        floor = measured(self.read([0]))["accuracy"] - options.spare
        answers = (at_its_temperature(each) if self.calibrated else each for each in self._all())
        self.pool = Pool.gathered(Objective(options.goal, floor), answers, search.count)

    def _all(self) -> Iterable[Answers]:
        return (self.search.answers(number) for number in range(self.search.count))

    def within(self, budget: Budget) -> tuple[Choice, Estimate]:
        """The choice on all samples, and what such a choice is worth on others."""
        affordable = partial(self.search.affordable, budget)
        chosen = self._chosen(
            pools=self.search.pools, members=self.options.wanted, affordable=affordable
        )
        if chosen is None:
            what = (
                f"--members {self.options.members}: no {self.options.members} candidates cost "
                f"at most {budget}"
            )
            raise SurgeryError(
                what, hint="Allow more, ask for fewer members, or try more --candidates."
            )
        return chosen

    def _chosen(self, **how: Any) -> tuple[Choice, Estimate] | None:
        choice, judged = choose(self.pool, **how), estimate(self.pool, **how)
        return (choice, judged) if choice and judged else None

    def read(self, members: Sequence[int]) -> list[Answers]:
        return [self.search.answers(i) for i in members]

    def halves(self, choice: Choice, judged: Estimate | None = None) -> list[list[Answers]]:
        """What was chosen on each half of the samples."""
        return [
            self.read(half.members)
            for half in ((choice, choice) if judged is None else judged.choices)
        ]

    def row(self, name: str, choice: Choice, judged: Estimate | None = None) -> Row:
        """Measured where it was not chosen: each half of the samples judges the other half's
        choice.
        """
        halves, members = self.halves(choice, judged), len(choice.members)
        cost: dict[str, float] = {unit: self.search.cost(choice.members, unit) for unit in UNITS}
        if self.calibrated:
            return calibrated_row(name, members, cost, halves)
        return Row(name, members, cost, halved(*halves), crossed=judged is not None)

    def references(self) -> list[Row]:
        """The single model, the ensemble of several; else the best single member and the paper's
        recipe. The single model calibrated is there too: it is the rival to beat.
        """
        alone = Choice((0,), 0.0)
        rows, models = [], 1 if self.search.ladder is None else len(self.search.ladder.models)
        if not self.calibrated:
            rows.append(self.row("single model", alone))
        rival = calibrated_row(RIVAL, 1, dict.fromkeys(UNITS, 1.0), self.halves(alone))
        if models > 1:
            first, *others = (i for i in range(self.search.count) if self.search.is_whole(i))
            mean = [i for i in others if self.search.cut(i).mean]
            wholes = (first, *(i for i in others if i not in mean))
            rows += [rival, self.row(f"ensemble of {models}", Choice(wholes, 0.0))]
            return [*rows, *(self.row(f"mean of {models}", Choice((i,), 0.0)) for i in mean)]
        paper = self.search.paper
        pruned = [i for i in range(1, len(self.search.candidates)) if i not in paper]
        one = self._chosen(pools=[pruned], members=1, affordable=lambda members: True)
        if one is not None:
            rows.append(self.row("best single member", *one))
        if paper:
            rows.append(self.row("the paper's recipe", Choice(tuple(paper), 0.0)))
        return [*rows, rival]


def at_its_temperature(answers: Answers) -> Answers:
    """Logits that one temperature makes most likely."""
    at = temperature_of(answers.val[:, None], answers.labels)
    return replace(
        answers, val=answers.val / at, foreign=tuple(rows / at for rows in answers.foreign)
    )


def draw_front(rows: Sequence[Row], front: Sequence[Row], unit: str, path: Path) -> None:
    """Quality against cost, the best within each budget and what else there is; the same bytes for
    the same rows.
    """
    import matplotlib

    measures = [name for name in ("nll", "accuracy", "auroc") if name in rows[0].worth]
    with matplotlib.rc_context({"font.size": 9}):
        drawn = figure(5.5 * len(measures))
        axes = drawn.subplots(1, len(measures), squeeze=False)[0]
        for place, measure in zip(axes, measures, strict=True):
            factor = 1 if measure == "nll" else 100
            costs, worths = (
                [row.cost[unit] for row in front],
                [factor * row.worth[measure] for row in front],
            )
            place.plot(costs, worths, marker="o", color="C0", label="best within the budget")
            for at, row in enumerate(rows):
                look = {
                    "marker": "s^Dv<>P"[at % 7],
                    "color": f"C{at + 1}",
                    "label": row.name,
                    "zorder": 3,
                }
                place.scatter(row.cost[unit], factor * row.worth[measure], **look)
            place.set(xlabel=AXES[unit], ylabel=f"{measure} (%)" if factor > 1 else "NLL")
            place.grid(alpha=0.3)
        axes[0].legend(frameon=False)
        save_figure(drawn, path)
