"""How stable an order is: the same search on samples drawn anew, and how much of the kept set comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydrasurgeon.criteria.circuits.attribution import Attribution, predicted_order
from hydrasurgeon.criteria.circuits.effects import Effects, first_order
from hydrasurgeon.criteria.circuits.greedy import extract
from hydrasurgeon.criteria.circuits.inputs import Held
from hydrasurgeon.criteria.circuits.objective import Outcomes
from hydrasurgeon.criteria.circuits.problem import Problem, Search
from hydrasurgeon.criteria.circuits.two_towers import NUMBER, numbered
from hydrasurgeon.heads import Head


def bootstrap(
    problem: Problem,
    make: Callable[[Problem], Search],
    order: Sequence[Head],
    resamples: int,
    *,
    seed: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Search again on so many resamples, each of as many samples drawn with replacement; plain JSON for the manifest.

    Attribution draws from the effects of one backward pass; any other search runs as a whole, once for each resample.
    """
    amount, total = len(order), len(problem.candidates)
    kept = set(problem.candidates) - set(order)
    effects = first_order(problem) if make is Attribution else None
    often, common, evaluations = dict.fromkeys(problem.candidates, 0), [], 0
    for number in range(resamples):
        if progress is not None and problem.world.is_main:
            progress("searches on resampled data", number, resamples)
        inside, outside = drawn(problem, seed, number)
        if effects is not None:
            rows = predicted_order(problem.objective, of_samples(effects, inside, outside), amount)
            gone = {problem.candidates[row] for row in rows}
        else:
            circuit = extract(on_samples(problem, inside, outside), make, budget=amount)
            gone = set(circuit.order)
            evaluations += circuit.counts["evaluations"]
        common.append(len(kept - gone) / len(kept))
        for head in set(problem.candidates) - gone:
            often[head] += 1
    return {
        "resamples": resamples,
        "amount": amount,
        "overlap": float(np.mean(common)),
        "least": min(common),
        "by_chance": len(kept) / total,
        "kept": [[*head, count / resamples] for head, count in often.items()],
        "evaluations": evaluations,
    }


def drawn(problem: Problem, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Which ID and OOD samples a resample has."""
    random = np.random.default_rng([seed, number])
    objective = problem.objective
    outside = objective.ood_rows if objective.needs_ood else 0
    return tuple(torch.from_numpy(random.integers(0, max(1, rows), rows)) for rows in (objective.id_rows, outside))  # type: ignore[return-value]


def of_samples(effects: Effects, inside: Tensor, outside: Tensor) -> Effects:
    """What these samples say."""

    def taken(seen: Outcomes) -> Outcomes:
        return Outcomes(seen.margin[..., inside], seen.familiar[..., inside], seen.foreign[..., outside])

    return Effects(taken(effects.present), taken(effects.change))


def on_samples(problem: Problem, inside: Tensor, outside: Tensor) -> Problem:
    """The same problem on these samples."""
    ids, oods = _taken(problem.id_inputs, inside), _taken(problem.ood_inputs, outside)
    if NUMBER in ids.parts:
        ids, oods = numbered(ids, oods)
    return replace(problem, id_inputs=ids, labels=problem.labels[inside], ood_inputs=oods, tick=lambda _: None)


def _taken(inputs: Held, index: Tensor) -> Held:
    return replace(inputs, parts={name: part[index] for name, part in inputs.parts.items()})
