"""build's clock: how long one sample takes, by engine, as multiples of the unpruned model's time in
float32.

Whatever is timed runs in turn with the unpruned model in each float32 engine, on the same samples
one by one: a slow moment of the machine hits all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, get_args

import numpy as np

from hydrasurgeon.checkpoints.reading import Checkpoint, Single, undecided
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
    """Times models, each shape once."""

    def __init__(self, opened: Single, val: Samples, options: BuildOptions) -> None:
        self.options = options
        transform = opened.family.transform(opened.manifest.model, files=opened.files)
        order = np.unique(np.linspace(0, len(val) - 1, SAMPLES).round().astype(int))
        batches = Batches(
            val, transform, batch_size=1, order=order, workers=0, skip_bad=options.skip_bad
        )
        self.inputs = [batch.inputs for batch in batches]
        self.engines = _engines()
        self.unpruned = self._passes(opened)
        seconds = interleaved(self.unpruned, self.inputs, runs=RUNS)
        self.known = {UNPRUNED: self._taken(seconds, seconds)}

    def _taken(
        self, seconds: Mapping[str, float], unpruned: Mapping[str, float]
    ) -> dict[str, Taken]:
        """By engine, compared with the unpruned model's in the faster engine of float32."""
        least = min(unpruned[name] for name in self.engines if name != EIGHT_BITS)
        return {
            name: Taken(1000 * seconds[name] / len(self.inputs), seconds[name] / least)
            for name in self.engines
        }

    def times(self, shape: str, opened: Callable[[], Checkpoint]) -> Mapping[str, Taken]:
        """By engine, of models that are alike but for their weights."""
        if shape not in self.known:
            checkpoint = opened()
            passes = self._passes(checkpoint)
            in_turn = {f"unpruned {name}": run for name, run in self.unpruned.items()}
            seconds = interleaved({**passes, **in_turn}, self.inputs, runs=RUNS)
            unpruned = {name: seconds[f"unpruned {name}"] for name in self.engines}
            self.known[shape] = self._taken(seconds, unpruned)
        return self.known[shape]

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
