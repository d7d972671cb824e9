"""The cascade of `calibrate --cascade`: its options, and what is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.options.deciding import CalibrateOptions

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.fitting import Outputs
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.files.decided import Cascade
    from hydrasurgeon.runtime.classifier import Classifier

DROP = 0.5
"""Points that no measure of a cascade may lose, unless something else is asked for."""


def check_members(arguments: CalibrateOptions, checkpoint: Checkpoint) -> None:
    if arguments.cascade and not checkpoint.manifest.members:
        raise UsageError(
            f"--cascade: lets some members answer first, and {checkpoint.name} has one only", hint="Give a hydra."
        )


def max_drop(arguments: CalibrateOptions) -> float | None:
    """What a cascade may lose; None where none is fitted, or its cost is what counts."""
    if not arguments.cascade or arguments.budget is not None:
        return None
    return DROP if arguments.max_drop is None else arguments.max_drop


def fit_cascade(
    arguments: CalibrateOptions,
    model: Classifier,
    state: State,
    samples: Samples,
    outputs: tuple[Outputs, Sequence[Outputs]],
) -> tuple[Cascade, tuple[str, ...]]:
    """From what all members said of the validation samples and of foreign ones; multiply-adds are of the first
    sample."""
    from functools import cache

    from hydrasurgeon.data import first_batch, moved
    from hydrasurgeon.measuring.cascades.fit import CascadeFit, MacsOf, Wanted
    from hydrasurgeon.measuring.cost import StepMacs, macs, single_macs, step_macs

    weight = next(model.parameters())
    one = first_batch(samples, model.transform, 1, skip_bad=arguments.skip_bad)
    one = moved(one, weight.device, weight.dtype)

    @cache
    def steps(starters: tuple[int, ...]) -> StepMacs:
        return step_macs(model, one, starters)

    costs = MacsOf(single_macs(model, one), macs(model, one), steps)
    wanted = Wanted(max_drop(arguments), arguments.budget)
    val, foreign = outputs
    return CascadeFit(state, val, foreign, costs, seed=arguments.seed).record(wanted)
