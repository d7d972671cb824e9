"""eval's models and predictions files, each measured: a row of the report, and what it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.measuring.cascades.run import beside, in_order, rehearsed_beside
from hydrasurgeon.measuring.naming import name_of
from hydrasurgeon.measuring.overlap import in_predictions, in_samples
from hydrasurgeon.measuring.reading import Reading, fitted_among, ood_scores, reading_of, rehearsal, scores_in
from hydrasurgeon.measuring.report import Result
from hydrasurgeon.measuring.results import inside, over_sets, rehearsed, result
from hydrasurgeon.measuring.running import How, mixture_among, run_models, with_time
from hydrasurgeon.measuring.sets import (
    LabelledSet,
    check_classes,
    check_same_classes,
    class_hashes,
    open_further,
    open_sets,
    uses_of,
)
from hydrasurgeon.measuring.shifts import corrupted, kind_read, with_shifts
from hydrasurgeon.stages.provenance import provenance_of

if TYPE_CHECKING:
    from hydrasurgeon.data.corruptions import Corruption
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.files.decided import Decision
    from hydrasurgeon.files.mixture import Mixture
    from hydrasurgeon.measuring.answers import Answered
    from hydrasurgeon.measuring.predictions import Predictions
    from hydrasurgeon.options.measuring import EvaluateOptions

ALIKE = "what no model can tell apart makes every OOD figure worse"
"""Why OOD data must not hold labelled samples."""


@dataclass(frozen=True)
class Measured:
    """What came of running models on data."""

    results: tuple[Result, ...] = ()
    uses: Mapping[str, DataRecord] = field(default_factory=dict)
    """What each data set was for."""
    classes: Mapping[str, Any] = field(default_factory=dict)
    """Hashes of the class names that zero-shot models were given."""
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def of_models(
    plain: Sequence[Checkpoint],
    labelled: Sequence[LabelledSet],
    arguments: EvaluateOptions,
    temperature: float | None,
    predictions: Path | None,
    answered: list[Answered],
) -> Measured:
    """Every checkpoint, or all of them as one ensemble, on all data sets."""
    from hydrasurgeon.measuring.predictions import write_predictions
    from hydrasurgeon.measuring.timing import SideBySide

    first, *others = labelled
    opened = first.named(plain, arguments.template)
    check_same_classes(opened)
    limit, seed = arguments.limit, arguments.seed
    val = arguments.val if temperature is None else None
    sets = open_sets(opened[0], first.spec, arguments.ood, arguments.shift, val, limit, seed)
    spoiled = corrupted(sets, corruptions_in(opened, arguments), seed)
    # A file of logits holds them all.
    sets, one_by_one = (spoiled, ()) if predictions else (sets, spoiled.shift[len(sets.shift) :])
    further = [open_further(each, plain, arguments.template, limit, seed) for each in others]
    uses = uses_of(spoiled, further, fitted=temperature is None)
    how, timed = How(arguments, passes=arguments.mc_dropout), SideBySide()
    results: list[Result] = []
    mine: list[Answered] = []
    everyone = range(len(opened))
    for numbers in [tuple(everyone)] if arguments.ensemble else [(i,) for i in everyone]:
        job = [opened[i] for i in numbers]
        models = [how.load(checkpoint) for checkpoint in job]
        state = _state(models, arguments)
        kinds = ood_scores(arguments.ood_score, state, name_of(job))
        predicted, val_logits = run_models(job, models, sets, how, timed, fitted=fitted_among(state, kinds))
        predicted = replace(predicted, provenance=provenance_of(job))
        heat = None
        if arguments.temperature is not None:
            heat = partial(_fitted, temperature, val_logits, mixture_among(models))
        reading = reading_of(
            state, kinds, temperature=heat, ci=arguments.ci, seed=arguments.seed, mixture=mixture_among(models)
        )
        row = result(predicted, reading=reading, keep=mine)
        row = with_shifts(row, one_by_one, partial(how.logits, models), reading)
        if further:
            rest = [
                s.measure(numbers, job, models, how.logits, load=how.load, inside=partial(inside, reading=reading))
                for s in further
            ]
            row = over_sets(row, rest, first=first.name)
        results += (
            [row] if not arguments.cascade else beside(row, job[0], spoiled, how, timed, reading=reading, keep=mine)
        )
        if predictions is not None:
            write_predictions(predicted, predictions)
    rows = [with_time(r, ms) for r, ms in zip(results, timed.milliseconds(), strict=True)]
    # In the order of the report: checkpoints stand before files.
    answered[:0] = in_order(mine)
    return Measured(
        tuple(in_order(rows)),
        uses,
        record_of(opened[0].manifest.model) | class_hashes(further),
        tuple(dict.fromkeys(how.skipped)),
        (
            *dict.fromkeys([*sets.notes, *(note for each in further if (note := each.samples.note) is not None)]),
            *in_samples(sets.id, [(name, each) for name, _, each in sets.ood], harm=ALIKE),
        ),
    )


def expected(
    jobs: Sequence[Sequence[Checkpoint]],
    labelled: Sequence[LabelledSet],
    made: Sequence[str],
    arguments: EvaluateOptions,
) -> list[Result]:
    """Results with the keys that these jobs will give."""
    expected = [
        rehearsed(
            name_of(job, passes=arguments.mc_dropout),
            labelled,
            arguments.ood,
            [*arguments.shift, *made],
            rehearsal(
                decision_of(job, arguments),
                arguments.ood_score,
                tempered=arguments.temperature is not None,
                ci=arguments.ci,
            ),
        )
        for job in jobs
    ]
    if not arguments.cascade:
        return expected
    return [row for each in expected for row in rehearsed_beside(each)]


def of_files(
    arguments: EvaluateOptions, temperature: float | None, answered: list[Answered], *, together: bool
) -> tuple[list[Result], list[str]]:
    """The results that predictions files amount to, each or all of them as one ensemble, and what is odd about them."""
    if not arguments.predictions_in:
        return [], []
    heat = _fitted(temperature, None, None)
    results: list[Result] = []
    notes: list[str] = []
    for name, predictions in _stored(arguments.predictions_in, together=together):
        if answered:
            check_classes(answered[0].name, answered[0].classes, predictions.name, predictions.logits.shape[-1])
        notes += [*predictions.notes, *in_predictions(predictions)]
        kinds = scores_in(arguments.ood_score, predictions, name)
        reading = Reading(heat, ood_scores=kinds, ci=arguments.ci, seed=arguments.seed, mixture=predictions.mixture)
        results.append(result(predictions, reading=reading, keep=answered))
    return results, notes


def _stored(paths: Sequence[str | Path], *, together: bool) -> Iterator[tuple[str, Predictions]]:
    """What models have said, one file in memory at a time unless they are one ensemble's."""
    from hydrasurgeon.measuring.ensembled import ensembled
    from hydrasurgeon.measuring.predictions import read_predictions

    if together:
        yield "their ensemble", ensembled([(Path(path), read_predictions(Path(path))) for path in paths])
        return
    for path in paths:
        yield str(path), read_predictions(Path(path))


