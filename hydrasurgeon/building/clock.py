"""Latency of one sample, from text or picture to decision, for each engine: a multiple of the
unpruned model's time in float32, measured in turn with that model as `bench --data` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hydrasurgeon.building.work import WorkState
from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint, undecided
from hydrasurgeon.data import Samples
from hydrasurgeon.data.readers import with_reader
from hydrasurgeon.decision.state import NOVELTY, State
from hydrasurgeon.decision.text_model import Reading
from hydrasurgeon.engines import ENGINES, INEXACT, engine_of, engines_of
from hydrasurgeon.files import decided
from hydrasurgeon.files.decided import Cascade, Conformal, DecisionRecord, Ood
from hydrasurgeon.measuring.cost import seconds_of, timed_samples
from hydrasurgeon.options.shared import Run
from hydrasurgeon.run.bag_of_words import BagOfWords
from hydrasurgeon.runtime.answering import Engine

UNPRUNED = "None"
"""The shape of models that are not cut to a size."""
WORDS = "words"
"""The shape of a reader of words, and what computes it."""
RUNS = 3
"""Number of timed runs of each model."""
SETS = Conformal(method="lac", coverage=0.9, threshold=1.0)
"""Prediction sets of a state, which nothing here looks at."""


@dataclass(frozen=True)
class Taken:
    """Latency of one sample."""

    ms: float
    time: float
    """Times the unpruned model's in the faster float32 engine."""

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.ms + other.ms, self.time + other.time)

    def __mul__(self, share: float) -> Taken:
        return Taken(self.ms * share, self.time * share)


class Clock:
    """Times models, each shape once; what was measured is kept, whatever the machine does later."""

    def __init__(
        self,
        opened: Checkpoint,
        val: Samples,
        options: Run,
        state: WorkState | None = None,
    ) -> None:
        """`state` keeps what was measured."""
        self.opened = opened
        self.val = val
        self.options = options
        self.engines = _engines()
        self.state = state

    @cached_property
    def measured(self) -> dict[str, dict[str, Taken]]:
        """Measured latencies by shape and engine."""
        kept = {} if self.state is None else self.state.record.get("times", {})
        return {s: {n: Taken(*values) for n, values in times.items()} for s, times in kept.items()}

    def times(self, shape: str, file: Callable[[], Checkpoint]) -> Mapping[str, Taken]:
        """Return the latency in each engine of models of one shape, which differ in their weights
        alone.
        """
        if not {*self.engines} <= self.measured.get(shape, {}).keys():
            self._time(shape, self._unpruned if shape == UNPRUNED else self._live(file()))
        return self.measured[shape]

    def unpruned(self) -> Mapping[str, Taken]:
        """Return the unpruned model's latency in each engine."""
        return self.times(UNPRUNED, lambda: self.opened)

    def words(self, reading: Callable[[], Reading]) -> Taken:
        """Return the latency of a word reader that answers alone."""
        if WORDS not in self.measured:
            self._time(WORDS, {WORDS: _alone(self._unpruned[self._fastest], reading().reader)})
        return self.measured[WORDS][WORDS]

    def written(self, name: str, file: Path, engine: str) -> Taken:
        """Return the latency of a written file; `name` is its key in the work folder."""
        if engine not in self.measured.get(name, {}):
            opened = open_checkpoint(file)
            live = engine_of(opened, engine=engine, device=self.options.device)
            self._time(name, {engine: live})
        return self.measured[name][engine]

    def slow_words(self, late: float) -> None:
        """Raise the latency of the word reader by `late`, which a written file was slower than
        expected.
        """
        latency = self.measured[WORDS][WORDS]
        self.measured[WORDS] = {WORDS: latency * (1 + late / latency.time)}
        self._keep()

    def _time(self, shape: str, engines: Mapping[str, Engine]) -> None:
        turns = dict(engines)
        if shape != UNPRUNED:
            turns["unpruned"] = self._unpruned[self._fastest]
        # Words that answer alone answer all texts alike.
        kinds = self._unpruned if shape == WORDS else turns
        skip = self.options.skip_bad
        samples = timed_samples(self.val, kinds.values(), 1, skip_bad=skip)
        contenders = {name: [engine] for name, engine in turns.items()}
        seconds = seconds_of(contenders, samples, runs=RUNS)
        rivals = engines if shape == UNPRUNED else ["unpruned"]
        least = min(seconds[name] for name in rivals if name not in INEXACT)
        self.measured[shape] = self.measured.get(shape, {}) | {
            name: Taken(1000 * seconds[name], seconds[name] / least) for name in engines
        }
        self._keep()

    def _keep(self) -> None:
        times = {s: {n: [t.ms, t.time] for n, t in e.items()} for s, e in self.measured.items()}
        if self.state is not None:
            self.state.keep(times=times)

    @property
    def _fastest(self) -> str:
        """The float32 engine in which the unpruned model is what others are compared with."""
        times = self.unpruned()
        return min((name for name in times if name not in INEXACT), key=lambda n: times[n].time)

    @cached_property
    def _unpruned(self) -> Mapping[str, Engine]:
        return self._live(self.opened, keep=True)  # it answers soon, and is what may be written

    def _live(self, opened: Checkpoint, *, keep: bool = False) -> Mapping[str, Engine]:
        """Return a checkpoint in each engine that this machine can run."""
        device = self.options.device
        return engines_of(undecided(opened), self.engines, device=device, keep=keep)


def _alone(engine: Engine, reader: BagOfWords) -> Engine:
    """Return a copy of an engine in which the word reader answers every sample."""
    words: dict[str, Any] = {"mode": "cascade"}
    ood: dict[str, Any] = {"score": NOVELTY, "threshold": 2.0}
    state: dict[str, Any] = {"temperature": 1.0, "conformal": SETS}
    first: dict[str, Any] = {**state, "threshold": 0.0, "novelty": 2.0, "floor": 2.0}
    state |= {
        "words": decided.BagOfWordsRecord.model_construct(**words),
        "ood": Ood.model_construct(**ood),
    }
    state["cascade"] = Cascade.model_construct(**first)
    alone = copy(engine)
    alone.state = State(DecisionRecord.model_construct(**state), words=reader)
    alone.transform = with_reader(engine.transform, reader)
    return alone


def _engines() -> tuple[str, ...]:
    """Return the names of the engines that this machine can run."""
    return tuple(kind.name for kind in ENGINES if kind.takes_weights)
