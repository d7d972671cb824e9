"""Running models on data sets: their predictions, what the samples cost, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.files.mixture import Mixture, joined
from hydrasurgeon.measuring.naming import name_of
from hydrasurgeon.measuring.report import Result
from hydrasurgeon.measuring.sets import DataSets
from hydrasurgeon.options.shared import Run

if TYPE_CHECKING:
    from hydrasurgeon.decision.scores.fitted import EnsembleScore
    from hydrasurgeon.measuring.timing import SideBySide

# Samples in the batch whose time the table shows.
TIMED = 16


@dataclass(frozen=True)
class How:
    """Where and in which pieces models run."""

    run: Run
    skipped: list[str] = field(default_factory=list)
    """Samples that could not be read, as they are met."""
    passes: int | None = None
    """Of MC Dropout; None: one, without dropout."""

    def load(self, checkpoint: Checkpoint) -> Any:
        from hydrasurgeon.runtime.classifier import as_classifier
        from hydrasurgeon.runtime.dropout import sampled

        device, dtype = self.run.device, self.run.dtype
        if self.passes is not None:
            return sampled(checkpoint, self.passes, seed=self.run.seed, device=device, dtype=dtype)
        return as_classifier(checkpoint, device=device, dtype=dtype, lean=True)

    def logits(self, models: Sequence[Any], samples: Any) -> Any:
        from hydrasurgeon.runtime.inference import logits_of

        return logits_of(models, samples, self.run, skipped=self.skipped)

    def scored(self, model: Any, samples: Any, fitted: EnsembleScore) -> tuple[Any, Any, dict[str, Any]]:
        """Logits, labels and a score of the features, in one pass."""
        from hydrasurgeon.measuring.metrics import DIGITS
        from hydrasurgeon.runtime.outputs import collected

        piece = collected(model, samples, self.run, features=True, skipped=self.skipped)
        assert piece.features is not None
        scores = fitted(piece.features, piece.logits, model.mixture).round(decimals=DIGITS)
        return piece.logits, piece.labels, {fitted.kind: scores}


def run_models(
    job: Sequence[Checkpoint], models: Sequence[Any], sets: DataSets, how: How, timed: SideBySide, *, fitted: Any = None
) -> tuple[Any, Any]:
    """Predictions and cost of one checkpoint, or of several run as one Deep Ensemble; logits on the validation set."""
    from hydrasurgeon.data import Batches, moved
    from hydrasurgeon.measuring.cost import cost_of
    from hydrasurgeon.measuring.predictions import OodSet, Predictions, ShiftSet
    from hydrasurgeon.measuring.timing import InTurn

    def logits(samples: Any) -> Any:
        return how.logits(models, samples)

    def scored(samples: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Logits, labels, and the score of the decision state where it needs features."""
        return (*logits(samples), {}) if fitted is None else how.scored(models[0], samples, fitted)

    predicted, labels, inside = scored(sets.id)
    foreign = []
    for name, group, samples in sets.ood:
        outside, _, scores = scored(samples)
        foreign.append(OodSet(name, group, outside, scores))
    shifted = []
    for name, severity, samples in sets.shift:
        shifted.append(ShiftSet(name, severity, *logits(samples)))

    def first(count: int) -> Any:
        few = Batches(sets.id, models[0].transform, batch_size=count, workers=0, skip_bad=how.run.skip_bad)
        weight = next(models[0].parameters())
        return moved(next(iter(few)).inputs, weight.device, weight.dtype)

    together = models[0] if len(models) == 1 else InTurn(list(models))
    timed.add(together, first(min(how.run.batch_size or TIMED, TIMED)))
    single = job[0]
    predictions = Predictions(
        name=name_of(job, passes=how.passes),
        kind="ensemble" if len(job) > 1 else single.manifest.kind,
        logits=predicted,
        labels=labels,
        ood=tuple(foreign),
        shift=tuple(shifted),
        scores=inside,
        cost=cost_of(models, first(1)),  # a text without the padding that others bring
        mixture=mixture_among(models),
    )
    return predictions, logits(sets.val) if sets.val is not None else None


def mixture_among(models: Sequence[Any]) -> Mixture | None:
    """The weights of all their members, run as one."""
    return joined([(model.members, model.mixture) for model in models])


def with_time(measured: Result, milliseconds: float | None) -> Result:
    assert measured.cost is not None
    cost = measured.cost.model_copy(update={"latency_ms": milliseconds})
    return measured.model_copy(update={"cost": cost})
