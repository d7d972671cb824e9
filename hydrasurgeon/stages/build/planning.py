"""build's plan: its stages, what each costs in forward passes, and the time that is left over all
of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.criteria import WITHOUT_DATA
from hydrasurgeon.data import Samples, first_batch, moved
from hydrasurgeon.measuring.cost import interleaved
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.options.shared import Progress
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.stages.build.cost import parse_budgets

GRADIENT = 3.0
"""Forward passes that a pass with gradients takes as long as."""
TIMED = 16
"""Samples of the batch whose time is measured."""
MINUTE, HOUR = 90, 5400
"""Seconds from which on a time is told in minutes, and in hours."""


@dataclass(frozen=True)
class Step:
    """One stage of a build."""

    name: str
    passes: float
    """Forward passes of the whole model, of one sample each."""
    loop: str = ""
    """What is counted from the stage's beginning to its end."""


class Plan:
    """The stages, in which of them the work is, and when all of it will be done."""

    def __init__(self, steps: Sequence[Step], seconds: float, tell: Progress | None) -> None:
        self.steps, self.seconds, self.tell = steps, seconds, tell
        self.at, self.begun, self.start, self.first = (
            0,
            time.monotonic(),
            time.monotonic(),
            (0.0, 0),
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """What will be done, a line for each stage, and how long it takes."""
        whole = sum(step.passes for step in self.steps)
        lines = [
            f"{at}. {step.name}: {step.passes:,.0f} forward passes"
            for at, step in enumerate(self.steps, 1)
        ]
        head = (
            f"{len(self.steps)} stages, {in_words(whole * self.seconds)} on this machine; what "
            "is there is used"
        )
        return (head, *lines)

    def begin(self, at: int) -> None:
        """The work is in this stage now, counted from the end where negative; the pace so far tells
        how long the rest takes.
        """
        at %= len(self.steps)
        done = sum(step.passes for step in self.steps[:at])
        now = time.monotonic()
        if at and done and now - self.begun > 1:
            self.seconds = (now - self.begun) / done
        self.at, self.start, self.first = at, now, (0.0, 0)

    def tick(self, what: str, done: int, total: int) -> None:
        """How far the work of this stage is."""
        if self.tell is not None:
            where = (
                f"stage {self.at + 1} of {len(self.steps)}, "
                f"{in_words(self._left(what, done, total))} left"
            )
            self.tell(f"{where}; {what}", done, total)

    def _left(self, what: str, done: int, total: int) -> float:
        """Seconds that remain over all stages: of this one by its own pace where it has one, else
        as planned.
        """
        step, now = self.steps[self.at], time.monotonic()
        left = max(0.0, step.passes * self.seconds - (now - self.start))
        if what == step.loop:
            since, already = self.first = self.first if self.first[0] else (now, done)
            left = (total - done) * (now - since) / (done - already) if done > already else left
        return left + sum(step.passes for step in self.steps[self.at + 1 :]) * self.seconds


def in_words(seconds: float) -> str:
    """`about 4 min`."""
    if seconds < MINUTE:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < HOUR else f"about {seconds / 3600:.1f} h"


def steps_of(
    options: BuildOptions,
    keys: Sequence[str],
    sets: Mapping[str, Sequence[Samples]],
    *,
    heads: int,
    wholes: int,
    sizes: int,
) -> list[Step]:
    """The stages of a build, in order: a score for each criterion, candidates, members of every
    size out of each whole model (the mean of several is one more), what is made.
    """
    data, val, budgets = len(sets["data"][0]), len(sets["val"][0]), parse_budgets(options.budget)
    scored, seen = (
        min(options.score_limit, data),
        val + sum(map(len, sets["ood"])) + (val if sets["ood"] else 0),
    )
    circuits, steps = [key for key in keys if key.startswith("circuit-")], []
    each = {"attribution": GRADIENT, "exact": heads**2 / 2}[options.search]
    for key in keys:
        passes = 0.0 if key in WITHOUT_DATA else GRADIENT * scored
        name = f"scores by {key}"
        if key in circuits:
            name = (
                f"circuits: {circuits.index(key) + 1} of {len(circuits)}, {key} by {options.search}"
            )
            passes = each * scored * (2 if key != "circuit-acc" else 1)
        steps.append(Step(name, passes))
    if wholes:
        models = len(options.checkpoints)
        name = f"scores of heads and neurons, {models} models" + " and their mean" * (
            wholes > models
        )
        steps.append(Step(name, 2 * wholes * GRADIENT * scored))
    tried = options.candidates + 1 if keys else 1
    steps.append(
        Step(f"{tried} candidates", tried * seen + (tried - 1) * scored / 2, loop="candidates")
    )
    if wholes:
        cuts = wholes * sizes
        steps.append(Step(f"{cuts} members of every size", cuts * (seen + 2.0 * scored)))
    if options.tune is not None:
        steps.append(Step(*_tuning(options, data, seen)))
    steps.append(
        Step("what is chosen is made", len(budgets) * (data + seen) * float(options.calibrate))
    )
    return steps


def _tuning(options: BuildOptions, data: int, seen: int) -> tuple[str, float]:
    """What training takes where as many members are chosen as there are budgets, or models."""
    from hydrasurgeon.tuning.recipes import load_recipe

    recipe = load_recipe("teach" if options.tune == "auto" else str(options.tune), {})
    rows = (
        recipe.steps * recipe.batch_size * recipe.accumulate
        if recipe.steps
        else data * (recipe.epochs or 1)
    )
    first = int(options.teachers) if options.teachers and options.teachers.isdigit() else 0
    members = max(len(parse_budgets(options.budget)), len(options.checkpoints))
    name = f"{members} members tuned" + (f", {first} teachers trained first" if first else "")
    return name, (members + first) * ((GRADIENT + 1) * rows + seen)


def seconds_of_a_pass(opened: Single, val: Samples, options: BuildOptions) -> float:
    """How long one sample takes, measured on a first batch."""
    count = min(TIMED, len(val))
    model = as_classifier(opened, device=options.device, dtype=options.dtype)
    weight = next(model.parameters())
    inputs = first_batch(val, model.transform, count, skip_bad=options.skip_bad)
    passes = {"whole": lambda _: model(moved(inputs, weight.device, weight.dtype))}
    with torch.inference_mode():
        return interleaved(passes, None, runs=1)["whole"] / count
