"""Running models on data sets: their predictions, and the batches that their cost is taken on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy import ndarray

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.data import Samples, first_batch, moved
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.measuring.sets import DataSets
from hydrasurgeon.options.shared import Run
from hydrasurgeon.problems.base import Outputs
from hydrasurgeon.runtime.answering import collected, numbered
from hydrasurgeon.statistics.metrics import DIGITS
from hydrasurgeon.statistics.probabilities import yes_or_no
from hydrasurgeon.statistics.scores.fitted import EnsembleScore

TIMED = 16
"""Samples in the batch whose time the table shows."""
Said = tuple[Outputs, dict[str, ndarray]]
"""What a model said of some samples, and OOD scores that are no functions of it."""


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


def said_of(
    models: Sequence[Any],
    samples: Samples,
    run: Run,
    skipped: list[str],
    fitted: EnsembleScore | None = None,
) -> Said:
    """Logits and labels, and a score of the features, in one pass."""
    outputs = collected(models, samples, run, features=fitted is not None, skipped=skipped)
    if fitted is None or outputs.features is None:
        return outputs, {}
    score = fitted(outputs.features, yes_or_no(outputs.logits)).round(decimals=DIGITS)
    return replace(outputs, features=None), {fitted.kind: score}


def first(model: Any, samples: Any, run: Run, count: int = TIMED) -> Any:
    """The first samples as a batch of this model's; no more than it is run on at a time."""
    size = min(run.batch_size or TIMED, count)
    few = first_batch(samples, model.transform, size, skip_bad=run.skip_bad)
    for weight in getattr(model, "parameters", tuple)():  # a graph has none
        return moved(few, weight.device, weight.dtype)
    return few


def predicted(sets: DataSets, answer: Callable[[Any, bool], Said], **about: Any) -> Predictions:
    """What one model says of all sets; `answer` gives OOD scores where they are asked for."""
    outputs, scores = answer(sets.id, True)
    foreign = {name: answer(samples, True) for name, samples in sets.ood.items()}
    return Predictions(
        outputs=grouped(outputs, sets.id),
        ood={name: said for name, (said, _) in foreign.items()},
        near=sets.near,
        shift={shift: answer(samples, False)[0] for shift, samples in sets.shift.items()},
        scores={"": scores, **{name: scores for name, (_, scores) in foreign.items()}},
        **about,
    )


def grouped(outputs: Outputs, samples: Samples) -> Outputs:
    """With a number for the query of each sample, where data say so and all samples were read."""
    groups = samples.groups
    if groups is None or len(groups) != len(outputs.logits):
        return outputs
    sizes = Counter(groups)
    alone = next((row for row, group in enumerate(groups) if sizes[group] == 1), None)
    if alone is not None:
        raise DataError(
            f"{samples.spec}: row {alone} is alone in its group {groups[alone][:60]!r}",
            hint=(
                "A query needs rows to order: give each two or more, or leave the column group out."
            ),
        )
    return replace(outputs, groups=numbered(groups))
