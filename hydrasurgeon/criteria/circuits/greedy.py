"""The greedy loop of Algorithm 1 around any of its searches: remove, record, save, go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hydrasurgeon.criteria.circuits.packed import these
from hydrasurgeon.criteria.circuits.problem import Problem, Search
from hydrasurgeon.criteria.circuits.state import SearchPosition, SearchState
from hydrasurgeon.errors import HydraError
from hydrasurgeon.heads import Head

__all__ = ["Circuit", "extract"]


@dataclass(frozen=True)
class Circuit:
    """The heads in the order in which they went, and the objective after each."""

    order: tuple[Head, ...]
    trace: tuple[float, ...]
    start: float
    """The objective before the first removal."""
    counts: dict[str, Any]
    guarantee: str


def extract(
    problem: Problem,
    make: Callable[[Problem], Search],
    *,
    budget: int,
    state: SearchState | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Circuit:
    """Remove `budget` heads, each time the one without which the objective is highest."""
    order: list[Head] = []
    trace: list[float] = []
    rounds = [len(problem.candidates) - i for i in range(budget)]

    def tick(share: float) -> None:
        if progress is not None and problem.world.is_main:
            score = trace[-1] if trace else start
            done = sum(rounds[: len(order)]) + round(share * rounds[len(order)])
            progress(
                f"{len(order)}/{budget} heads removed, {problem.objective.kind} {score:.4f}",
                done,
                sum(rounds),
            )

    search = make(replace(problem, tick=tick))
    position = problem.world.gather(_position(state) if problem.world.is_main else None)[0]
    if isinstance(position, HydraError):
        raise position
    if position is not None:
        assert state is not None
        with state.judged():
            order = these(position.order, problem.candidates)
            if len(order) > budget:
                raise ValueError(f"{len(order)} heads are gone, of {budget} to remove")
            search.recall(position.memory)
        trace, start = list(position.trace), position.start
    else:
        start = search.start()
    while len(order) < budget:
        step = search.next(order)
        order.append(step.head)
        trace.append(step.score)
        if state is not None and problem.world.is_main:
            state.write({"order": order, "trace": trace, "start": start, "memory": search.memory()})
    return Circuit(tuple(order), tuple(trace), start, search.counts(), search.guarantee)


def _position(state: SearchState | None) -> SearchPosition | HydraError | None:
    """Read by the first process for all: the others may not see its disk, and must hear of its error."""
    try:
        return state.read() if state is not None else None
    except HydraError as error:
        return error
