"""The greedy loop of Algorithm 1 around either of its searches: remove, record, save, go on.

A killed search continues by one JSON file beside the output, written after every removal. It lies
outside of a directory that is being made: that one appears as a whole, when all is done.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.criteria.circuits import SEARCH
from hydrasurgeon.criteria.circuits.engine import CircuitEngine, circuit_engine
from hydrasurgeon.criteria.circuits.objective import Problem, measure, outcomes
from hydrasurgeon.errors import HydraError
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.files.decided import Record
from hydrasurgeon.files.resumable import Resumable, there
from hydrasurgeon.files.untrusted import read_json
from hydrasurgeon.heads import Head

MAX_STATE = 1 << 24
SAFETY = 16
"""Factor on the measured rounding difference that is allowed for."""
Natural = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Score = Annotated[float, Field(strict=True)]
HeadRow = tuple[Annotated[str, Field(strict=True, max_length=20)], Natural, Natural]


class Circuit(Record):
    """The heads in the order in which they went, the objective after each, and before them all."""

    order: tuple[HeadRow, ...] = Field(min_length=1)
    trace: tuple[Score, ...]
    start: Score

    @model_validator(mode="after")
    def _a_score_for_each(self) -> Circuit:
        if len(self.order) != len(self.trace):
            raise ValueError(f"{len(self.trace)} scores for {len(self.order)} heads")
        return self

    def first(self, removals: int) -> Circuit:
        """Return the circuit after so many removals, which a shorter search would find."""
        return Circuit(order=self.order[:removals], trace=self.trace[:removals], start=self.start)

    def only(self, candidates: Sequence[Head]) -> Circuit:
        """Return the circuit; raise ValueError if it names a head twice, or no candidate."""
        if len(set(self.order)) != len(self.order) or not set(self.order) <= set(candidates):
            raise ValueError("names heads twice, or heads that are not candidates")
        return self


@dataclass(frozen=True)
class SearchState(Resumable):
    """The state of one search."""

    work: tuple[str, str] = SEARCH
    continued_by: ClassVar = {"score": (), "prune": ()}

    def write(self, circuit: Circuit) -> None:
        write_text(self.path, json.dumps(self.texts(circuit.model_dump())) + "\n")
        self.noted()

    def read(self, candidates: Sequence[Head]) -> Circuit | None:
        """Return the circuit that an interrupted search has saved; None if there is none."""
        if not there(self.path):
            return None
        with self.judged():
            texts = read_json(self.path, most=MAX_STATE)
            position = self.position(texts, most=MAX_STATE)
            self.noted()
            return Circuit.model_validate(position).only(candidates)


class Search(ABC):
    """One way to find the head that is missed least, given those that are gone."""

    guarantee: str

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def next(self, removed: Sequence[Head]) -> tuple[Head, float]:
        """Return the head to remove, and the objective without it."""


class Exact(Search):
    """The order of Algorithm 1 for less: candidates share layers, and where rounding could decide,
    those that may be best are measured again by the model's own forward pass.

    Predictions of shared layers and of the model itself differ by rounding: points are counted as
    intervals that allow for it.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.engine = circuit_engine(problem)
        self.tolerance = tolerance_of(problem, self.engine)

    @property
    def guarantee(self) -> str:  # type: ignore[override]
        if not self.problem.precise:
            return "Algorithm 1 in the arithmetic of this precision"
        return (
            "the order of Algorithm 1, with every logit allowed to be off by "
            f"{self.tolerance:.2g} through rounding"
        )

    @torch.inference_mode()
    def next(self, removed: Sequence[Head]) -> tuple[Head, float]:
        problem, objective = self.problem, self.problem.objective
        self.engine.remove(removed)
        left = problem.left(removed)
        seen = outcomes(problem, lambda inputs: self.engine.without_each(inputs, left))
        points, bounds = objective.points(seen), objective.points(seen, self.tolerance)
        sure = max(low for low, _ in bounds)
        rows = [row for row, (_, high) in enumerate(bounds) if high >= sure]
        best = {left[row]: points[row].low for row in rows}
        if len(rows) > 1 and any(bounds[row].low != bounds[row].high for row in rows):
            best = {head: measure(problem, (*removed, head)) for head in best}
        winner = max(best, key=best.__getitem__)
        return winner, objective.value(best[winner])


@torch.inference_mode()
def tolerance_of(problem: Problem, engine: CircuitEngine) -> float:
    """Return how far a logit of the engine may be from the model's own.

    It is the largest difference on a batch, times a safety factor.

    0 in half precision, where the two differ by more than candidates do: the search is then
    Algorithm 1 in the engine's own arithmetic.
    """
    if not problem.precise:
        return 0.0
    batch = problem.id_inputs.take(problem.id_inputs.indices(problem.batch_size)[0])
    with ablated(problem.sites, ()):
        logits: Tensor = problem.module(batch).double()
    difference = float((logits - engine.present(batch).double()).abs().max())
    rounding = 4 * torch.finfo(problem.id_inputs.dtype).eps * float(logits.abs().max())
    return SAFETY * max(difference, rounding)


def extract(
    problem: Problem,
    search: Search,
    *,
    budget: int,
    state: SearchState | None = None,
    recorded: Circuit | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Circuit:
    """Remove `budget` heads, each time the one without which the objective is highest.

    What the same search `recorded` is not searched again: the first of its removals are those of a
    shorter one, and a longer one goes on behind them.
    """
    if recorded is not None and budget <= len(recorded.order):
        return recorded.first(budget)
    # Other processes may not see the disk of the first, and must hear of its error.
    saved: Circuit | HydraError | None = None
    if state is not None and problem.world.is_main:
        try:
            saved = state.read(problem.candidates)
        except HydraError as error:
            saved = error
    (saved, *_) = problem.world.gather(saved)
    if isinstance(saved, HydraError):
        raise saved
    before = saved or recorded
    start = problem.objective.value(measure(problem, ())) if before is None else before.start
    order = [] if before is None else [Head(*row) for row in before.order]
    trace = [] if before is None else [*before.trace]
    rounds = [len(problem.candidates) - i for i in range(budget)]
    while len(order) < budget:
        if progress is not None and problem.world.is_main:
            score = trace[-1] if trace else start
            message = f"{len(order)}/{budget} heads removed, {problem.objective.kind} {score:.4f}; candidates"
            progress(message, sum(rounds[: len(order)]), sum(rounds))
        head, score = search.next(order)
        order.append(head)
        trace.append(score)
        if state is not None and problem.world.is_main:
            state.write(Circuit(order=tuple(order), trace=tuple(trace), start=start))
    # The state may be of a search for more removals.
    return Circuit(order=tuple(order), trace=tuple(trace), start=start).first(budget)
