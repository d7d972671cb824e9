"""build's plan: its stages and how long they take, said before it begins; where the work is; and
when it must end.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from hydrasurgeon.anatomy.layers import run_block
from hydrasurgeon.building.members import QUICK, SCORED, SEEDS, is_large
from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.data import Samples, first_batch, moved
from hydrasurgeon.deadline import TimeIsUp, deadline
from hydrasurgeon.decision.ood_score import MOST_GATHERED
from hydrasurgeon.measuring.cost import interleaved
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.options.progress import Display, Progress
from hydrasurgeon.runtime.pruned import LoadedBackbone
from hydrasurgeon.tuning.probe import MOST
from hydrasurgeon.tuning.recipes import load_recipe
from hydrasurgeon.tuning.start import usual_recipe

GRADIENT = 3.0
"""Forward passes that a pass with gradients takes as long as."""
TIMED = 16
"""Samples of the batch whose time is measured."""
RUNS = 3
"""Number of timed runs."""
MINUTE, HOUR = 90, 5400
"""Seconds from which on a time is told in minutes, and in hours."""
BEAT = 1.0
"""Seconds after which the progress line moves by itself."""
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""Signals that end a build with the best so far."""
now = time.monotonic


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a build."""

    key: str
    """Identifier in the code."""
    name: str
    passes: float
    """Forward passes of the unpruned model, of one sample each."""
    seconds: float = 0.0
    """Further time, in seconds."""


class Plan:
    """The stages, where the work is, and when it ends."""

    def __init__(
        self, steps: Sequence[PlannedStage], seconds: float, tell: Progress | None, minutes: float
    ) -> None:
        self.steps = steps
        self.seconds = seconds
        self.display = Display.of(tell)
        self.minutes = minutes
        self.ends = now() + 60 * minutes
        self.may_end = False
        """True if every budget has a file, so that the build may end."""
        self.ended = False
        """True if the time limit has ended the build."""
        self.interrupted = False
        """True once a signal has come."""
        self._unseen = False
        """True until that ends the work."""
        self.where, self.began = "", now()
        self.step = 0
        """Number of the current stage."""
        self._announced = ""
        """Stage whose line a log has."""
        self.best = ""
        """The best file so far, with its figures."""
        self.last: tuple[str, int, int] = ("", 0, 1)
        self.shown_at = now()

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines that list the stages and how long they take."""
        times = [step.passes * self.seconds + step.seconds for step in self.steps]
        stages = [
            f"{number}. {step.name}: {in_words(seconds)}"
            for number, (step, seconds) in enumerate(zip(self.steps, times, strict=True), 1)
        ]
        total = f"{counted(len(stages), 'stage')}, {in_words(sum(times))} in all on this machine"
        if sum(times) > 60 * self.minutes:
            total += (
                f"; --max-minutes {self.minutes:g} ends it earlier, once each budget has a file"
            )
        return (total, *stages)

    def begin(self, key: str) -> None:
        """Enter a stage and show it."""
        keys = [step.key for step in self.steps]
        self.where, self.began = f"stage {keys.index(key) + 1} of {len(keys)}", now()
        self.step = keys.index(key)
        name = self.steps[self.step].name
        if self.display.is_log and self.where != self._announced:
            self._announced = self.where
            self.display.line(f"{self.where} ({name}); {self.left} in all")
        self.tick(name, 0, 1)

    def tick(self, name: str, done: int, total: int) -> None:
        """Show the progress of this stage; end the build if its time is up."""
        self.last = (name, done, total)
        self._say()
        self.check()

    def check(self) -> None:
        """End the work if time is up or a signal has come, whoever has caught what that raised."""
        if self._unseen:
            self._unseen = False
            raise KeyboardInterrupt
        if self.may_end and now() >= self.ends:
            self.ended = True
            raise TimeIsUp

    def hold(self) -> None:
        """Ignore the time limit until every budget has a file again."""
        self.may_end = False

    def why_ended(self, error: BaseException) -> str | None:
        """Return what ended the work: time, or a signal; None for an error of its own. What was raised
        within a library's C++ comes back as an error of that library.
        """
        self._unseen = False
        if self.ended:
            return f"the time of --max-minutes {self.minutes:g} is over"
        if self.interrupted or isinstance(error, KeyboardInterrupt | SystemExit):
            self.interrupted = True
            return "interrupted"
        return None

    @property
    def left(self) -> str:
        """Estimate of the remaining time, which --max-minutes limits once each budget has a file."""
        times = [step.passes * self.seconds + step.seconds for step in self.steps[self.step :]]
        seconds = max(0.0, times[0] - (now() - self.began)) + sum(times[1:])
        return f"{in_words(min(seconds, max(1.0, self.ends - now())))} left"

    def _say(self) -> None:
        name, done, total = self.last
        self.shown_at = now()
        if self.display.is_log:  # it gets one line per event instead
            return
        best = f"best so far: {self.best}; " if self.best else ""
        self.display.status(f"{best}{self.left}")
        if total:
            # The end of a name that is too long for the line is what is shown.
            self.display(f"{self.where} ({name}), {now() - self.began:.0f} s", done, total)

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Update the progress line within the block, and let its loops check the time limit."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT):
                if self.where and now() - self.shown_at >= BEAT:
                    self._say()

        threading.Thread(target=beat, daemon=True).start()
        try:
            with self._noting_signals(), deadline(self.check):
                yield
        finally:
            over.set()

    @contextlib.contextmanager
    def _noting_signals(self) -> Iterator[None]:
        """Note each signal that raises something, within the block."""
        handlers: dict[int, Any] = {}

        def note(number: int, frame: FrameType | None) -> None:
            self.interrupted = self._unseen = True
            handlers[number](number, frame)

        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers[number] = handler
                    signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                if signal.getsignal(number) is note:  # a handler may have put another in its place
                    signal.signal(number, handler)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 candidate` or `2 candidates`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def in_words(seconds: float) -> str:
    """Return a duration such as `about 4 min`."""
    if seconds < MINUTE:
        return f"about {max(1, round(seconds))} s"
    if seconds < HOUR:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


def steps_of(
    options: BuildOptions,
    sets: Mapping[str, Sequence[Samples]],
    budgets: int,
    *,
    timed: float,
    body: bool,
    models: int,
    sizes: int,
    judged: int = 0,
) -> list[PlannedStage]:
    """Return the stages of a build, in order; `timed` are the seconds that a clock takes, and
    `judged` is the number of rows that are read once more to judge their labels.
    """
    data, val = len(sets["data"][0]), len(sets["val"][0])
    scored = min(SCORED, data)
    seen = val
    if sets["ood"]:  # OOD scores are fitted on TRAIN
        seen += sum(map(len, sets["ood"])) + scored
    written = budgets * (min(data, MOST_GATHERED) + seen)
    large = body and is_large(sets["data"][0], options)
    read = min(data, QUICK if large else MOST)
    quick = 2.0 * read + val + 2 * seen + written + min(judged, MOST)
    steps = [
        PlannedStage("quick", "the model as it is, a probe; for texts a bag of words", quick, timed)
    ]
    if large:
        name = "the probe on more rows"
        steps.append(PlannedStage("wide", name, min(data, MOST) + val + 2 * seen + written, timed))
    if body:
        count = options.seeds or SEEDS
        recipe = usual_recipe(options.paths[0], options.arch)
        passes = count * ((GRADIENT * data + val) * _epochs(recipe, data) + seen)
        steps.append(PlannedStage("tuned", counted(count, "fine-tuned model"), passes))
    if models > 1:
        name = "the other models, and their mean"
        passes = float((models + 1) * seen)
        steps.append(PlannedStage("models", name, passes))
    if sizes:
        passes = models * sizes * (seen + 2.0 * scored) + models * 2 * GRADIENT * scored
        name = f"up to {counted(models * sizes, 'smaller model')}"
        steps.append(PlannedStage("sizes", name, passes, timed * sizes))
    return steps


def _epochs(name: str, rows: int) -> float:
    recipe = load_recipe(name, {})
    if recipe.steps:
        return recipe.steps * recipe.batch_size * recipe.accumulate / max(1, rows)
    return recipe.epochs or 1


def seconds_of_a_pass(opened: Single, val: Samples, options: BuildOptions) -> float:
    """Return the seconds of one sample's forward pass, measured on a first batch; a body will do."""
    count = min(TIMED, len(val))
    loaded = LoadedBackbone(opened, device=options.device, dtype=options.dtype)
    anatomy = opened.family.anatomy(loaded.module(opened.manifest.kept))
    transform = opened.family.transform(opened.manifest.model, files=opened.files)
    batch = first_batch(val, transform, count, skip_bad=options.skip_bad)
    inputs = moved(batch, loaded.device, loaded.dtype)

    def passed() -> None:
        stack = anatomy.embed(inputs)
        hidden = stack.hidden
        for block in anatomy.blocks:
            hidden = run_block(block, hidden, stack.bias)

    with torch.inference_mode():
        return interleaved({"one": passed}, runs=RUNS)["one"] / count
