"""How long one sample takes, by engine, as multiples of the unpruned model's time in float32.

Whatever is timed runs in turn with the unpruned model in each float32 engine, sample by sample. On
the CPU the time of the processor counts, and of each sample the least of all runs: what else runs on
the machine takes no part in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.checkpoints.reading import Checkpoint, undecided
from hydrasurgeon.data import Batches, Samples
from hydrasurgeon.data.batches import has_gpu
from hydrasurgeon.data.readers import with_reader
from hydrasurgeon.decision.reading import Reading
from hydrasurgeon.engines import PACKAGES, engines_of
from hydrasurgeon.measuring.cost import interleaved
from hydrasurgeon.options.shared import Run
from hydrasurgeon.problems import SINGLE

EIGHT_BITS = "int8"
"""The engine whose answers are not those of float32."""
UNPRUNED = "None"
"""The shape of models that are not cut to a size."""
WORDS = "words"
"""The shape of a reader of words, and what computes it."""
SAMPLES = 4
"""Samples that are timed, evenly spaced over VAL."""
RUNS = 15
"""How often."""
AT_ONCE = 10
"""Runs of words one after another, as texts that end there come: after a model's pass, which clears
the processor's caches, one takes several times as long.
"""


@dataclass(frozen=True)
class Taken:
    """How long one sample takes."""

    ms: float
    time: float
    """Times the unpruned model's in the faster float32 engine."""

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.ms + other.ms, self.time + other.time)

    def __mul__(self, share: float) -> Taken:
        return Taken(self.ms * share, self.time * share)


Passes = Sequence[Callable[[], object]]
"""What is timed, a call for each sample."""


class Clock:
    """Times models, each shape once; what was measured is kept, whatever the machine does later."""

    def __init__(
        self,
        opened: Checkpoint,
        val: Samples,
        options: Run,
        before: Callable[[], Mapping[str, Mapping[str, Sequence[float]]]] = dict,
        keep: Callable[[dict[str, Any]], None] = lambda times: None,
    ) -> None:
        """`before` is what was measured before, and `keep` gets all that is known from now on."""
        self.opened = opened
        self.val = val
        self.options = options
        self.engines = _engines()
        self.before = before
        self.keep = keep

    @cached_property
    def known(self) -> dict[str, dict[str, Taken]]:
        """What was measured, by shape and engine."""
        return {
            shape: {name: Taken(*taken) for name, taken in times.items()}
            for shape, times in self.before().items()
            if shape == WORDS or set(times) == set(self.engines)
        }

    def times(self, shape: str, file: Callable[[], Checkpoint]) -> Mapping[str, Taken]:
        """By engine, of models that are alike but for their weights."""
        if shape not in self.known:
            self._time(shape, self._unpruned if shape == UNPRUNED else self._passes(file()))
        return self.known[shape]

    def unpruned(self) -> Mapping[str, Taken]:
        """Of the model as it is."""
        return self.times(UNPRUNED, lambda: self.opened)

    def words(self, reading: Callable[[], Reading]) -> Taken:
        """Of a reader, and of deciding whether it answers."""
        if WORDS not in self.known:
            made = reading()
            beside: Any = with_reader(self._transform, made.reader)

            def first(sample: Any) -> None:
                for _ in range(AT_ONCE):
                    _, read = beside.parts([sample])
                    SINGLE.answers(read[:, None, :-1], {"temperature": 1.0})

            samples = [self.val.read(int(i)) for i in self._order]
            self._time(WORDS, {WORDS: [partial(first, each) for each in samples]})
        return self.known[WORDS][WORDS]

    def _time(self, shape: str, passes: Mapping[str, Passes]) -> None:
        turns = {f"unpruned {name}": each for name, each in self._unpruned.items()}
        if shape != UNPRUNED:
            turns |= passes
        sums = seconds_of(turns)
        least = min(sums[f"unpruned {name}"] for name in self.engines if name != EIGHT_BITS)
        mark = "unpruned " if shape == UNPRUNED else ""
        self.known[shape] = {
            name: Taken(
                1000 * sums[f"{mark}{name}"] / len(self._inputs), sums[f"{mark}{name}"] / least
            )
            for name in passes
        }
        self.keep({s: {n: [t.ms, t.time] for n, t in e.items()} for s, e in self.known.items()})

    @property
    def _transform(self) -> Callable[[Any], Any]:
        return self.opened.family.transform(self.opened.manifest.model, files=self.opened.files)

    @property
    def _order(self) -> ndarray:
        return np.unique(np.linspace(0, len(self.val) - 1, SAMPLES).round().astype(int))

    @cached_property
    def _inputs(self) -> list[Any]:
        skip = self.options.skip_bad
        batches = Batches(
            self.val, self._transform, batch_size=1, order=self._order, workers=0, skip_bad=skip
        )
        return [batch.inputs for batch in batches]

    @cached_property
    def _unpruned(self) -> Mapping[str, Passes]:
        return self._passes(self.opened, keep=True)  # it answers soon, and is what may be written

    def _passes(self, opened: Checkpoint, *, keep: bool = False) -> Mapping[str, Passes]:
        """By engine."""
        device = self.options.device
        engines = engines_of(undecided(opened), self.engines, device=device, keep=keep)
        return {
            name: [partial(live.ask, sample) for sample in self._inputs]
            for name, live in engines.items()
        }


def seconds_of(turns: Mapping[str, Passes]) -> dict[str, float]:
    """Of all samples: of each the least of all runs."""
    calls = {
        f"{number} {name}": lambda _, run=run: run()
        for number in range(SAMPLES)
        for name, passes in turns.items()
        for run in passes[number : number + 1]
    }
    now = time.perf_counter if has_gpu() else time.process_time
    seconds = interleaved(calls, None, runs=RUNS, of_runs=min, now=now)
    return {
        name: sum(seconds[f"{number} {name}"] for number in range(len(passes)))
        / (AT_ONCE if name == WORDS else 1)
        for name, passes in turns.items()
    }


def _engines() -> tuple[str, ...]:
    """Those that run here."""
    graphs = all(find_spec(package) for package in PACKAGES)
    return ("torch", "onnx", EIGHT_BITS) if graphs else ("torch",)
