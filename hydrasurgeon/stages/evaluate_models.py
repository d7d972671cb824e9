"""eval's models and predictions files, each measured: the rows of the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, without_words
from hydrasurgeon.data import Samples, fit_classes, read_data
from hydrasurgeon.data.samples import left_out_of
from hydrasurgeon.decision.fitting import FEWEST_OOD
from hydrasurgeon.decision.state import State
from hydrasurgeon.engines import engine_of
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.measuring.cascades import has_cascade, with_cascade
from hydrasurgeon.measuring.cost import (
    SideBySide,
    cost_of,
    first_inputs,
    together,
)
from hydrasurgeon.measuring.known import trained_on
from hydrasurgeon.measuring.measure import (
    Row,
    as_decided,
    measure,
    over_sets,
    row_of,
    scores_in,
    scores_of_model,
)
from hydrasurgeon.measuring.predictions import (
    Predictions,
    ensembled,
    predicted,
    read_predictions,
    said_of,
    write_predictions,
)
from hydrasurgeon.measuring.results import SetResult, summed_costs
from hydrasurgeon.measuring.sets import (
    DataSets,
    Further,
    LabelledSet,
    check_classes,
    check_same_classes,
    in_samples,
    open_sets,
    uses_of,
)
from hydrasurgeon.runtime.answering import Engine, read_alike
from hydrasurgeon.statistics.temperature import temperature_of
from hydrasurgeon.tasks import task_of

if TYPE_CHECKING:
    from hydrasurgeon.options.measuring import EvaluateOptions


@dataclass(frozen=True)
class TableEntry:
    """Checkpoints that answer as one row of the table."""

    name: str
    members: tuple[int, ...]
    """Their places among all checkpoints, each of which is opened once."""

    @property
    def is_ensemble(self) -> bool:
        return len(self.members) > 1

    def of(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Return its checkpoints."""
        return [checkpoints[at] for at in self.members]


ALIKE = "what no model can tell apart makes every OOD figure worse"
"""Why OOD data must not hold labelled samples."""


@dataclass(frozen=True)
class Measured:
    """The rows that models have in the report, with notes and data."""

    rows: tuple[Row, ...] = ()
    classes: Mapping[str, Any] = field(default_factory=dict)
    """Hashes of the class names that zero-shot models were given."""
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    samples: Any = None
    """The first labelled set."""
    uses: Mapping[str, Samples] = field(default_factory=dict)
    """All data, by what it was for."""

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the classes, in their order."""
        if self.samples is not None and self.samples.labels.dtype.kind == "f":
            return ("no", "yes")
        return () if self.samples is None else self.samples.classes or ()


def of_models(
    plain: Sequence[Checkpoint],
    entries: Sequence[TableEntry],
    labelled: Sequence[LabelledSet],
    arguments: EvaluateOptions,
    predictions: Path | None,
    files: Sequence[Row],
) -> Measured:
    """Measure every entry on all data sets."""
    first, *more_sets = labelled
    samples = read_data(first.spec, arguments)
    opened = first.named(plain, arguments.template, samples)
    check_same_classes(opened)
    for row in files[:1]:
        check_classes(
            opened[0].name, opened[0].manifest.model.num_classes, row.name, row.answers.classes
        )
    val = arguments.val if arguments.temperature == "fit" else None
    sets = open_sets(opened[0], samples, arguments.ood, arguments.shift, val, arguments)
    further: list[Further] = []
    for labelled_set in more_sets:
        samples = read_data(labelled_set.spec, arguments)
        named = labelled_set.named(plain, arguments.template, samples)
        check_same_classes(named)
        samples = fit_classes(samples, named[0].manifest.model)
        further.append((labelled_set.name, samples, named))
    skipped = left_out_of(*uses_of(sets, further).values())
    timed = SideBySide() if arguments.time else None
    answered: dict[int, Predictions] = {}
    """Outputs of entries that are also members of ensembles, by the entry's place."""
    of_entry: dict[int, list[Row]] = {}
    # Members come first, so that an ensemble can be made of what they said.
    for place in sorted(range(len(entries)), key=lambda at: entries[at].is_ensemble):
        entry = entries[place]
        further_sets = [(name, samples, entry.of(named)) for name, samples, named in further]
        parts = [answered[at] for at in entry.members if at in answered and entry.is_ensemble]
        member_outputs = parts if len(parts) == len(entry.members) else None
        job = entry.of(opened)
        more, outputs = _rows(
            entry.name,
            job,
            sets,
            further_sets,
            arguments,
            skipped,
            timed,
            predictions,
            member_outputs,
        )
        (at, *rest) = entry.members
        if not rest and any(at in other.members for other in entries if other.is_ensemble):
            answered[at] = outputs
        of_entry[place] = [
            over_sets(row, set_results, first=first.name) if set_results else row
            for row, set_results in more
        ]
    rows = [row for place in range(len(entries)) for row in of_entry[place]]
    notes = [*sets.notes, *(samples.note for _, samples, _ in further)]
    notes += [trained_on(sets.id, checkpoint.manifest.history) for checkpoint in opened]
    classes: dict[str, Any] = dict(record_of(opened[0].manifest.model))
    hashes = {name: record_of(further_sets[0].manifest.model) for name, _, further_sets in further}
    if any(hashes.values()):
        classes["sets"] = hashes
    if timed is not None:
        rows, note = _timed(rows, timed)
        notes.append(note)
    return Measured(
        tuple(rows),
        classes,
        tuple(dict.fromkeys(skipped)),
        (
            *dict.fromkeys(filter(None, notes)),
            *in_samples(sets.id, sets.ood.items(), harm=ALIKE),
        ),
        sets.id,
        uses_of(sets, further),
    )


