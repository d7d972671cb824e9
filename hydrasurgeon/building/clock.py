"""build's clock: how long one sample takes, by engine, as multiples of the unpruned model's time in
float32.

Whatever is timed runs in turn with the unpruned model in each float32 engine, on the same samples
one by one: a slow moment of the machine hits all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, get_args

import numpy as np

from hydrasurgeon.building.work import State
from hydrasurgeon.checkpoints.reading import Checkpoint, undecided
from hydrasurgeon.data import Batches, Samples
from hydrasurgeon.engines import PACKAGES, engines_of
from hydrasurgeon.measuring.cost import interleaved
from hydrasurgeon.options.engines import Engines
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.answering import Engine

EIGHT_BITS = "int8"
"""The engine whose answers are not those of float32."""
UNPRUNED = "None"
"""The shape of models that are not cut to a size."""
SAMPLES = 4
"""Samples that are timed, evenly spaced over VAL."""
RUNS = 15
"""How often."""


@dataclass(frozen=True)
class Taken:
    """How long one sample takes."""

    ms: float
    time: float
    """Times the unpruned model's in the faster float32 engine."""

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.ms + other.ms, self.time + other.time)


class Clock:
    """Times models, each shape once; what was measured is kept, whatever the machine does later."""

    def __init__(
        self, opened: Checkpoint, val: Samples, options: BuildOptions, state: State
    ) -> None:
        self.opened = opened
        self.val = val
        self.options = options
        self.state = state
        self.engines = _engines()

    @cached_property
    def known(self) -> dict[str, dict[str, Taken]]:
        """What was measured before, by shape and engine."""
        return {
            shape: {name: Taken(*taken) for name, taken in times.items()}
            for shape, times in self.state.known.get("times", {}).items()
            if set(times) == set(self.engines)
        }

    def times(self, shape: str, file: Callable[[], Checkpoint]) -> Mapping[str, Taken]:
        """By engine, of models that are alike but for their weights."""
        if shape not in self.known:
            passes = {}
            if shape != UNPRUNED:
                passes = self._passes(file())
            in_turn = {f"unpruned {name}": run for name, run in self._unpruned.items()}
            # The least of all runs is that of a quiet machine, whatever else runs on it now.
            seconds = interleaved({**passes, **in_turn}, self._inputs, runs=RUNS, of_runs=min)
            least = min(seconds[f"unpruned {name}"] for name in self.engines if name != EIGHT_BITS)
            mark = "" if passes else "unpruned "
            self.known[shape] = {
                name: Taken(
                    1000 * seconds[f"{mark}{name}"] / len(self._inputs),
                    seconds[f"{mark}{name}"] / least,
                )
                for name in self.engines
            }
            times = {s: {n: [t.ms, t.time] for n, t in e.items()} for s, e in self.known.items()}
            self.state.keep(times=times)
        return self.known[shape]

    def unpruned(self) -> Mapping[str, Taken]:
        """Of the model as it is."""
        return self.times(UNPRUNED, lambda: self.opened)

    @cached_property
    def _inputs(self) -> list[Any]:
        transform = self.opened.family.transform(
            self.opened.manifest.model, files=self.opened.files
        )
        order = np.unique(np.linspace(0, len(self.val) - 1, SAMPLES).round().astype(int))
        skip = self.options.skip_bad
        batches = Batches(self.val, transform, batch_size=1, order=order, workers=0, skip_bad=skip)
        return [batch.inputs for batch in batches]

    @cached_property
    def _unpruned(self) -> dict[str, Callable[[Sequence[Any]], None]]:
        return self._passes(self.opened)

    def _passes(self, opened: Checkpoint) -> dict[str, Callable[[Sequence[Any]], None]]:
        """By engine: all samples, one by one."""

        def run(live: Engine, inputs: Sequence[Any]) -> None:
            for sample in inputs:
                live.ask(sample)

        engines = engines_of(undecided(opened), self.engines, device=self.options.device)
        return {name: partial(run, live) for name, live in engines.items()}


def _engines() -> tuple[str, ...]:
    """Those that run here."""
    names = get_args(Engines.model_fields["engine"].annotation)
    if all(find_spec(package) for package in PACKAGES):
        return tuple(names)
    return names[:1]
