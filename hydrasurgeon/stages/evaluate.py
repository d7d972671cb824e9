"""eval: accuracy, calibration, OOD detection, diversity and cost of checkpoints, in one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.prompts import record_of
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.measuring.asserts import check_paths, judged, parse_assertion
from hydrasurgeon.measuring.cascade_run import (
    beside,
    check_cascades,
    in_order,
    refuse_with,
    rehearsed_beside,
)
from hydrasurgeon.measuring.overlap import in_predictions, in_samples
from hydrasurgeon.measuring.reading import (
    Reading,
    fitted_among,
    ood_scores,
    reading_of,
    rehearsal,
    scores_in,
)
from hydrasurgeon.measuring.report import Report, Result
from hydrasurgeon.measuring.results import inside, over_sets, rehearsed, result
from hydrasurgeon.measuring.running import How, name_of, run_models, with_time
from hydrasurgeon.measuring.sets import (
    LabelledSet,
    check_classes,
    check_same_classes,
    class_hashes,
    data_names,
    labelled_sets,
    open_further,
    open_sets,
    portable_entry,
    uses_of,
)
from hydrasurgeon.measuring.shifts import as_shifts, corrupted, kind_read, with_mce, with_shifts
from hydrasurgeon.measuring.showing import (
    Places,
    Showing,
    ShowingKeywords,
    check_reference,
    show,
)
from hydrasurgeon.run import Run, RunKeywords, is_main_process, takes
from hydrasurgeon.sharing.measured_card import cards_of, write_cards
from hydrasurgeon.sharing.trackers import log_report, tracker_of

if TYPE_CHECKING:
    from hydrasurgeon.data.corruptions import Corruption
    from hydrasurgeon.decision.state import State
    from hydrasurgeon.files.decided import Decision
    from hydrasurgeon.measuring.answers import Answered
    from hydrasurgeon.measuring.predictions import Predictions

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    report: Report
    skipped: tuple[str, ...] = ()
    cards: tuple[Path, ...] = ()
    """Model cards that the results were written into."""
    notes: tuple[str, ...] = ()
    """What is odd about the data."""
    printed: Mapping[str, str] = field(default_factory=dict)
    """Reports that are for stdout, by kind."""


class EvaluateKeywords(ShowingKeywords, RunKeywords, total=False):
    """The keywords of `EvaluateArguments`."""

    data: str | Sequence[str] | None
    ood: Sequence[str]
    shift: Sequence[str]
    corrupt: Sequence[str]
    val: str | None
    classes: str | Sequence[str] | None
    template: Sequence[str]
    ensemble: bool
    temperature: str | float | None
    ood_score: str | None
    no_decision: bool
    cascade: bool
    mc_dropout: int | None
    ci: float | None
    arch: str | None
    json: str | Path | None
    predictions: str | Path | None
    predictions_in: Sequence[str | Path]
    card: bool
    asserts: Sequence[str]
    force: bool


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(Showing, Run):
    """What `evaluate` is to do."""

    data: str | Sequence[str] | None = None
    """Labelled data, D or NAME=D."""
    ood: Sequence[str] = ()
    """Foreign data, near:NAME=D or far:NAME=D."""
    shift: Sequence[str] = ()
    """Labelled shifted data, NAME=D, or NAME:S=D of severity S."""
    corrupt: Sequence[str] = ()
    """Corruptions of the data, all, NAME or NAME:S, to be made as it is read."""
    val: str | None = None
    """Labelled data to fit the temperature on."""
    classes: str | Sequence[str] | None = None
    """The class names of zero-shot models, of all data sets or of one."""
    template: Sequence[str] = ()
    """Prompts with {label} in them, or files of such."""
    ensemble: bool = False
    """Treat the checkpoints as one Deep Ensemble; without checkpoints, the models behind the files of logits."""
    temperature: str | float | None = None
    """Of the averaged prediction; `fit`: the one that suits the validation set; None: the decision state's, else 1."""
    ood_score: str | None = None
    """One or several, A,B,…, of which the first is in use, or all; None: the decision state's, else msp."""
    no_decision: bool = False
    """Leave the checkpoints' decision states alone."""
    cascade: bool = False
    """Run the checkpoints' cascades, and show each before its hydra, which is then called NAME (full)."""
    mc_dropout: int | None = None
    """Passes of each model with its dropout on, as members; its decision state, fitted without, is then left alone."""
    ci: float | None = None
    """The level of bootstrap intervals of the ID metrics, such as 0.95."""
    arch: str | None = None
    """Architecture of files without manifest."""
    json: str | Path | None = None
    """Where the report is written."""
    predictions: str | Path | None = None
    """Where the logits are written."""
    predictions_in: Sequence[str | Path] = ()
    """Files of logits to evaluate too."""
    card: bool = False
    """Write each directory's own result into its model card."""
    asserts: Sequence[str] = ()
    """Limits that numbers of the report must keep."""
    force: bool = False
    """Replace existing outputs."""


