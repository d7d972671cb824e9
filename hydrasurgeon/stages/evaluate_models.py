"""eval's models and predictions files, each measured: the rows of the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.data import fit_classes, open_data
from hydrasurgeon.decision.fitting import FEWEST_OOD
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.measuring.answers import Reading, answers
from hydrasurgeon.measuring.cascades import with_cascade
from hydrasurgeon.measuring.cost import SideBySide, cost_of, together
from hydrasurgeon.measuring.known import trained_on
from hydrasurgeon.measuring.predictions import (
    Predictions,
    ensembled,
    read_predictions,
    write_predictions,
)
from hydrasurgeon.measuring.results import SetResult, unlike
from hydrasurgeon.measuring.rows import (
    Row,
    ood_scores,
    over_sets,
    reading_of,
    row_of,
    scores_in,
    summary,
)
from hydrasurgeon.measuring.running import How, groups_in, name_of, predicted
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
from hydrasurgeon.problems import problem_of
from hydrasurgeon.statistics.scores.fitted import EnsembleScore
from hydrasurgeon.statistics.temperature import temperature_of

if TYPE_CHECKING:
    from hydrasurgeon.options.measuring import EvaluateOptions


ALIKE = "what no model can tell apart makes every OOD figure worse"
"""Why OOD data must not hold labelled samples."""


@dataclass(frozen=True)
class Measured:
    """What came of running models on data."""

    rows: tuple[Row, ...] = ()
    uses: Mapping[str, DataRecord] = field(default_factory=dict)
    classes: Mapping[str, Any] = field(default_factory=dict)
    """Hashes of the class names that zero-shot models were given."""
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    samples: Any = None
    """The first labelled set."""

    @property
    def class_names(self) -> Sequence[str]:
        """What its classes are called, by number."""
        if self.samples is not None and self.samples.labels.dtype.kind == "f":
            return ("no", "yes")
        return () if self.samples is None else self.samples.classes or ()


@dataclass(frozen=True)
class _Table:
    """The models of one table, the data that they answer for, and how they run."""

    arguments: EvaluateOptions
    opened: Sequence[Checkpoint]
    name: str
    """The first data set's."""
    sets: DataSets
    others: Sequence[Further]
    predictions: Path | None
    how: How
    timed: SideBySide

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """Those of these checkpoints run as one: two for a cascade."""
        job = [self.opened[i] for i in numbers]
        models = [self.how.load(checkpoint) for checkpoint in job]
        reading, fitted = self._reading(job, models)
        row = row_of(self._predict(job, models, fitted), reading)
        one = together(list(models))
        row = replace(row, timing=self.timed.add(one, self.how.first(models[0], self.sets.id)))
        if self.others:
            others = [self._on(each, numbers, models, reading) for each in self.others]
            row = over_sets(row, others, first=self.name)
        if not self.arguments.cascade:
            return [row]
        return with_cascade(row, job[0], self.sets, self.how, self.timed, reading=reading)

    def _reading(
        self, job: Sequence[Checkpoint], models: Sequence[Any]
    ) -> tuple[Reading, EnsembleScore | None]:
        """How the models' logits are read, and the OOD score of features that is asked for."""
        arguments, problem = self.arguments, problem_of(self.opened[0].manifest.model)
        state = None if decision_ignored(job, arguments) else models[0].state
        kinds = ood_scores(arguments.ood_score, state, name_of(job), problem)
        temperature = arguments.temperature
        if temperature == "fit":
            logits, labels = self.how.logits(models, self.sets.val)
            temperature = temperature_of(*problem.choices(logits, labels))
        reading = reading_of(
            state,
            kinds,
            temperature=temperature,
            ci=arguments.ci,
            seed=arguments.seed,
            problem=problem,
        )
        if state is None or state.record.ood.score not in kinds:
            return reading, None
        return reading, state.fitted

    def _predict(
        self, job: Sequence[Checkpoint], models: Sequence[Any], fitted: EnsembleScore | None
    ) -> Predictions:
        """What the models say of all sets, written where that is asked for."""

        def answer(samples: Any, scored: bool) -> tuple[Any, Any, dict[str, Any]]:
            if scored and fitted is not None:
                return self.how.scored(models[0], samples, fitted)
            return (*self.how.logits(models, samples), {})

        predictions = predicted(
            self.sets,
            answer,
            name=name_of(job),
            kind="ensemble" if len(job) > 1 else job[0].manifest.kind,
            # Of a text without the padding that others bring.
            cost=cost_of(models, self.how.first(models[0], self.sets.id, 1)),
            problem=problem_of(self.opened[0].manifest.model),
        )
        if self.predictions is not None:
            write_predictions(
                predictions, self.predictions, data=self.sets.id.fingerprint()["sha256"]
            )
        return predictions

    def _on(
        self, data: Further, numbers: Sequence[int], models: Sequence[Any], reading: Reading
    ) -> SetResult:
        """The quality of these checkpoints on another data set; `models` have the classes of the
        first.
        """
        name, samples, checkpoints = data
        ours = [checkpoints[i] for i in numbers]
        if [c.manifest.model for c in ours] != [self.opened[i].manifest.model for i in numbers]:
            models = [self.how.load(checkpoint) for checkpoint in ours]
        logits, labels = self.how.logits(models, samples)
        inside = answers(logits, labels, reading, groups_in(samples, len(logits)))
        return SetResult(name=name, **summary(inside, reading).model_dump())


