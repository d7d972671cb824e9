"""Criteria by name; each is imported when it is first used. Adding one is a file here and a line
below; other packages add theirs by entry points of the group `hydrasurgeon.criteria`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hydrasurgeon.criteria.base import Criterion
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.manifest import OF_NEURONS
from hydrasurgeon.heads import Layers
from hydrasurgeon.lookup import did_you_mean, imported, plugins

NEURONS = "hydrasurgeon.criteria.neurons"
CRITERIA = {
    "taylor": Criterion("hydrasurgeon.criteria.taylor:score", neurons=f"{NEURONS}:taylor"),
    "magnitude": Criterion(
        "hydrasurgeon.criteria.magnitude:score", neurons=f"{NEURONS}:magnitude", needs_data=False
    ),
    "random": Criterion(
        "hydrasurgeon.criteria.random:score", neurons=f"{NEURONS}:random", needs_data=False
    ),
    "circuit": Criterion(
        "hydrasurgeon.criteria.circuits.circuit_score:score",
        clear="hydrasurgeon.criteria.circuits:clear_search",
    ),
    "headmap": Criterion("hydrasurgeon.criteria.headmap:score"),
    "gradient": Criterion("hydrasurgeon.criteria.gradient:score"),
    "gates": Criterion("hydrasurgeon.criteria.gates:score"),
    "cahp": Criterion(
        "hydrasurgeon.criteria.cahp.attention_map_score:score",
        choose="hydrasurgeon.criteria.cahp.choice:choose_heads",
        own_number=True,
        uses=("scikit-learn", "kmedoids", "kneed"),
        in_turn=True,
    ),
}
"""Name → the criterion."""
CIRCUIT = "circuit"
"""The criterion that ranks heads by removing them."""
SEARCHES = {
    "exact": "hydrasurgeon.criteria.circuits.search:Exact",
    "attribution": "hydrasurgeon.criteria.circuits.attribution:Attribution",
}
"""Name → where the search of a circuit stands."""
OBJECTIVES = ("acc", "ood", "avg")
"""Objectives that a circuit can keep."""


@dataclass(frozen=True)
class ScoreKey:
    """Key of scores in a manifest; its text is, for example, `circuit-avg`."""

    method: str
    objective: str | None = None
    """Objective of a circuit; None for other criteria."""
    part: Literal["heads", "neurons"] = "heads"

    @classmethod
    def parse(cls, text: str) -> ScoreKey:
        if text.startswith(OF_NEURONS):
            return cls(text.removeprefix(OF_NEURONS), part="neurons")
        method, _, rest = text.partition("-")
        if method != CIRCUIT:
            return cls(text)
        return cls(CIRCUIT, rest or None)

    def __str__(self) -> str:
        text = "-".join(filter(None, (self.method, self.objective)))
        return f"{OF_NEURONS}{text}" if self.part == "neurons" else text

    @property
    def words(self) -> list[str]:
        """Words that a user types behind `--method`."""
        if self.is_circuit and self.objective is not None:
            return [self.method, "--objective", self.objective]
        return [str(self)]

    @property
    def is_circuit(self) -> bool:
        return self.method == CIRCUIT


def score_key(
    method: str,
    objective: str | None = None,
    *,
    recorded: Collection[str] = (),
) -> ScoreKey:
    """Return the key that options ask for.

    A circuit without an objective is the only one recorded, or else avg.
    """
    key = ScoreKey.parse(method)
    if objective is not None and not key.is_circuit:
        raise UsageError(f"--objective requires --method {CIRCUIT}.")
    if objective is not None and key.objective not in (None, objective):
        raise UsageError(f"--objective {objective} conflicts with --method {method}.")
    if not key.is_circuit:
        return key
    chosen_objective = key.objective or objective
    if chosen_objective is None:
        keys = [candidate for candidate in map(ScoreKey.parse, recorded) if candidate.is_circuit]
        if len(keys) > 1:
            raise UsageError(
                f"--method circuit: the manifest has scores of {' and '.join(sorted(map(str, keys)))}",
                hint="Name one with --objective, or as --method.",
            )
        if keys:
            return keys[0]
        chosen_objective = "avg"
    if chosen_objective not in OBJECTIVES:
        raise UsageError(
            f"--objective {chosen_objective}: no such objective",
            hint=f"Available: {', '.join(OBJECTIVES)}.",
        )
    return ScoreKey(CIRCUIT, chosen_objective)


def neurons_key(method: str | None) -> ScoreKey:
    """Return the key of neuron scores: the heads' criterion if it scores neurons, else taylor."""
    name = ScoreKey.parse(method or "taylor").method
    of_heads = CRITERIA.get(name)
    return ScoreKey(name if of_heads and of_heads.neurons else "taylor", part="neurons")


def criterion(key: ScoreKey | str, *, option: str = "--method") -> Criterion:
    """Return the criterion behind a key or its text."""
    key = ScoreKey.parse(key) if isinstance(key, str) else key
    if key.method not in CRITERIA:
        for name, added in plugins("criteria").items():
            CRITERIA.setdefault(name, added)
    names = [
        name for name, candidate in CRITERIA.items() if candidate.neurons or key.part == "heads"
    ]
    if key.method not in names:
        raise UsageError(
            f"{option} {key}: no such criterion{did_you_mean(key.method, names)}",
            hint=f"Available: {', '.join(names)}.",
        )
    return CRITERIA[key.method]


def chooser(key: ScoreKey | str) -> Callable[..., tuple[dict[str, Layers], tuple[str, ...]]]:
    """Return the function that maps scores and an amount to the kept heads, and notes."""
    choose: Callable[..., tuple[dict[str, Layers], tuple[str, ...]]] = imported(
        criterion(key).choose
    )
    return choose


def clear(key: ScoreKey, output: Path) -> None:
    """Delete what an interrupted scoring left beside an output."""
    place = criterion(key).clear
    if place is not None:
        imported(place)(output, str(key))
