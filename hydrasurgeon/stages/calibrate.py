"""calibrate: fit the decision state on validation data, and write a copy of the checkpoint that
carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint, rewritten, undecided
from hydrasurgeon.checkpoints.class_names import (
    classifying,
    need_classes,
    with_data_names,
    with_inputs,
)
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.engines import INEXACT, check_engine, chosen, engine_of
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.atomic import named, output_file
from hydrasurgeon.files.decided import FITTED, ZERO_SHOT, DecisionRecord
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import DataRecord, Manifest, Model, Step
from hydrasurgeon.measuring import known
from hydrasurgeon.measuring.sets import kind_read, overlap_notes
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.column_roles import split_options
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.stages.calibrate_words import (
    as_before,
    base_of,
    budget_of,
    most_on,
    reading_alone,
    reading_of,
    with_words_first,
)

if TYPE_CHECKING:
    from numpy import ndarray

    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.runtime.answering import Engine
    from hydrasurgeon.runtime.classifier import Classifier
    from hydrasurgeon.statistics.scores.evidence import Evidence
    from hydrasurgeon.tasks.base import Outputs, Task


ANSWERED = (0.5, 0.7, 0.8, 0.9, 1.0)
"""Answered shares at which the wrong answers are counted."""
LEARNT = ("--fit-data", "--unlabelled")
"""Options whose rows anything is fitted on."""


@dataclass(frozen=True)
class Calibrated:
    """A fitted decision state, and the file it was written to."""

    path: Path
    decision: DecisionRecord = field(repr=False)
    manifest: Manifest | None = field(repr=False)
    """None of a decision in a file of its own."""
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    wrong_at: tuple[tuple[float, float], ...] = ()
    """Shares `ANSWERED` of the familiar certifying rows, the most confident first, each with the
    fraction of them that is wrong. Empty for tasks other than one class for each row.
    """


@stage(CalibrateOptions)
def calibrate(arguments: CalibrateOptions) -> Calibrated:
    """Write a copy of a checkpoint that knows its temperature, its OOD score, its prediction sets
    and when to abstain; or, of predictions, a file that knows no more.

    Examples:
        >>> options = {"data": "demo:val", "ood_score": "msp", "limit": 300}
        >>> done = hs.calibrate("backbone", out="sure.safetensors", **options)
        >>> round(done.decision.temperature, 1)
        1.0
    """
    if arguments.predictions is not None:
        return _alone(arguments, Path(arguments.predictions))
    from hydrasurgeon.data import read_data
    from hydrasurgeon.data.matching import check_class_names
    from hydrasurgeon.data.samples import left_out_of
    from hydrasurgeon.decision.fitting import check_count
    from hydrasurgeon.decision.state import state_in
    from hydrasurgeon.files.tensors import planned
    from hydrasurgeon.tasks import task_of

    checkpoint, data = arguments.needed()
    opened = open_checkpoint(checkpoint, arch=arguments.arch)
    val = read_data(data, arguments)
    source = classifying(opened, arguments, val)
    need_classes(source.manifest, source.path)
    arguments = _checked(arguments, source)
    target = claim_checkpoint(arguments.out, force=arguments.force, inputs=arguments.sources)
    source.check_weights()
    opened = replace(undecided(source), note=source.note)  # another state takes its place
    base = base_of(arguments, source, opened)
    digests = base.digests()
    rows = _rows(val, base, source.name, opened.manifest.model, arguments)
    opened = with_inputs(with_data_names(opened, rows.val), rows.val)
    check_class_names(source.path, opened.manifest.model.labels)
    few = None
    if not arguments.cross:
        few = check_count(
            len({*known.inputs_of(rows.val).tolist()}) + sum(map(len, rows.certify)),
            arguments,
            task_of(opened.manifest.model),
            fitting=len(rows.val) if rows.certify else None,
        )
    skipped = left_out_of(*(samples for _, samples in rows.by_option))
    fitted = _fit(opened, state_in(base), rows, arguments, skipped)
    state, arguments = fitted.state, fitted.arguments
    entry = step(
        "calibrate",
        args=arguments.recorded(),
        inputs=[base.record(digests)],
        data=[
            known.record(samples) if option in LEARNT else DataRecord(**samples.fingerprint())
            for option, samples in rows.by_option
        ],
        seed=arguments.seed,
        uses=("torch", opened.manifest.model.family),
    )
    tensors = [*opened.tensors.planned(), *planned(state.tensors())]

    def manifest(sha256: str) -> Manifest:
        history = (*base.manifest.history, entry.wrote(sha256))
        return rewritten(
            opened.manifest,
            decision=state.record.model_dump(),
            weights_sha256=sha256,
            history=history,
        )

    written = save(
        target, sorted(tensors, key=lambda tensor: tensor.name), manifest, files=opened.files
    )
    notes = (rows.doubts, [opened.note, _unused(arguments, state)], rows.notes, [few], fitted.notes)
    every_note = tuple(filter(None, chain(*notes)))
    return Calibrated(target, state.record, written, every_note, tuple(skipped), fitted.wrong_at)


@dataclass(frozen=True)
class _Rows:
    """The data of a calibration."""

    val: Samples
    """--data."""
    certify: Sequence[Samples]
    """--certify, if it is given."""
    train: Samples | None
    """--fit-data."""
    ood: Sequence[Samples]
    unlabelled: Samples | None
    doubts: Sequence[str]
    """Notes on labels that look wrong."""
    notes: Sequence[str]
    """Notes on rows that several sets hold, or that the model knows."""

    @property
    def by_option(self) -> list[tuple[str, Samples]]:
        """Every set behind its option."""
        sets = {
            "--data": [self.val],
            "--certify": self.certify,
            "--fit-data": [self.train],
            "--ood": self.ood,
            "--unlabelled": [self.unlabelled],
        }
        return [
            (option, samples)
            for option, several in sets.items()
            for samples in several
            if samples is not None
        ]


def _rows(
    val: Samples, base: Checkpoint, name: str, model: Model, arguments: CalibrateOptions
) -> _Rows:
    """Read the data, and leave out rows of VAL that anything was fitted on."""
    from hydrasurgeon.data import read_data
    from hydrasurgeon.data.label_check import class_counts, label_notes

    val, certify, fit = _labelled(val, model, arguments)
    doubts = [note for samples in fit for note in label_notes(samples)]
    for line in (class_counts(val), *(f"note: {note}" for note in doubts)):
        if line is not None:
            arguments.note(line)
    history, learnt = base.manifest.history, ("--fit-data", fit[0]) if fit else None
    notes = list[str]()
    if arguments.cross:
        check_probe(history, val, name)
    else:
        val, notes = known.certifying(val, history, fitted=learnt, only_fits=bool(certify))
    for number, samples in enumerate(certify):
        certify[number], more = known.certifying(samples, history, "--certify", fitted=learnt)
        notes += more
    ood = [read_data(spec, arguments, labelled=False) for spec in arguments.ood]
    rows = _Rows(val, certify, fit[0] if fit else None, ood, None, doubts, ())
    notes += overlap_notes(
        rows.by_option, "Validation rows must be neither training rows nor OOD data."
    )
    unlabelled = None
    if arguments.unlabelled is not None:
        texts = read_data(arguments.unlabelled, arguments, labelled=False)
        unlabelled, more = known.without(texts, "--unlabelled", val, "--data")
        notes += more
    return replace(rows, unlabelled=unlabelled, notes=notes)


def check_probe(history: Sequence[Step], data: Samples, name: str) -> None:
    """Refuse to cross-fit anything but a linear classifier whose last step was a fit to these rows.

    Raises:
        DataError: What lies below the classifier was trained on such rows too.
    """
    *earlier, last = history or (None,)
    data_hash = data.fingerprint()["sha256"]
    is_probe = (
        last is not None and last.command == "finetune" and last.args.get("recipe") == "probe"
    )
    if last is None or not is_probe or [step.sha256 for step in last.data[:1]] != [data_hash]:
        raise UsageError(
            f"--cross: {name} is not what `finetune --recipe probe` made of --data {data.spec}",
            hint=f"Its training rows tell nothing. Give other rows, without --cross; or split the table: {split_options(data.spec, ('finetune --data', 'and calibrate --data'))}",
        )
    known.certifying(data, [step for step in earlier if step is not None])


def _labelled(
    val: Samples, model: Model, arguments: CalibrateOptions
) -> tuple[Samples, list[Samples], list[Samples]]:
    """Return VAL, --certify and --fit-data with the model's classes; all that is wrong with them is
    one error.
    """
    from hydrasurgeon.data import fit_classes, read_data
    from hydrasurgeon.data.label_check import collecting, raise_all, text_errors

    errors, sets = list[DataError](), [val]
    labelled: list[Samples] = []
    specs = filter(None, (arguments.certify, arguments.fit_data))
    sets += [read_data(spec, arguments) for spec in specs]
    for samples in sets:
        errors += text_errors(samples, skip_bad=arguments.skip_bad)
        with collecting(errors):
            labelled.append(fit_classes(samples, model))
    raise_all(errors)
    behind = 1 + (arguments.certify is not None)
    return labelled[0], labelled[1:behind], labelled[behind:]


def _checked(arguments: CalibrateOptions, source: Checkpoint) -> CalibrateOptions:
    """Return the options with the engine that `auto` stands for; raise if the model cannot keep
    their promises.
    """
    from hydrasurgeon.tasks import task_of

    _check_promise(
        arguments,
        task_of(source.manifest.model),
        source.name,
        several=bool(source.manifest.members),
        named=source.family.named_classes,
    )
    engine = chosen(source, arguments.engine, device=arguments.device, dtype=arguments.dtype)
    if engine != "torch":
        arguments = arguments.but(engine=engine)
    check_engine(arguments, arguments.dtype)
    arguments = as_before(arguments, source.manifest.decision)
    if arguments.budget is not None:
        budget_of(arguments.budget)
        if arguments.words != "cascade":
            raise UsageError("--budget requires --words cascade", hint="Or leave it out.")
    if arguments.words not in ("auto", "off") and kind_read(source.manifest) != "text":
        message = f"--words {arguments.words} is for text models, and {source.name} reads images"
        raise UsageError(message, hint="Leave it out.")
    return arguments


def _unused(arguments: CalibrateOptions, state: State) -> str | None:
    """Return a note if --fit-data has no effect."""
    on_logits = arguments.ood_score not in ("auto", *FITTED)
    if arguments.fit_data is None or not on_logits or state.words is not None:
        return None
    return f"--fit-data has no effect: --ood-score {arguments.ood_score} uses only the logits"


def _alone(arguments: CalibrateOptions, path: Path) -> Calibrated:
    """Fit a decision to a predictions file, and write it into a file of its own."""
    from hydrasurgeon.decision.fitting import check_count, fit_alone, too_few_ood
    from hydrasurgeon.decision.split import copies
    from hydrasurgeon.decision.standalone import Decision
    from hydrasurgeon.measuring.predictions import read_outputs

    out, folder = named(arguments.out)
    if folder:
        raise UsageError(
            f"-o {arguments.out}: a decision is a file, not a folder", hint="Give NAME.safetensors."
        )
    target = output_file(out, option="-o", force=arguments.force, inputs=arguments.sources)
    first = read_outputs(path, labelled=True)
    task, val = first.task, first.task.outputs(first.outputs)
    members, classes = val.logits.shape[1], val.logits.shape[-1]
    _check_promise(arguments, task, path.name, several=members > 1, named=False)
    fit = [] if arguments.fit_predictions is None else [arguments.fit_predictions]
    more_files = [
        (name, read_outputs(Path(name), labelled=name in fit, like=first.outputs))
        for name in (*fit, *arguments.ood_predictions)
    ]
    sources, names = [first.source], first.names
    for name, predictions in more_files:
        source, names = predictions.source, names or predictions.names
        if predictions.names not in (None, names):
            raise DataError(f"{name}: has other class names than {path}")
        if source.sha256 in [record.sha256 for record in sources]:
            hint = "Validation rows must be neither training rows nor OOD data."
            raise DataError(f"{name}: holds the same predictions as another file", hint=hint)
        sources.append(source)
    train, ids, shared = more_files[0][1] if fit else None, first.read, None
    if train is not None:
        kept, shared = known.unfitted(first, train, path.name, Path(fit[0]).name)
        val, ids = val.at(kept), ids and ids.at(kept)
    val = replace(val, inputs=known.inputs_by_features(val))
    few = check_count(len(val.logits) - copies(val), arguments, task)
    fit_outputs = None if train is None else task.outputs(train.outputs)
    ood, few_ood = [], []
    for name, predictions in more_files[len(fit) :]:
        outputs = task.outputs(predictions.outputs)
        note = too_few_ood(Path(name).name, len(outputs.logits))
        if note is None:
            ood.append(outputs)
        else:
            few_ood.append(note)
    plain_val = val
    reading, words_note = reading_alone(task, train, ids, plain_val, arguments)
    if reading is not None and ids is not None:
        val = reading.blend(plain_val, ids.ids)
    state, notes = fit_alone(val, plain_val, fit_outputs, ood, arguments, task)
    wrong_at = _wrong_at(state, val, plain_val, arguments)
    if reading is not None:
        state = reading.joined(state, val, plain_val)
    entry = step(
        "calibrate", args=arguments.recorded(), inputs=sources, seed=arguments.seed, uses=("torch",)
    )
    Decision(state, classes, members, names=names).save(target, entry)
    every_note = (shared, few, words_note, *few_ood, *notes)
    printed_notes = tuple(filter(None, every_note))
    return Calibrated(target, state.record, None, printed_notes, wrong_at=wrong_at)


def _wrong_at(
    state: State, val: Outputs, model: Outputs, arguments: CalibrateOptions
) -> tuple[tuple[float, float], ...]:
    """Return each fraction `ANSWERED` of the familiar certifying rows with the fraction that is wrong.

    The state's OOD score is of the `model` outputs, where `val` are the answers of others.
    """
    from hydrasurgeon.decision.split import split
    from hydrasurgeon.tasks import SINGLE
    from hydrasurgeon.tasks.base import Part

    if state.task.name != SINGLE.name or arguments.cross:
        return ()
    rows = split(val, arguments.seed).certifying
    ood, part = state.record.ood, val.at(rows)
    familiar = model.at(rows).scores(ood.score, state.fitted) <= ood.threshold
    answers = state.task.answers(part.logits, state.constants)
    graded = state.task.graded(Part(part, answers, familiar))
    return tuple(zip(ANSWERED, graded.wrong_at(ANSWERED), strict=True))


def _check_promise(
    arguments: CalibrateOptions, task: Task, name: str, *, several: bool, named: bool
) -> None:
    """Raise UsageError for a promise, score or cascade that the model does not support."""
    from hydrasurgeon.statistics.scores.fitted import check_score

    score = arguments.ood_score
    why = dict(task.lacks)
    if score != "auto":
        check_score(score)
        among = (*task.scores, *task.features)
        if score not in among:
            why[f"--ood-score {score}"] = f"OOD scores: {', '.join(among)}."
    flags = {
        "--promise": arguments.promise is not None,
        "--risk": arguments.risk is not None,
        "--cascade": arguments.cascade,
        f"--ood-score {score}": True,
    }
    for flag in (flag for flag, is_given in flags.items() if is_given and flag in why):
        message = f"{flag} is not supported for {task.name} models ({name})"
        raise UsageError(message, hint=why[flag])
    if score != "auto":
        option = (
            "--ood" if arguments.ood else "--ood-predictions" if arguments.ood_predictions else None
        )
        if option is not None:
            raise UsageError(
                f"{option} conflicts with --ood-score {score}, as it only serves to choose an OOD score",
                hint="Leave one of them out.",
            )
    alone = "--ood-score mi" if score == "mi" else "--cascade" if arguments.cascade else None
    if alone is not None and not several:
        raise UsageError(
            f"{alone} requires several members, but {name} has one", hint="Give a hydra."
        )
    if score == "mcm" and not named:
        raise UsageError(
            (
                f"--ood-score mcm is for models that compare images with class names, and {name} "
                "does not"
            ),
            hint="Give another score.",
        )


def _computing(
    opened: Checkpoint, model: Engine, arguments: CalibrateOptions
) -> tuple[Engine, dict[str, Any]]:
    """Return the engine that computes the answers, and the fields that record it."""
    engine, how = model, dict[str, Any]()
    if arguments.engine not in ("auto", "torch"):
        engine = engine_of(opened, engine=arguments.engine)
    if arguments.engine in INEXACT:
        how["engine"] = arguments.engine
    return engine, how


@dataclass(frozen=True)
class _Fitted:
    """A fitted state."""

    state: State
    wrong_at: tuple[tuple[float, float], ...]
    """The fractions of wrong answers at `ANSWERED`."""
    notes: Sequence[str]
    arguments: CalibrateOptions
    """Options that reproduce the state."""


@dataclass(frozen=True)
class _OodSets:
    """OOD data sets, with the model's outputs for their samples."""

    samples: Sequence[Samples]
    outputs: Sequence[Outputs]
    named: int
    """The number of sets that `--ood` names; those after them are made from VAL."""
    notes: Sequence[str]