def of_models(
    plain: Sequence[Checkpoint],
    labelled: Sequence[LabelledSet],
    arguments: EvaluateOptions,
    predictions: Path | None,
    files: Sequence[Row],
) -> Measured:
    """Every checkpoint, or all of them as one ensemble, on all data sets."""
    first, *others = labelled
    limit, seed = arguments.limit, arguments.seed
    samples = open_data(first.spec, limit=limit, seed=seed)
    opened = first.named(plain, arguments.template, samples)
    check_same_classes(opened)
    for row in files[:1]:
        check_classes(
            opened[0].name, opened[0].manifest.model.num_classes, row.name, row.answers.classes
        )
    val = arguments.val if arguments.temperature == "fit" else None
    sets = open_sets(opened[0], samples, arguments.ood, arguments.shift, val, limit, seed)
    further: list[Further] = []
    for each in others:
        samples = open_data(each.spec, limit=limit, seed=seed)
        named = each.named(plain, arguments.template, samples)
        check_same_classes(named)
        samples = fit_classes(samples, named[0].manifest.model)
        further.append((each.name, samples, named))
    no_words = arguments.no_words or arguments.no_decision
    how, timed = How(arguments, engine=arguments.engine, no_words=no_words), SideBySide()
    table = _Table(
        arguments,
        opened,
        first.name,
        sets,
        further,
        predictions,
        how,
        timed,
    )
    jobs = [[i] for i in range(len(opened))]
    if arguments.ensemble:
        jobs = [[*range(len(opened))]]
    rows = [row for numbers in jobs for row in table.rows(numbers)]
    orders = [*sets.notes, *(samples.note for _, samples, _ in further if samples.note is not None)]
    ood = [(name, samples) for name, _, samples in sets.ood]
    seen = [trained_on(sets.id, each.manifest.history) for each in opened]
    classes: dict[str, Any] = dict(record_of(opened[0].manifest.model))
    hashes = {name: record_of(ours[0].manifest.model) for name, _, ours in further}
    if any(hashes.values()):
        classes["sets"] = hashes
    return Measured(
        _with_times(rows, timed.milliseconds()),
        uses_of(sets, further),
        classes,
        tuple(dict.fromkeys(how.skipped)),
        (
            *dict.fromkeys(orders),
            *dict.fromkeys(filter(None, seen)),
            *in_samples(sets.id, ood, harm=ALIKE),
        ),
        sets.id,
    )