@dataclass(frozen=True)
class _Measured:
    """What came of running models on data."""

    results: tuple[Result, ...] = ()
    uses: Mapping[str, DataRecord] = field(default_factory=dict)
    """What each data set was for."""
    classes: Mapping[str, Any] = field(default_factory=dict)
    """Hashes of the class names that zero-shot models were given."""
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@releases_claims
@takes(EvaluateArguments)
def evaluate(checkpoints: Sequence[str | Path], **keywords: Unpack[EvaluateKeywords]) -> Evaluation:
    """Evaluate checkpoints (or predictions files) side by side.

    Of several data sets, `D` or `NAME=D`, the first is the one that OOD sets, shifts, temperature and cost belong to.
    """
    arguments = EvaluateArguments(**keywords)
    if arguments.mc_dropout is not None:
        arguments = replace(arguments, no_decision=True)
    assertions = [parse_assertion(text) for text in arguments.asserts]
    labelled = labelled_sets(arguments.data, arguments.classes)
    _check(checkpoints, labelled, arguments)
    tracker = tracker_of(arguments.log)
    json, predictions, places = _outputs(checkpoints, arguments)
    temperature = _temperature(arguments.temperature, arguments.val)
    # Beside checkpoints, which are the ensemble, files are results of their own.
    together = arguments.ensemble and not checkpoints
    answered: list[Answered] = []
    computed, notes = _computed(arguments, temperature, answered, together=together)
    opened = [open_checkpoint(checkpoint, arch=arguments.arch) for checkpoint in checkpoints]
    made = _made(opened, labelled, arguments)
    cards = cards_of(opened) if arguments.card else []
    check_cascades(opened if arguments.cascade else ())
    for checkpoint in opened:
        checkpoint.digests()
    jobs = [opened] if arguments.ensemble and opened else [[each] for each in opened]
    check_reference(arguments.reference, [*map(name_of, jobs), *(row.name for row in computed)])
    if opened and answered:
        first = labelled[0].named(opened, arguments.template)[0]
        check_classes(first.name, first.manifest.model.num_classes, answered[0].name, answered[0].classes)  # fmt: skip
    if assertions:
        check_paths(assertions, [*_expected(jobs, labelled, made, arguments), *computed])
    measured = _Measured()
    if opened:
        measured = _measured(opened, labelled, arguments, temperature, predictions, answered)
    results = with_mce([*measured.results, *computed])
    report = Report(
        settings={**_settings(labelled, opened, arguments), **measured.classes},
        results=tuple(results),
        asserts=judged(assertions, results) if assertions else None,
    )
    if json is not None:
        write_text(json, report.to_json())
    written: tuple[Path, ...] = ()
    if arguments.card:
        written = write_cards(cards, results, measured.uses, report.settings)
    notes = [*measured.notes, *notes]
    printed = _shown(places, report, answered, opened, notes, arguments)
    if tracker is not None and is_main_process():
        log_report(tracker, report)
    return Evaluation(report, measured.skipped, written, tuple(notes), printed)


def _expected(
    jobs: Sequence[Sequence[Checkpoint]],
    labelled: Sequence[LabelledSet],
    made: Sequence[str],
    arguments: EvaluateArguments,
) -> list[Result]:
    """Results with the keys that these jobs will give."""
    expected = [
        rehearsed(
            name_of(job), labelled, arguments.ood, [*arguments.shift, *made],
            rehearsal(
                _decision(job, arguments), arguments.ood_score,
                tempered=arguments.temperature is not None, ci=arguments.ci,
            ),
        )
        for job in jobs
    ]  # fmt: skip
    if not arguments.cascade:
        return expected
    return [row for each in expected for row in rehearsed_beside(each)]


def _shown(
    places: Places,
    report: Report,
    answered: Sequence[Answered],
    opened: Sequence[Checkpoint],
    notes: Sequence[str],
    arguments: EvaluateArguments,
) -> dict[str, str]:
    """The report as people read it, written; what of it is to be printed."""
    manifests = {name_of([checkpoint]): checkpoint.manifest for checkpoint in opened}
    return show(
        places, report, answered, manifests,
        reference=arguments.reference, level=arguments.ci, seed=arguments.seed, notes=notes,
    )  # fmt: skip