def _fit(
    opened: Checkpoint,
    stored: State | None,
    rows: _Rows,
    arguments: CalibrateOptions,
    skipped: list[str],
) -> _Fitted:
    """Fit the state; the bag-of-words model of the `stored` one gets new weights."""
    from hydrasurgeon.decision.fitting import fit_state
    from hydrasurgeon.decision.ood_score import Grounds
    from hydrasurgeon.runtime.answering import collected
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.runtime.features import classifiers
    from hydrasurgeon.tasks import task_of

    model = as_classifier(opened, device=arguments.device, dtype=arguments.dtype, lean=True)
    engine, how = _computing(opened, model, arguments)
    task, scores = task_of(opened.manifest.model), arguments.ood_score
    features = (scores == "auto" and bool(task.features)) or scores in FITTED
    features = features or arguments.cross

    def answer(samples: Samples, **more: Any) -> Outputs:
        return collected([engine], samples, arguments, features=features, skipped=skipped, **more)

    learnt, validation, raw = _validated(rows, model, answer, arguments)
    pseudo_labelled = []
    if rows.unlabelled is not None and arguments.words != "off":
        pseudo_labelled = [(rows.unlabelled, answer(rows.unlabelled))]
    lessons = learnt, validation, raw, pseudo_labelled
    reading, words_note = reading_of(engine, task, stored, *lessons, arguments)
    model_val = task.outputs(raw)
    val = model_val if reading is None else task.outputs(reading.blend(raw, validation))
    ood = _ood_sets(rows, validation, answer, arguments)
    ood_outputs = [task.outputs(outputs) for outputs in ood.outputs]
    linear = [task.classifier(*layer) for layer in classifiers(model)] if features else []
    evidence, left_out = None, None
    if features and rows.train is not None:
        evidence, left_out = _gathered(engine, linear, rows.train, arguments, skipped)
    grounds = Grounds(
        linear,
        evidence,
        ood_outputs[: ood.named],
        ood_outputs[ood.named :],
        () if opened.family.named_classes else ZERO_SHOT,
    )
    state, notes = fit_state(val, arguments, grounds, model=model_val, task=task)
    wrong_at = _wrong_at(state, val, model_val, arguments)
    if reading is not None:
        state = reading.joined(state, val, raw)
    if reading is not None and arguments.words == "cascade":
        most = most_on(opened, reading, validation, arguments)
        if most is not None:  # what was timed is not timed anew when it is made again
            arguments = arguments.but(budget=f"on={most:.6f}")
        first = reading.first(validation, raw, task)
        ahead = [
            (reading.first(samples, outputs, task), reading.blended(state, samples, outputs))
            for samples, outputs in zip(ood.samples, ood.outputs, strict=True)
        ]
        val = reading.scored(state, val, raw)
        state, more = with_words_first(state, first, val, ahead, ood.named, arguments, most)
        notes = (*notes, *more)
    elif arguments.cascade:
        state, more = _with_cascade(state, val, model, validation, arguments)
        notes = (*notes, *more)
    state = replace(state, record=state.record.model_copy(update=how))
    every_note = (*ood.notes, left_out, words_note, *notes, *engine.notes)
    wrong_at = wrong_at if state.record.cascade is None else ()
    return _Fitted(state, wrong_at, [*filter(None, every_note)], arguments)