def _with_times(rows: Sequence[Row], milliseconds: Sequence[float | None]) -> tuple[Row, ...]:
    timed = []
    for row in rows:
        cost = row.result.cost
        if cost is not None:
            cost = cost.model_copy(update={"latency_ms": milliseconds[row.timing or 0]})
        timed.append(row.but(cost=cost))
    return tuple(timed)


def decision_ignored(job: Sequence[Checkpoint], arguments: EvaluateOptions) -> bool:
    """Whether a decision state is left alone: it was fitted to the answers of one model."""
    return len(job) != 1 or arguments.no_decision


def of_files(arguments: EvaluateOptions) -> list[Row]:
    """The rows of predictions files, each by itself; without checkpoints perhaps all as one
    ensemble.
    """
    if not arguments.predictions_in:
        return []
    paths = [Path(path) for path in arguments.predictions_in]

    def row(predictions: Predictions, called: str) -> Row:
        kinds = scores_in(arguments.ood_score, predictions, called)
        ci, seed, problem = arguments.ci, arguments.seed, predictions.problem
        return row_of(
            predictions,
            Reading(
                float(arguments.temperature or 1),
                ood_scores=kinds,
                ci=ci,
                seed=seed,
                problem=problem,
            ),
        )

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


def by_file(rows: Sequence[Row], paths: Sequence[str | Path], taken: Sequence[str]) -> list[Row]:
    """Different predictions files that call themselves the same, or as a model is called, have
    their path behind it.
    """
    places = {(row.name, Path(path).absolute()) for row, path in zip(rows, paths, strict=True)}
    names = [*taken, *(name for name, _ in places)]
    return [
        row.but(name=f"{row.name} ({path})") if names.count(row.name) > 1 else row
        for row, path in zip(rows, paths, strict=True)
    ]


def uncalibrated(opened: Sequence[Checkpoint], arguments: EvaluateOptions) -> str | None:
    """What to run where the reference of a report has no decision state, and another model has."""
    if arguments.ensemble or arguments.no_decision:
        return None
    if arguments.temperature is not None or not (arguments.html or arguments.markdown):
        return None
    names = {name_of([each]): each for each in opened}
    reference = names.get(arguments.reference or next(iter(names), ""))
    if reference is None or reference.manifest.decision is not None:
        return None
    other = next((each for each in opened if each.manifest.decision is not None), None)
    if other is None:
        return None
    words = ["calibrate", reference.hub_id or reference.path.name, "--data", "VAL"]
    assert other.manifest.decision is not None
    kind = other.manifest.decision.ood.score
    words += [] if kind in ("mi", "mcm") else ["--ood-score", kind]
    command = shlex.join(["hydrasurgeon", *words])
    return (
        f"{visible(name_of([other]))} has a decision state, {visible(name_of([reference]))}, the "
        f"reference, has none: run `{visible(command)} -o calibrated.safetensors` and compare with "
        "that"
    )


def unlike_notes(rows: Sequence[Row]) -> Iterator[str]:
    """In what the rows differ from the first besides their answers; models that differ alike share
    a note.
    """
    if not rows:
        return
    first, *others = rows
    of_models: dict[str, list[str]] = {}
    for row in others:
        phrases = unlike(row.answers.conditions, first.answers.conditions)
        if phrases:
            of_models.setdefault("; ".join(phrases.values()), []).append(visible(row.name))
    for text, names in of_models.items():
        yield f"{', '.join(names)} against {visible(first.name)}, the reference: {text}"


def few_ood(rows: Sequence[Row]) -> Iterator[str]:
    """A note on each OOD set whose AUROC says little."""
    sizes = {each.name: each.n for row in rows for each in row.result.ood}
    for name, count in sizes.items():
        if count < FEWEST_OOD:
            yield f"OOD set {visible(name)}: an AUROC of {count} samples says little"
