"""The cascade of `calibrate --cascade`: its options, and what is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.run import Run

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.fitting import Outputs
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.files.decided_cascade import CascadeRecord
    from hydrasurgeon.runtime.classifier import Classifier

DROP = 0.5
"""Points that no measure of a cascade may lose, unless something else is asked for."""


class CascadeKeywords(TypedDict, total=False):
    """The keywords of `CascadeOptions`."""

    cascade: bool
    max_drop: float | None
    budget: float | None


@dataclass(frozen=True, kw_only=True)
class CascadeOptions:
    """Whether most inputs are to be answered by few members, and what that may lose or cost."""

    cascade: bool = False
    """Fit a cascade too."""
    max_drop: float | None = None
    """Points that accuracy, AUROC, FPR95 and coverage at 5 % risk may lose at most; None: 0.5, unless there is a
    budget."""
    budget: float | None = None
    """Multiples of the single model's multiply-adds that it may cost; instead of `max_drop`."""

    def check_options(self) -> None:
        """They go together, and are numbers one can keep to."""
        for option, value, most in (("--max-drop", self.max_drop, 100.0), ("--budget", self.budget, 1e6)):
            if value is not None and not self.cascade:
                raise UsageError(f"{option}: is of a cascade", hint="Give --cascade too.")
            if value is not None and not 0 <= value <= most:
                raise UsageError(f"{option} {value:g}: must lie between 0 and {most:g}")
        if self.max_drop is not None and self.budget is not None:
            raise UsageError(
                "--max-drop and --budget: one says what a cascade may lose, the other what it may cost",
                hint="Leave one of them out.",
            )

    def check_members(self, checkpoint: Checkpoint) -> None:
        if self.cascade and not checkpoint.manifest.members:
            raise UsageError(
                f"--cascade: lets some members answer first, and {checkpoint.name} has one only", hint="Give a hydra."
            )

    def cascade_options(self) -> dict[str, Any]:
        """What history gets to know; nothing where no cascade was asked for."""
        if not self.cascade:
            return {}
        return {"cascade": True, "max_drop": self._max_drop(), "budget": self.budget}

    def _max_drop(self) -> float | None:
        return DROP if self.max_drop is None and self.budget is None else self.max_drop

    def fit(
        self, model: Classifier, state: State, samples: Samples, outputs: tuple[Outputs, Sequence[Outputs]], run: Run
    ) -> tuple[CascadeRecord, tuple[str, ...]]:
        """From what all members said of the validation samples and of foreign ones; multiply-adds are of the first
        sample."""
        from functools import cache

        from hydrasurgeon.data import Batches, moved
        from hydrasurgeon.measuring.cascades.cost import StepMacs, single_macs, step_macs
        from hydrasurgeon.measuring.cascades.fit import CascadeFit, MacsOf, Wanted
        from hydrasurgeon.measuring.cost import macs

        batches = Batches(samples, model.transform, batch_size=1, workers=0, skip_bad=run.skip_bad)
        weight = next(model.parameters())
        one = moved(next(iter(batches)).inputs, weight.device, weight.dtype)

        @cache
        def steps(starters: tuple[int, ...]) -> StepMacs:
            return step_macs(model, one, starters)

        costs = MacsOf(single_macs(model, one), macs(model, one), steps)
        wanted = Wanted(self._max_drop(), self.budget)
        val, foreign = outputs
        return CascadeFit(state, val, foreign, costs, seed=run.seed).record(wanted)