def _check(
    checkpoints: Sequence[str | Path],
    labelled: Sequence[LabelledSet],
    arguments: EvaluateArguments,
) -> None:
    """Refuse arguments that do not go together."""
    if arguments.cascade:
        refuse_with(arguments)
    ensemble, computed = arguments.ensemble, arguments.predictions_in
    if not checkpoints and not computed:
        raise UsageError(
            "eval: nothing to evaluate", hint="Give checkpoints, or --predictions-in F."
        )
    if checkpoints and not labelled:
        raise UsageError("eval: needs data", hint="Give --data D.")
    one_model = arguments.predictions is not None
    if one_model and len(labelled) > 1:
        raise UsageError("--predictions: holds the logits on one data set", hint="Give one --data.")
    if ensemble and len(checkpoints or computed) < 2:
        raise UsageError(
            "--ensemble: needs at least two checkpoints, or two predictions files and no checkpoint"
        )
    if one_model and checkpoints and len(checkpoints) != 1 and not ensemble:
        raise UsageError(
            "--predictions: holds one model's logits",
            hint="Give one checkpoint, or several with --ensemble.",
        )
    # What a predictions file may be asked for, it says itself.
    if checkpoints and arguments.ood_score not in (None, "all"):
        from hydrasurgeon.decision.scores.fitted import check_score

        for kind in str(arguments.ood_score).split(","):
            check_score(kind)
    if arguments.corrupt and not checkpoints:
        raise UsageError(
            "--corrupt: a predictions file has no samples to spoil", hint="Give checkpoints."
        )
    if arguments.ci is not None and not 0 < arguments.ci < 1:
        raise UsageError(f"--ci {arguments.ci:g}: must lie between 0 and 1")
    if arguments.card and (ensemble or computed):
        raise UsageError("--card: a model card holds the result of its own checkpoint alone")


def _outputs(
    checkpoints: Sequence[str | Path], arguments: EvaluateArguments
) -> tuple[Path | None, Path | None, Places]:
    """Where report, logits and pages go, all this command's to write."""
    inputs = [
        checkpoints, arguments.data, arguments.ood, arguments.shift, arguments.val, arguments.classes,
        arguments.template, arguments.predictions_in,
    ]  # fmt: skip

    def claimed(out: str | Path | None, option: str) -> Path | None:
        if out is None:
            return None
        return output_file(out, option=option, force=arguments.force, inputs=inputs)

    json, predictions = claimed(arguments.json, "--json"), claimed(arguments.predictions, "--predictions")  # fmt: skip
    return json, predictions, arguments.places(claimed)


def _computed(
    arguments: EvaluateArguments,
    temperature: float | None,
    answered: list[Answered],
    *,
    together: bool,
) -> tuple[list[Result], list[str]]:
    """The results that predictions files amount to, each or all of them as one ensemble, and what is odd about them."""
    if not arguments.predictions_in:
        return [], []
    heat = _fitted(temperature, None)
    results: list[Result] = []
    notes: list[str] = []
    for name, predictions in _stored(arguments.predictions_in, together=together):
        if answered:
            check_classes(answered[0].name, answered[0].classes, predictions.name, predictions.logits.shape[-1])  # fmt: skip
        notes += in_predictions(predictions)
        kinds = scores_in(arguments.ood_score, predictions, name)
        reading = Reading(heat, ood_scores=kinds, ci=arguments.ci, seed=arguments.seed)
        results.append(result(predictions, reading=reading, keep=answered))
    return results, notes


def _stored(paths: Sequence[str | Path], *, together: bool) -> Iterator[tuple[str, Predictions]]:
    """What models have said, one file in memory at a time unless they are one ensemble's."""
    from hydrasurgeon.measuring.ensembled import ensembled
    from hydrasurgeon.measuring.predictions import read_predictions

    if together:
        yield "their ensemble", ensembled([(Path(path), read_predictions(Path(path))) for path in paths])  # fmt: skip
        return
    for path in paths:
        yield str(path), read_predictions(Path(path))


