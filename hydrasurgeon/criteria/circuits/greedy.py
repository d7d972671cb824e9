"""The greedy loop of Algorithm 1 around any of its searches: remove, record, save, go on; and what
a search must be.

A killed search continues by one JSON file beside the output, written after every removal. It lies
outside of a directory that is being made: that one appears as a whole, when all is done.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter, model_validator

from hydrasurgeon.criteria.circuits import SEARCH
from hydrasurgeon.criteria.circuits.engine import Engine, Work
from hydrasurgeon.criteria.circuits.objective import PARTS, Objective, Outcomes, Problem
from hydrasurgeon.errors import HydraError
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.files.decided import Record
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.resumable import Resumable, there
from hydrasurgeon.heads import Head

DOUBLE = "<f8"
"""How outcomes are written, exactly."""
MAX_STATE = 1 << 29
Natural = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Score = Annotated[float, Field(strict=True)]
Size = Annotated[float, Field(strict=True, ge=0)]
HeadRow = tuple[Annotated[str, Field(strict=True, max_length=20)], Natural, Natural]


class Packed(Record):
    """Outcomes in base 64."""

    margin: str
    familiar: str
    foreign: str


def pack(outcomes: Outcomes) -> dict[str, str]:
    return {
        name: base64.b64encode(getattr(outcomes, name).numpy().astype(DOUBLE).tobytes()).decode()
        for name in PARTS
    }


def rows_of(objective: Objective) -> tuple[int, int, int]:
    """How many samples the parts of predictions have."""
    return objective.id_rows, objective.id_rows, objective.ood_rows if objective.needs_ood else 0


def unpack(packed: Packed, rows: Sequence[int]) -> Outcomes:
    """Parts of so many numbers each; ValueError for others, and for NaN."""
    parts = []
    for name, count in zip(PARTS, rows, strict=True):
        content = base64.b64decode(getattr(packed, name), validate=True)
        if len(content) != count * np.dtype(DOUBLE).itemsize:
            raise ValueError(f"{name} does not hold {count} numbers")
        numbers = np.frombuffer(content, DOUBLE)
        if np.isnan(numbers).any():
            raise ValueError(f"{name} holds what is no number")
        parts.append(torch.from_numpy(numbers.copy()))
    return Outcomes(*parts)


def these(rows: Sequence[HeadRow], candidates: Sequence[Head]) -> list[Head]:
    """Heads of a file, each once and all of them candidates; ValueError for others."""
    heads = [Head(*row) for row in rows]
    if len(set(heads)) != len(heads) or not set(heads) <= set(candidates):
        raise ValueError("names heads twice, or heads that are no candidates")
    return heads


class SearchPosition(Record):
    """Where a search stood, as its file says."""

    order: tuple[HeadRow, ...] = Field(min_length=1)
    trace: tuple[Score, ...]
    start: Score
    counts: tuple[dict[str, Natural | Size], ...]
    """What was computed up to each removal: an order has prefixes, and a shorter search would have
    counted so far.
    """
    memory: dict[str, Any]
    """What the search itself gave; it checks that when it is told."""

    @model_validator(mode="after")
    def _a_score_for_each(self) -> SearchPosition:
        if not len(self.order) == len(self.trace) == len(self.counts):
            raise ValueError(
                f"{len(self.trace)} scores and {len(self.counts)} counts for {len(self.order)} "
                "heads"
            )
        return self


@dataclass(frozen=True)
class SearchState(Resumable):
    """The state of one search."""

    work: tuple[str, str] = SEARCH

    def write(self, position: Mapping[str, Any]) -> None:
        write_text(self.path, json.dumps(self.texts(position)) + "\n")

    def read(self) -> SearchPosition | None:
        """Where an interrupted search stood; None where there is none."""
        if not there(self.path):
            return None
        with self.judged():
            texts = read_json(self.path, most=MAX_STATE)
            return SearchPosition.model_validate(self.position(texts, most=MAX_STATE))


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
        """Go on from the order alone; False where that would not give what a search from the start
        gives.
        """

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

    What the same search `recorded` is not searched again: the first of its removals are those of a
    shorter one, and a longer one goes on behind them where it needs to know no more than the order.
    """
    if recorded is not None and budget <= len(recorded.order):
        return replace(recorded, order=recorded.order[:budget], trace=recorded.trace[:budget])
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
    order, trace, counts, start = _begun(search, state, recorded)
    while len(order) < budget:
        head, score = search.next(order)
        order.append(head)
        trace.append(score)
        counts.append(search.counts())
        if state is not None and problem.world.is_main:
            position = {
                "order": order,
                "trace": trace,
                "start": start,
                "counts": counts,
                "memory": search.memory(),
            }
            state.write(position)
    # The state may be of a search for more removals: the first of them are those of a shorter one.
    return Circuit(
        tuple(order[:budget]), tuple(trace[:budget]), start, counts[budget - 1], search.guarantee
    )


def _begun(
    search: Search, state: SearchState | None, recorded: Circuit | None
) -> tuple[list[Head], list[float], list[dict[str, Any]], float]:
    """Order, trace, counts and start by the state of a killed search, behind a recorded order, or
    of a new search; the search stands there then.
    """
    world = search.problem.world
    position: SearchPosition | HydraError | None = None
    if (
        state is not None and world.is_main
    ):  # others may not see its disk, and must hear of its error
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