def _timed(rows: Sequence[Row], timed: SideBySide) -> tuple[list[Row], str | None]:
    """Return the rows with the time of each model, and a note where there is none."""
    times = timed.times()
    costs = [
        row.result.cost
        and row.result.cost.model_copy(update={} if row.timing is None else times[row.timing])
        for row in rows
    ]
    note = "--time: these models do not fit into memory together; `bench` can measure them"
    done = [row.but(cost=cost) for row, cost in zip(rows, costs, strict=True)]
    return done, note if timed.too_large else None


def _loaded(checkpoint: Checkpoint, arguments: EvaluateOptions) -> Engine:
    if arguments.no_words or arguments.no_decision:
        checkpoint = without_words(checkpoint)
    device, dtype = arguments.device, arguments.dtype
    return engine_of(checkpoint, engine=arguments.engine, device=device, dtype=dtype)


def _rows(
    name: str,
    job: Sequence[Checkpoint],
    sets: DataSets,
    further: Sequence[Further],
    arguments: EvaluateOptions,
    skipped: list[str],
    timed: SideBySide | None,
    place: Path | None,
    parts: Sequence[Predictions] | None,
) -> tuple[list[tuple[Row, list[SetResult]]], Predictions]:
    """Measure checkpoints that answer as one; return their row, behind that of their cascade, with
    what they are worth on further data, and what they said.

    An ensemble is made of the `parts` that its members said, if there are some.
    """
    models: list[Engine] = []
    if not (parts and sets.val is None and timed is None and not further):
        models = [_loaded(checkpoint, arguments) for checkpoint in job]
    task = task_of(job[0].manifest.model)
    decides = len(job) == 1 and not arguments.no_decision
    temperature = arguments.temperature
    if sets.val is not None:  # the temperature is fitted
        outputs, _ = said_of(models, sets.val, arguments, skipped)
        temperature = temperature_of(*task.choices(outputs.logits, outputs.truth))
    state = State.unfitted(task, float(temperature or 1))
    model_state = (decides and models[0].state) or state
    kinds = scores_of_model(arguments.ood_score, model_state, name)
    if temperature is None:
        state = model_state
    if parts is not None:
        predictions = ensembled([(Path(part.name), part) for part in parts], name=name)
    else:
        predictions = predicted(
            sets,
            lambda samples, scored: said_of(
                models, samples, arguments, skipped, model_state.fitted if scored else None
            ),
            name=name,
            kind="ensemble" if len(job) > 1 else job[0].manifest.kind,
            # Of a text without the padding that others bring.
            cost=summed_costs(
                [cost_of([m], first_inputs(m, sets.id, arguments, 1)) for m in models]
            ),
            task=task,
            decision=model_state.record if model_state.is_fitted else None,
        )
    if place is not None:
        write_predictions(predictions, place, data=sets.id.fingerprint()["sha256"])
    row = row_of(predictions, state, kinds, ci=arguments.ci, seed=arguments.seed)
    if timed is not None:
        if len(models) > 1 and not read_alike(models):
            raise UsageError(
                f"--time: the models of {name} read inputs differently",
                hint="Time them one by one: give them as models of their own.",
            )
        inputs = first_inputs(models[0], sets.id, arguments)
        row = replace(row, timing=timed.add(together(models), inputs))
    results = []
    for called, samples, set_checkpoints in further:
        # Models have the classes of the first data set.
        if [c.manifest.model for c in set_checkpoints] != [c.manifest.model for c in job]:
            models = [_loaded(checkpoint, arguments) for checkpoint in set_checkpoints]
        outputs, scores = said_of(models, samples, arguments, skipped, model_state.fitted)
        inside = as_decided(outputs, scores, state)
        values = measure(inside, ci=arguments.ci, seed=arguments.seed)
        results.append(SetResult(name=called, **values))
    if not (arguments.cascade and len(job) == 1 and has_cascade(job[0])):
        return [(row, results)], predictions
    another, ci, seed = _loaded(job[0], arguments), arguments.ci, arguments.seed
    pair = with_cascade(row, another, sets, arguments, timed, kinds, ci=ci, seed=seed)
    return [(measured, []) for measured in pair], predictions