def _validated(
    rows: _Rows, model: Classifier, answer: Callable[..., Outputs], arguments: CalibrateOptions
) -> tuple[Samples | None, Samples, Outputs]:
    """Return the samples that a bag-of-words model is fitted to, the validation samples, and the
    outputs for these: of models of the other folds with `--val cross`.
    """
    import numpy as np

    from hydrasurgeon.data.folds import NO_FOLD, folds_of
    from hydrasurgeon.data.samples import Joined
    from hydrasurgeon.tuning.probe import cross_fitted

    validation, certifies = rows.val, None
    for samples in rows.certify:
        certifies = np.arange(len(validation) + len(samples)) >= len(validation)
        validation = Joined(validation, samples)
    inputs = known.inputs_of(validation)
    raw = answer(validation, grouped=True, certifies=certifies, inputs=inputs)
    if not arguments.cross:
        return rows.train, validation, raw
    raw = cross_fitted(model, raw, validation)
    return validation, validation.at(np.flatnonzero(folds_of(validation) != NO_FOLD)), raw


def _ood_sets(
    rows: _Rows,
    validation: Samples,
    answer: Callable[[Samples], Outputs],
    arguments: CalibrateOptions,
) -> _OodSets:
    """Answer the OOD sets that are large enough, and perturbed validation samples where a score is
    chosen or fitted by them.
    """
    from hydrasurgeon.data.perturbed import Perturbed
    from hydrasurgeon.decision.fitting import too_few_ood

    too_few = [too_few_ood(samples.spec, len(samples)) for samples in rows.ood]
    named = [samples for samples, note in zip(rows.ood, too_few, strict=True) if note is None]
    sets: list[Samples] = [*named]
    if arguments.ood_score in ("auto", "knn"):
        sets.append(Perturbed(validation, arguments.seed))
    notes = [*filter(None, too_few)]
    return _OodSets(sets, [answer(samples) for samples in sets], len(named), notes)


