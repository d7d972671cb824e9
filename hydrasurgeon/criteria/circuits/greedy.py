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
    def next(self, removed: Sequence[Head]) -> tuple[Head, float]:
        """The head that goes, and the objective without it."""

    @abstractmethod
    def resume(self, removed: Sequence[Head]) -> bool:
        """Go on from the order alone; False where that would not give what a search from the start gives."""

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
    order, trace, counts, start = _begun(search, state, recorded)
    while len(order) < budget:
        head, score = search.next(order)
        order.append(head)
        trace.append(score)
        counts.append(search.counts())
        if state is not None and problem.world.is_main:
            position = {"order": order, "trace": trace, "start": start, "counts": counts, "memory": search.memory()}
            state.write(position)
    # The state may be of a search for more removals: the first of them are those of a shorter one.
    return Circuit(tuple(order[:budget]), tuple(trace[:budget]), start, counts[budget - 1], search.guarantee)


def _begun(
    search: Search, state: SearchState | None, recorded: Circuit | None
) -> tuple[list[Head], list[float], list[dict[str, Any]], float]:
    """Order, trace, counts and start by the state of a killed search, behind a recorded order, or of a new search; the
    search stands there then."""
    world = search.problem.world
    position: SearchPosition | HydraError | None = None
    if state is not None and world.is_main:  # others may not see its disk, and must hear of its error
        try:
            position = state.read()
        except HydraError as error:
            position = error
    (position, *_) = world.gather(position)
    if isinstance(position, HydraError):
        raise position
    if position is not None and state is not None:
        with state.judged():
            order = these(position.order, search.problem.candidates)
            search.recall(position.memory)
            for each in position.counts:
                search.take_over(each)
        return order, [*position.trace], [dict(each) for each in position.counts], position.start
    if recorded is not None:
        before = search.counts()
        try:
            search.take_over(recorded.counts)
            if search.resume(recorded.order):
                counts = [search.counts()] * len(recorded.order)
                return [*recorded.order], [*recorded.trace], counts, recorded.start
        except ValueError:  # counts of no search: the manifest is not ours alone
            pass
        search.take_over(before)
    return [], [], [], search.start()