def of_files(arguments: EvaluateOptions) -> list[Row]:
    """Return the rows of predictions files, or the row of their ensemble if there are no
    checkpoints.
    """
    if not arguments.predictions_in:
        return []
    paths = [Path(path) for path in arguments.predictions_in]

    def row(predictions: Predictions, called: str) -> Row:
        if arguments.no_decision or arguments.ensemble:
            predictions = replace(predictions, decision=None)
        kinds = scores_in(arguments.ood_score, predictions, called)
        state = State.unfitted(predictions.task, float(arguments.temperature or 1))
        if predictions.decision is not None and arguments.temperature is None:
            state = State(predictions.decision, None, predictions.task)
        measured = row_of(predictions, state, kinds, ci=arguments.ci, seed=arguments.seed)
        return replace(measured, decided=predictions.decision is not None)

    if arguments.ensemble and not arguments.checkpoints:
        return [
            row(ensembled([(path, read_predictions(path)) for path in paths]), "their ensemble")
        ]
    rows: list[Row] = []
    for path in paths:
        rows.append(row(read_predictions(path), str(path)))
        check_classes(
            rows[0].name, rows[0].answers.classes, rows[-1].name, rows[-1].answers.classes
        )
    return rows


def by_file(
    rows: Sequence[Row], paths: Sequence[str | Path], names_in_use: Sequence[str]
) -> list[Row]:
    """Append the path to the names of predictions files that share a name with another row."""
    places = {(row.name, Path(path).absolute()) for row, path in zip(rows, paths, strict=True)}
    names = [*names_in_use, *(name for name, _ in places)]
    return [
        row.but(name=f"{row.name} ({path})") if names.count(row.name) > 1 else row
        for row, path in zip(rows, paths, strict=True)
    ]


def unlike_notes(rows: Sequence[Row], reference: Row, models: Mapping[str, str]) -> Iterator[str]:
    """Yield notes on how rows differ from the reference besides their answers. Models that differ
    alike share a note; `models` holds the names that a command would use.
    """
    of_models: dict[str, list[str]] = {}
    for row in rows:
        phrases = row.answers.unlike(reference.answers)
        if "calibration" in phrases:
            plain, decided = sorted(
                (row, reference), key=lambda candidate: candidate.answers.calibrated
            )
            phrases["calibration"] += _calibrating(models.get(plain.name), decided.answers.used)
        if phrases:
            of_models.setdefault("; ".join(phrases.values()), []).append(visible(row.name))
    for text, names in of_models.items():
        yield f"compare {', '.join(names)} with the reference, {visible(reference.name)}, with care: {text}"


def _calibrating(model: str | None, score: str) -> str:
    """Return advice that makes a comparison between calibrated and uncalibrated models fair."""
    if model is None:
        return ": calibrate both, and compare again"
    words = ["hydrasurgeon", "calibrate", model, "--data", "VAL"]
    words += [] if score in ("mi", "mcm") else ["--ood-score", score]
    command = visible(shlex.join([*words, "-o", "calibrated.safetensors"]))
    return f": run `{command}` and compare with that"


def few_ood(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a note on each OOD set that is too small for its AUROC to mean much."""
    sizes = {ood_set.name: ood_set.n for row in rows for ood_set in row.result.ood}
    for name, count in sizes.items():
        if count < FEWEST_OOD:
            yield f"OOD set {visible(name)}: an AUROC of {count} samples says little"