def _measured(
    plain: Sequence[Checkpoint],
    labelled: Sequence[LabelledSet],
    arguments: EvaluateArguments,
    temperature: float | None,
    predictions: Path | None,
    answered: list[Answered],
) -> _Measured:
    """Every checkpoint, or all of them as one ensemble, on all data sets."""
    from hydrasurgeon.measuring.predictions import write_predictions
    from hydrasurgeon.measuring.timing import SideBySide

    first, *others = labelled
    opened = first.named(plain, arguments.template)
    check_same_classes(opened)
    limit, seed = arguments.limit, arguments.seed
    sets = open_sets(
        opened[0], first.spec, arguments.ood, arguments.shift, arguments.val, limit, seed
    )
    spoiled = corrupted(sets, _corruptions(opened, arguments), seed)
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
        predicted, val_logits = run_models(
            job, models, sets, how, timed, fitted=fitted_among(state, kinds)
        )
        heat = None
        if arguments.temperature is not None:
            heat = partial(_fitted, temperature, val_logits)
        reading = reading_of(state, kinds, temperature=heat, ci=arguments.ci, seed=arguments.seed)
        row = result(predicted, reading=reading, keep=mine)
        row = with_shifts(row, one_by_one, partial(how.logits, models), reading)
        if further:
            rest = [s.measure(numbers, job, models, how.logits, load=how.load, inside=partial(inside, reading=reading)) for s in further]  # fmt: skip
            row = over_sets(row, rest, first=first.name)
        results += [row] if not arguments.cascade else beside(row, job[0], spoiled, how, timed, reading=reading, keep=mine)  # fmt: skip
        if predictions is not None:
            write_predictions(predicted, predictions)
    rows = [with_time(r, ms) for r, ms in zip(results, timed.milliseconds(), strict=True)]
    # In the order of the report: checkpoints stand before files.
    answered[:0] = in_order(mine)
    return _Measured(
        tuple(in_order(rows)),
        uses,
        record_of(opened[0].manifest.model) | class_hashes(further),
        tuple(dict.fromkeys(how.skipped)),
        tuple(in_samples(sets.id, sets.ood)),
    )


def _corruptions(
    opened: Sequence[Checkpoint], arguments: EvaluateArguments
) -> tuple[Corruption, ...]:
    """What becomes of the samples that these models read."""
    if not arguments.corrupt:
        return ()
    from hydrasurgeon.data.corruptions import corruptions_of

    return corruptions_of(arguments.corrupt, kind_read(opened[0].manifest))


def _made(
    opened: Sequence[Checkpoint], labelled: Sequence[LabelledSet], arguments: EvaluateArguments
) -> list[str]:
    """The shifts that corruptions amount to; refused where `--shift` has one of that name."""
    corruptions = _corruptions(opened, arguments)
    return as_shifts(corruptions, arguments.shift, labelled[0].spec) if corruptions else []


def _settings(
    labelled: Sequence[LabelledSet], opened: Sequence[Checkpoint], arguments: EvaluateArguments
) -> dict[str, Any]:
    """What the report says of how it came about; `decision`: as each checkpoint's decision state has it."""
    jobs = [opened] if arguments.ensemble else [[checkpoint] for checkpoint in opened]
    decided = any(_decision(job, arguments) is not None for job in jobs)
    temperature: str | float = "decision" if decided else 1.0
    return {
        "data": data_names(labelled), "ood": [portable_entry(o) for o in arguments.ood],
        "shift": [portable_entry(s) for s in arguments.shift], **({"corrupt": list(arguments.corrupt)} if arguments.corrupt else {}), "val": portable_entry(arguments.val),
        "ensemble": arguments.ensemble, "temperature": temperature if arguments.temperature is None else arguments.temperature,
        "ood_score": arguments.ood_score or ("decision" if decided else "msp"),
        "limit": arguments.limit, "seed": arguments.seed, "dtype": arguments.dtype, "batch_size": arguments.batch_size,
        **({"cascade": True} if arguments.cascade else {}),
        **({} if arguments.mc_dropout is None else {"mc_dropout": arguments.mc_dropout}),
    }  # fmt: skip


def _state(models: Sequence[Any], arguments: EvaluateArguments) -> State | None:
    """The decision state that is in use: of one checkpoint run alone, unless it is to be left alone."""
    if len(models) != 1 or arguments.no_decision:
        return None
    state: State | None = models[0].state
    return state


def _decision(job: Sequence[Checkpoint], arguments: EvaluateArguments) -> Decision | None:
    """The record of that state."""
    return job[0].manifest.decision if len(job) == 1 and not arguments.no_decision else None


def _fitted(fixed: float | None, val: Any) -> float:
    """The given temperature, or the one that suits logits and labels of the validation set."""
    from hydrasurgeon.measuring import metrics

    if fixed is not None:
        return fixed
    if val is None:
        raise UsageError(
            "--temperature fit: a predictions file has no validation set",
            hint="Give the temperature as a number.",
        )
    return metrics.fit_temperature(metrics.mean_probs(val[0]), val[1])


def _temperature(wanted: str | float | None, val: str | None) -> float | None:
    """A number, or None where it is to be fitted on the validation set."""
    if wanted is None:
        return 1.0
    if wanted == "fit":
        if val is None:
            raise UsageError("--temperature fit: needs a validation set", hint="Give --val D.")
        return None
    try:
        value = float(wanted)
    except ValueError as error:
        raise UsageError(f"--temperature {wanted}: neither a number nor fit") from error
    if not 1e-3 <= value <= 1e3:
        raise UsageError(f"--temperature {wanted}: must lie between 0.001 and 1000")
    return value
