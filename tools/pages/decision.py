"""docs/guide/decision.md: what a decision state gains, from benchmarks/results/decision.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from pages.tables import table

MARKS = (
    "<!-- figures: tools/render_docs.py writes them from benchmarks/results/decision.json -->",
    "<!-- end of figures -->",
)
TASKS = {"fashion-mnist": "Fashion-MNIST ViTs", "dinov2": "DINOv2-small", "minilm": "MiniLM"}
CHOSEN_BY = {"foreign": "with `--ood`", "perturbed": "without"}
# What was aimed at, in points of mean AUROC: how far `auto` may stay behind the best score, and behind msp.
BEHIND_BEST, BEHIND_MSP = 0.5, 0.2


class Setting:
    """A single model or a hydra of one task: means over its seeds."""

    def __init__(self, task: str, kind: str, about: dict[str, Any]) -> None:
        self.name = f"{TASKS[task]}, {kind}"
        self.near, self.far = about["near"], about["far"]
        self.seeds: list[dict[str, Any]] = list(about["models"][kind].values())
        self.scores = list(self.seeds[0]["auroc"])

    def mean(self, get: Callable[[dict[str, Any]], float]) -> float:
        return mean(get(seed) for seed in self.seeds)

    def auroc(self, score: str, name: str = "mean") -> float:
        return self.mean(lambda seed: seed["auroc"][score][name])

    def auto(self, by: str) -> float:
        return self.mean(lambda seed: seed["auroc"][seed["auto"][by]]["mean"])

    def near_gain(self, by: str) -> float:
        """Points of AUROC that `auto` gains on msp where OOD data are near."""
        return 100 * self.mean(
            lambda seed: mean(
                seed["auroc"][seed["auto"][by]][name] - seed["auroc"]["msp"][name]
                for name in self.near
            )
        )

    def chosen(self, by: str) -> str:
        names = [seed["auto"][by] for seed in self.seeds]
        return ", ".join(
            f"`{name}`" if names.count(name) == 1 else f"`{name}` ({names.count(name)})"
            for name in dict.fromkeys(names)
        )

    @property
    def best(self) -> str:
        return max(self.scores, key=self.auroc)


def settings(results: dict[str, Any]) -> list[Setting]:
    pieces = results["pieces"]
    return [
        Setting(task, kind, pieces[task])
        for task in TASKS
        if task in pieces
        for kind in ("single", "hydra")
    ]


def passage(results: dict[str, Any]) -> str:
    """The paragraph and the table."""
    every = settings(results)
    rows = [
        [
            each.name,
            f"{each.auroc('msp'):.3f}",
            f"`{each.best}` {each.auroc(each.best):.3f}",
            *(f"{each.auto(by):.3f}: {each.chosen(by)}" for by in CHOSEN_BY),
        ]
        for each in every
    ]
    head = [
        "mean AUROC, near and far",
        "msp",
        "best",
        *(f"`auto` {how}" for how in CHOSEN_BY.values()),
    ]
    lines = [*table(head, rows), ""]
    for by, how in CHOSEN_BY.items():
        close = sum(100 * (each.auroc(each.best) - each.auto(by)) <= BEHIND_BEST for each in every)
        worse = [
            each.name for each in every if 100 * (each.auroc("msp") - each.auto(by)) > BEHIND_MSP
        ]
        gains = [100 * (each.auto(by) - each.auroc("msp")) for each in every]
        behind = (
            f"more than {BEHIND_MSP} points below msp in {', '.join(worse)}"
            if worse
            else f"nowhere more than {BEHIND_MSP} below msp"
        )
        lines.append(
            f"- `auto` {how}: within {BEHIND_BEST} points of the best score in {close} of {len(every)} settings,"
            f" {behind}; {min(gains):+.1f} to {max(gains):+.1f} points against msp."
        )
    nearby = [each.near_gain("foreign") for each in every]
    lost = [each.name for each, gain in zip(every, nearby, strict=True) if gain < -BEHIND_MSP]
    lines.append(
        f"- On the near sets alone, `auto` with `--ood` is {min(nearby):+.1f} to {max(nearby):+.1f} points against msp"
        + (f"; below it in {', '.join(lost)}." if lost else ".")
    )
    losing = [
        score
        for score in ("energy", "max-logit", "gen", "nci", "mi")
        if any(
            score in each.scores and each.auroc(score) < each.auroc("msp") - BEHIND_MSP / 100
            for each in every
        )
    ]
    if losing:
        lines.append(f"- Worse than msp somewhere: {', '.join(f'`{score}`' for score in losing)}.")
    return "\n".join([*lines, *_kept(every)])


def _kept(every: Sequence[Setting]) -> list[str]:
    """Promises in words."""
    promised = [each.seeds[0]["promises"] for each in every]
    covered = [100 * share for one in promised for share in one["coverage"].values()]
    broken = [
        one["risk"]["broken"] for one in promised if one["risk"]["refused"] < one["risk"]["splits"]
    ]
    refused = sum(one["risk"]["refused"] for one in promised)
    losses = [seed["nll"] for each in every for seed in each.seeds]
    better = sum(nll["after"] <= nll["before"] for nll in losses)
    worse = sum(nll["after"] - nll["before"] > nll["interval"] for nll in losses)
    splits = promised[0]["risk"]["splits"]
    lines = [
        (
            f"- Sets that promise 90 % hold the label in {min(covered):.1f} to {max(covered):.1f} % of cases (each"
            " method and setting, mean of 100 splits)."
        ),
        f"- A risk of 5 % promised with 95 % confidence was broken in at most {max(broken, default=0)} of {splits}"
        " splits of a setting"
        + (
            f"; in {refused} of {splits * len(promised)} none could be promised."
            if refused
            else "."
        ),
        (
            f"- NLL on test data was lower after calibration in {better} of {len(losses)} models; beyond its interval"
            f" higher in {worse}."
        ),
    ]
    return lines