def _with_cascade(
    state: State, val: Outputs, model: Classifier, samples: Samples, arguments: CalibrateOptions
) -> tuple[State, tuple[str, ...]]:
    """Add a cascade to the state if it saves computation, else return it unchanged with a note."""
    from hydrasurgeon.data import first_batch, moved
    from hydrasurgeon.decision.cascade_fit import MAX_LOSS, fit_cascade
    from hydrasurgeon.decision.state import with_seen
    from hydrasurgeon.measuring.cost import macs, stage_macs

    first = val.among([0])
    fitted = fit_cascade(state, first, val, arguments)
    weight = next(model.parameters())
    one = first_batch(samples, model.transform, 1, skip_bad=arguments.skip_bad)
    one = moved(one, weight.device, weight.dtype)
    expected = stage_macs(model, one).expected(fitted.cascade.share_on)
    if expected >= macs(model, one):
        note = (
            f"no cascade is written: none saves time without raising NLL by more than {MAX_LOSS:g}"
        )
        return state, (note,)
    return with_seen(fitted, val.logits, val.features, first), ()


def _gathered(
    engine: Engine,
    linear: Sequence[tuple[ndarray, ndarray]],
    samples: Samples,
    arguments: CalibrateOptions,
    skipped: list[str],
) -> tuple[list[Evidence], str | None]:
    """Collect the statistics that OOD scores are fitted on, in one pass that keeps no features;
    return them with a note if not all rows were needed.
    """
    from hydrasurgeon.data.folds import some_of
    from hydrasurgeon.decision.ood_score import MOST_GATHERED
    from hydrasurgeon.runtime.answering import Answering
    from hydrasurgeon.statistics.scores.evidence import Gathering

    some, note = samples.at(some_of(samples, MOST_GATHERED)), None
    if len(some) < len(samples):
        note = (
            f"--fit-data: OOD scores are fitted on {len(some):,} of {len(samples):,} rows, "
            "which are enough; they are chosen by content"
        )
    gatherings = [Gathering(weight, bias, seed=arguments.seed) for weight, bias in linear]
    answering = Answering([engine], some, arguments, features=True)
    for piece in answering:
        outputs = engine.task.outputs(piece.outputs)
        for member, gathering in enumerate(gatherings):
            gathering.add(*outputs.of(member))
    skipped += answering.batches.skipped
    return [gathering.evidence() for gathering in gatherings], note
