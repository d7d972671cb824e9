"""build's plan: its stages, what each costs in forward passes, and in which of them the work is.

How long all of it takes is said once, before it begins: a time that is left, told while other work
runs on the machine, would be wrong more often than right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hydrasurgeon.building.cost import Budget
from hydrasurgeon.building.members import recipe_of
from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.criteria import criterion
from hydrasurgeon.data import Samples, first_batch, moved
from hydrasurgeon.measuring.cost import interleaved
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.options.shared import Progress
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.tuning.recipes import load_recipe

GRADIENT = 3.0
"""Forward passes that a pass with gradients takes as long as."""
TIMED = 16
"""Samples of the batch whose time is measured."""
MINUTE, HOUR = 90, 5400
"""Seconds from which on a time is told in minutes, and in hours."""


@dataclass(frozen=True)
class Step:
    """One stage of a build."""

    key: str
    """What the code calls it."""
    name: str
    passes: float
    """Forward passes of the unpruned model, of one sample each."""


class Plan:
    """The stages, and where the work is."""

    def __init__(self, steps: Sequence[Step], seconds: float, tell: Progress | None) -> None:
        self.steps = steps
        self.seconds = seconds
        self.tell = tell
        self.where = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """What will be done, a line for each stage, and how long it takes."""
        total = in_words(sum(step.passes for step in self.steps) * self.seconds)
        stages = [
            f"{number}. {step.name}: {step.passes:,.0f} forward passes, "
            f"{in_words(step.passes * self.seconds)}"
            for number, step in enumerate(self.steps, 1)
        ]
        return (f"{counted(len(stages), 'stage')}, {total} in all on this machine", *stages)

    def begin(self, key: str) -> None:
        """The work is in this stage now."""
        keys = [step.key for step in self.steps]
        self.where = f"stage {keys.index(key) + 1} of {len(keys)}"

    def tick(self, what: str, done: int, total: int) -> None:
        """How far the work of this stage is."""
        if self.tell is not None:
            self.tell(f"{self.where}; {what}", done, total)


def counted(count: int, what: str) -> str:
    """`1 candidate`, `2 candidates`."""
    if count == 1:
        return f"1 {what}"
    return f"{count} {what}s"


def in_words(seconds: float) -> str:
    """`about 4 min`."""
    if seconds < MINUTE:
        return f"about {max(1, round(seconds))} s"
    if seconds < HOUR:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


def steps_of(
    options: BuildOptions,
    keys: Sequence[str],
    sets: Mapping[str, Sequence[Samples]],
    opened: Single,
    budgets: Sequence[Budget],
    *,
    models: int,
    sizes: int,
) -> list[Step]:
    """The stages of a build, in order: a score for each criterion, candidates, members of every
    size out of each of `models` (the mean of several is one more), what is made.
    """
    data, val = len(sets["data"][0]), len(sets["val"][0])
    scored = min(options.score_limit, data)
    seen = val
    if sets["ood"]:  # perturbed validation data are one more set; scores are fitted on TRAIN
        seen += val + sum(map(len, sets["ood"])) + scored
    heads = sum(tower.heads * tower.layers for tower in opened.manifest.towers.values())
    steps = [Step(key, f"scores by {key}", _scoring(key, options, scored, heads)) for key in keys]
    if models:
        given = len(options.checkpoints)
        name = f"scores of heads and neurons, {counted(given, 'model')}"
        if models > given:
            name += " and their mean"
        steps.append(Step("models", name, 2 * models * GRADIENT * scored))
    tried = 1
    if keys:
        tried += options.candidates
    passes = tried * seen + (tried - 1) * scored / 2
    steps.append(Step("candidates", counted(tried, "candidate"), passes))
    if models:
        cuts = models * sizes
        passes = cuts * (seen + 2.0 * scored) + (models - 1) * seen
        steps.append(Step("sizes", counted(cuts, "smaller member"), passes))
    steps.append(Step("probe", "probe of the frozen body", data + 2.0 * seen))
    if options.tune is not None:
        steps.append(_tuning(options, data, seen, len(budgets)))
    made = len(budgets) * (data + seen) * float(options.calibrate)
    return [*steps, Step("made", "make what is chosen", made)]


def _scoring(key: str, options: BuildOptions, scored: int, heads: int) -> float:
    """Forward passes of one score."""
    if not criterion(key).needs_data:
        return 0.0
    if not key.startswith("circuit-"):
        return GRADIENT * scored
    each = {"attribution": GRADIENT, "exact": heads**2 / 2}[options.search]
    if key == "circuit-acc":
        return each * scored
    return 2 * each * scored


def _tuning(options: BuildOptions, data: int, seen: int, budgets: int) -> Step:
    """What distilling takes where as many members are chosen as there are budgets, or models."""
    recipe = load_recipe(recipe_of(options), {})
    rows = data * (recipe.epochs or 1)
    if recipe.steps:
        rows = recipe.steps * recipe.batch_size * recipe.accumulate
    count = max(budgets, len(options.checkpoints))
    name = f"{counted(count, 'member')} distilled"
    if options.teachers and options.teachers.isdigit():
        count += int(options.teachers)
        name += f", {counted(int(options.teachers), 'teacher')} trained first"
    return Step("tuned", name, count * ((GRADIENT + 1) * rows + seen))


def seconds_of_a_pass(opened: Single, val: Samples, options: BuildOptions) -> float:
    """How long one sample takes, measured on a first batch."""
    count = min(TIMED, len(val))
    model = as_classifier(opened, device=options.device, dtype=options.dtype)
    weight = next(model.parameters())
    inputs = first_batch(val, model.transform, count, skip_bad=options.skip_bad)
    passes = {"unpruned": lambda _: model(moved(inputs, weight.device, weight.dtype))}
    with torch.inference_mode():
        return interleaved(passes, None, runs=1)["unpruned"] / count