def corruptions_in(opened: Sequence[Checkpoint], arguments: EvaluateOptions) -> tuple[Corruption, ...]:
    """What becomes of the samples that these models read."""
    if not arguments.corrupt:
        return ()
    from hydrasurgeon.data.corruptions import corruptions_of

    return corruptions_of(arguments.corrupt, kind_read(opened[0].manifest))


def _state(models: Sequence[Any], arguments: EvaluateOptions) -> State | None:
    """The decision state that is in use: of one checkpoint run alone, unless it is to be left alone."""
    if len(models) != 1 or arguments.no_decision or arguments.mc_dropout is not None:
        return None
    state: State | None = models[0].state
    return state


def decision_of(job: Sequence[Checkpoint], arguments: EvaluateOptions) -> Decision | None:
    """The record of that state."""
    if len(job) != 1 or arguments.no_decision or arguments.mc_dropout is not None:
        return None
    return job[0].manifest.decision


def _fitted(fixed: float | None, val: Any, mixture: Mixture | None) -> float:
    """The given temperature, or the one that suits logits and labels of the validation set."""
    from hydrasurgeon.measuring import metrics

    if fixed is not None:
        return fixed
    if val is None:
        raise UsageError(
            "--temperature fit: a predictions file has no validation set", hint="Give the temperature as a number."
        )
    return metrics.fit_temperature(metrics.mean_probs(val[0], mixture=mixture), val[1])
