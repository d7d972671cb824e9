"""The greedy loop of Algorithm 1 around any of its searches: remove, record, save, go on; and what a search must be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from hydrasurgeon.criteria.circuits.engine import Engine, Work
from hydrasurgeon.criteria.circuits.problem import Problem
from hydrasurgeon.criteria.circuits.state import Natural, SearchPosition, SearchState, Size, these
from hydrasurgeon.errors import HydraError
from hydrasurgeon.heads import Head


@dataclass(frozen=True)
class NextHead:
    """The outcome of one round."""

    head: Head
    score: float


class Search(ABC):
    """One way to find the head that is missed least, given those that are gone."""

    guarantee: str

    def __init__(self, problem: Problem, engine: Engine, *tally: str) -> None:
        self.problem, self.engine = problem, engine
        self.tally = dict.fromkeys(tally, 0)
        """What was done so far."""

    @abstractmethod
    def start(self) -> float:
        """The objective before anything is removed."""

    @abstractmethod
    def next(self, removed: Sequence[Head]) -> NextHead: ...

    @abstractmethod
    def resume(self, removed: Sequence[Head]) -> bool:
        """Go on behind removals that a search like it ended with, from the order alone; False where that would not give
        what a search from the start gives."""

    @abstractmethod
    def memory(self) -> dict[str, Any]:
        """What the next round needs besides the heads removed so far; plain JSON."""

    @abstractmethod
    def recall(self, memory: dict[str, Any]) -> None:
        """Know again what `memory` gave; ValueError for what it cannot have given."""

    def counts(self) -> dict[str, Any]:
        """What was computed so far, for the manifest."""
        return {**self.tally, **asdict(self.engine.work)}

    def take_over(self, counts: Mapping[str, Any]) -> None:
        """Count on from here; ValueError for counts of another search."""
        numbers = TypeAdapter(dict[str, Natural | Size]).validate_python(counts)
        if numbers.keys() != self.counts().keys():
            raise ValueError("its counts are of another search")
        self.tally = {name: int(numbers[name]) for name in self.tally}
        self.engine.work = Work(int(numbers["layers"]), int(numbers["parts"]))


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
    recorded: Circuit | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Circuit:
    """Remove `budget` heads, each time the one without which the objective is highest.

    What the same search `recorded` is not searched again: the first of its removals are those of a shorter one, and a
    longer one goes on behind them where it needs to know no more than the order.
    """
    if recorded is not None and budget <= len(recorded.order):
        return replace(recorded, order=recorded.order[:budget], trace=recorded.trace[:budget])
    rounds = [len(problem.candidates) - i for i in range(budget)]

    def tick(share: float) -> None:
        if progress is not None and problem.world.is_main:
            score = trace[-1] if trace else start
            done = sum(rounds[: len(order)]) + round(share * rounds[len(order)])
            progress(f"{len(order)}/{budget} heads removed, {problem.objective.kind} {score:.4f}", done, sum(rounds))

    search = make(replace(problem, tick=tick))
    begun = _begun(problem, search, state, recorded)
    order, trace, counts, start = begun.order, begun.trace, begun.counts, begun.start
    while len(order) < budget:
        step = search.next(order)
        order.append(step.head)
        trace.append(step.score)
        counts.append(search.counts())
        if state is not None and problem.world.is_main:
            position_now = {"order": order, "trace": trace, "start": start, "counts": counts}
            state.write({**position_now, "memory": search.memory()})
    # The state may be of a search for more removals: the first of them are those of a shorter one.
    return Circuit(tuple(order[:budget]), tuple(trace[:budget]), start, counts[budget - 1], search.guarantee)


@dataclass
class _Begun:
    """What is there before the first round that is run."""

    order: list[Head]
    trace: list[float]
    counts: list[dict[str, Any]]
    start: float


def _begun(problem: Problem, search: Search, state: SearchState | None, recorded: Circuit | None) -> _Begun:
    """By the state of a killed search, behind a recorded order, or from the start; the search stands there then."""
    position = problem.world.gather(_position(state) if problem.world.is_main else None)[0]
    if isinstance(position, HydraError):
        raise position
    if position is not None:
        assert state is not None
        with state.judged():
            order = these(position.order, problem.candidates)
            search.recall(position.memory)
            counts = [dict(each) for each in position.counts]
            for each in counts:
                search.take_over(each)
        return _Begun(order, list(position.trace), counts, position.start)
    if recorded is not None and _goes_on(search, recorded):
        counts = [search.counts()] * len(recorded.order)
        return _Begun([*recorded.order], [*recorded.trace], counts, recorded.start)
    return _Begun([], [], [], search.start())


def _goes_on(search: Search, recorded: Circuit) -> bool:
    """Whether the search stands behind the recorded removals now."""
    before = search.counts()
    try:
        search.take_over(recorded.counts)
    except ValueError:  # counts of no search: the manifest is not ours alone
        return False
    if search.resume(recorded.order):
        return True
    search.take_over(before)
    return False


def _position(state: SearchState | None) -> SearchPosition | HydraError | None:
    """Read by the first process for all: the others may not see its disk, and must hear of its error."""
    try:
        return state.read() if state is not None else None
    except HydraError as error:
        return error
