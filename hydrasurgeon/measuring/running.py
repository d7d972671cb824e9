"""Running models on data sets: their predictions, what the samples cost, and how long they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy import ndarray

from hydrasurgeon.checkpoints.reading import Checkpoint, without_words
from hydrasurgeon.data import Samples, first_batch, moved
from hydrasurgeon.engines import engine_of
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.measuring.predictions import OodSet, Predictions, ShiftSet
from hydrasurgeon.measuring.sets import DataSets
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import collected, logits_of, numbered
from hydrasurgeon.statistics.metrics import DIGITS
from hydrasurgeon.statistics.probabilities import yes_or_no
from hydrasurgeon.statistics.scores.fitted import EnsembleScore

TIMED = 16
"""Samples in the batch whose time the table shows."""


def name_of(job: Sequence[Checkpoint]) -> str:
    """A checkpoint's name, or that of several which answer together."""
    return " + ".join(each.alias or each.name.removesuffix(SUFFIX) for each in job)


def by_path(checkpoints: Sequence[Checkpoint], paths: Sequence[str | Path]) -> list[Checkpoint]:
    """Different checkpoints of one name are called by the paths they were given as."""
    places = [
        (name_of([each]), Path(path).absolute())
        for each, path in zip(checkpoints, paths, strict=True)
    ]
    counts = Counter(name for name, _ in {*places})
    return [
        each if counts[name] == 1 else replace(each, alias=str(path).removesuffix(SUFFIX))
        for each, (name, _), path in zip(checkpoints, places, paths, strict=True)
    ]


@dataclass(frozen=True)
class How:
    """Where and in which pieces models run."""

    run: Run
    skipped: list[str] = field(default_factory=list)
    """Samples that could not be read, as they are met."""
    engine: str = "torch"
    no_words: bool = False
    """Whether models answer without what reads words beside them."""

    def load(self, checkpoint: Checkpoint) -> Any:
        device, dtype = self.run.device, self.run.dtype
        if self.no_words:
            checkpoint = without_words(checkpoint)
        return engine_of(checkpoint, engine=self.engine, device=device, dtype=dtype)

    def logits(self, models: Sequence[Any], samples: Any) -> tuple[Any, Any]:
        return logits_of(models, samples, self.run, skipped=self.skipped)

    def scored(
        self, model: Any, samples: Any, fitted: EnsembleScore
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Logits, labels and a score of the features, in one pass."""
        piece = collected([model], samples, self.run, features=True, skipped=self.skipped)
        assert piece.features is not None
        return (
            piece.logits,
            piece.labels,
            {fitted.kind: fitted(piece.features, yes_or_no(piece.logits)).round(decimals=DIGITS)},
        )

    def first(self, model: Any, samples: Any, count: int = TIMED) -> Any:
        """The first samples as a batch of this model's; no more than it is run on at a time."""
        size = min(self.run.batch_size or TIMED, count)
        few = first_batch(samples, model.transform, size, skip_bad=self.run.skip_bad)
        for weight in getattr(model, "parameters", tuple)():  # a graph has none
            return moved(few, weight.device, weight.dtype)
        return few


def predicted(
    sets: DataSets, answer: Callable[[Any, bool], tuple[Any, Any, dict[str, Any]]], **about: Any
) -> Predictions:
    """What one model says of all sets; `answer` gives logits, labels and OOD scores, these where
    they are asked for.
    """
    logits, labels, scores = answer(sets.id, True)
    foreign = []
    for name, group, samples in sets.ood:
        outside, _, of_set = answer(samples, True)
        foreign.append(OodSet(name, group, outside, of_set))
    shifted = [
        ShiftSet(name, severity, *answer(samples, False)[:2])
        for name, severity, samples in sets.shift
    ]
    return Predictions(
        logits=logits,
        labels=labels,
        ood=tuple(foreign),
        shift=tuple(shifted),
        scores=scores,
        groups=groups_in(sets.id, len(logits)),
        **about,
    )


def groups_in(samples: Samples, count: int) -> ndarray | None:
    """A number for the query of each sample; None where nothing says so, or not all samples were
    read.
    """
    groups = samples.groups
    if groups is None or len(groups) != count:
        return None
    sizes = Counter(groups)
    alone = next((row for row, group in enumerate(groups) if sizes[group] == 1), None)
    if alone is not None:
        raise DataError(
            f"{samples.spec}: row {alone} is alone in its group {groups[alone][:60]!r}",
            hint=(
                "A query needs rows to order: give each two or more, or leave the column group out."
            ),
        )
    return numbered(groups)
