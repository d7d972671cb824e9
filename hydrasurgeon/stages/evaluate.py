"""eval: accuracy, calibration, OOD detection, diversity and cost of checkpoints, in one table."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.measuring.asserts import check_paths, judged, parse_assertion
from hydrasurgeon.measuring.cascades.run import check_cascades, refuse_with
from hydrasurgeon.measuring.naming import files_apart, name_of, told_apart
from hydrasurgeon.measuring.report import Report
from hydrasurgeon.measuring.sets import LabelledSet, check_classes, data_names, labelled_sets, portable_entry
from hydrasurgeon.measuring.shifts import as_shifts, lacking_mce, with_mce
from hydrasurgeon.measuring.showing import Places, check_reference, places_of, show
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.measuring import EvaluateOptions
from hydrasurgeon.run import is_main_process
from hydrasurgeon.sharing.measured_card import claimed_cards
from hydrasurgeon.sharing.trackers import log_report, tracker_of
from hydrasurgeon.stages.evaluate_alike import uncalibrated, unlike_notes
from hydrasurgeon.stages.evaluate_models import Measured, corruptions_in, decision_of, expected, of_files, of_models
from hydrasurgeon.stages.evaluate_notes import unused

if TYPE_CHECKING:
    from hydrasurgeon.measuring.answers import Answered


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
    hub: str | None = None
    """Where on the hub the model card was uploaded to."""


@stage(EvaluateOptions)
def evaluate(arguments: EvaluateOptions) -> Evaluation:
    """Evaluate checkpoints (or predictions files) side by side.

    Of several data sets, `D` or `NAME=D`, the first is the one that OOD sets, shifts, temperature and cost belong to.
    """
    checkpoints = arguments.checkpoints
    if arguments.mc_dropout is not None and not checkpoints:
        raise UsageError("--mc-dropout: of predictions files none is run", hint="Give checkpoints.")
    assertions = [parse_assertion(text) for text in arguments.asserts]
    labelled = labelled_sets(arguments.data, arguments.classes)
    _check(checkpoints, labelled, arguments)
    tracker = tracker_of(arguments.log)
    json, predictions, places = _outputs(checkpoints, arguments)
    temperature = _temperature(arguments.temperature, arguments.val)
    # Beside checkpoints, which are the ensemble, files are results of their own.
    together = arguments.ensemble and not checkpoints
    answered: list[Answered] = []
    computed, notes = of_files(arguments, temperature, answered, together=together)
    opened = told_apart([open_checkpoint(each, arch=arguments.arch) for each in checkpoints])
    made = _made(opened, labelled, arguments)
    plain = uncalibrated(opened, arguments)
    twin = plain if plain is not None and arguments.val is not None else None
    cards = claimed_cards(arguments, opened)
    check_cascades(opened if arguments.cascade else ())
    for checkpoint in opened:
        checkpoint.digests()
    jobs = [opened] if arguments.ensemble and opened else [[each] for each in opened]
    names = [name_of(job, passes=arguments.mc_dropout) for job in jobs]
    if not together:
        computed = files_apart(computed, answered, arguments.predictions_in, names)
    check_reference(arguments.reference, [*names, *(row.name for row in computed)])
    if opened and answered:
        first = labelled[0].named(opened, arguments.template)[0]
        check_classes(first.name, first.manifest.model.num_classes, answered[0].name, answered[0].classes)
    if assertions:
        check_paths(assertions, [*expected(jobs, labelled, made, arguments), *computed])
    measured = Measured()
    with contextlib.nullcontext(opened) if twin is None else twin.beside(opened, arguments) as every:
        if every:
            measured = of_models(every, labelled, arguments, temperature, predictions, answered)
    results = with_mce([*measured.results, *computed])
    report = Report(
        settings={**_settings(labelled, opened, arguments), **measured.classes},
        results=tuple(results),
        asserts=judged(assertions, results) if assertions else None,
    )
    if json is not None:
        write_text(json, report.to_json())
    measured_alone = [each for each in results if twin is None or each.name != twin.name]
    written, hub = cards.write(measured_alone, measured.uses, report.settings, bars=arguments.progress is not None)
    notes = [
        *unused(opened, arguments, val_is_read=twin is not None),
        *(each.note for each in opened if each.note),
        *measured.notes,
        *notes,
        *lacking_mce(results),
    ]
    if plain is not None and twin is None:
        notes.append(plain.advice())
    printed = _shown(places, report, answered, opened, notes, arguments, twin.name if twin else arguments.reference)
    notes += unlike_notes(answered)
    if tracker is not None and is_main_process():
        log_report(tracker, report)
    return Evaluation(report, measured.skipped, written, tuple(notes), printed, hub)


def _shown(
    places: Places,
    report: Report,
    answered: Sequence[Answered],
    opened: Sequence[Checkpoint],
    notes: Sequence[str],
    arguments: EvaluateOptions,
    reference: str | None,
) -> dict[str, str]:
    """The report as people read it, written; what of it is to be printed."""
    manifests = {name_of([checkpoint]): checkpoint.manifest for checkpoint in opened}
    return show(
        places, report, answered, manifests, reference=reference, level=arguments.ci, seed=arguments.seed, notes=notes
    )


def _check(checkpoints: Sequence[str | Path], labelled: Sequence[LabelledSet], arguments: EvaluateOptions) -> None:
    """Refuse arguments that do not go together."""
    if arguments.cascade:
        refuse_with(arguments)
    ensemble, computed = arguments.ensemble, arguments.predictions_in
    if not checkpoints and not computed:
        raise UsageError("eval: nothing to evaluate", hint="Give checkpoints, or --predictions-in F.")
    if checkpoints and not labelled:
        raise UsageError("eval: needs data", hint="Give --data D.")
    one_model = arguments.predictions is not None
    if one_model and not checkpoints:
        raise UsageError("--predictions: holds what a model answers, and none is run", hint="Give a checkpoint.")
    if one_model and len(labelled) > 1:
        raise UsageError("--predictions: holds the logits on one data set", hint="Give one --data.")
    if ensemble and len(checkpoints or computed) < 2:
        raise UsageError("--ensemble: needs at least two checkpoints, or two predictions files and no checkpoint")
    if one_model and len(checkpoints) != 1 and not ensemble:
        raise UsageError(
            "--predictions: holds one model's logits", hint="Give one checkpoint, or several with --ensemble."
        )
    # What a predictions file may be asked for, it says itself.
    if checkpoints and arguments.ood_score not in (None, "all"):
        from hydrasurgeon.decision.scores.fitted import check_score

        for kind in str(arguments.ood_score).split(","):
            check_score(kind)
    if arguments.corrupt and not checkpoints:
        raise UsageError("--corrupt: a predictions file has no samples to spoil", hint="Give checkpoints.")
    if arguments.ci is not None and not 0 < arguments.ci < 1:
        raise UsageError(f"--ci {arguments.ci:g}: must lie between 0 and 1")
    if arguments.card and (ensemble or computed):
        raise UsageError("--card: a model card holds the result of its own checkpoint alone")


def _outputs(checkpoints: Sequence[str | Path], arguments: EvaluateOptions) -> tuple[Path | None, Path | None, Places]:
    """Where report, logits and pages go, all this command's to write."""
    inputs = [
        checkpoints,
        arguments.data,
        arguments.ood,
        arguments.shift,
        arguments.val,
        arguments.classes,
        arguments.template,
        arguments.predictions_in,
    ]

    def claimed(out: str | Path | None, option: str) -> Path | None:
        if out is None:
            return None
        return output_file(out, option=option, force=arguments.force, inputs=inputs)

    json, predictions = claimed(arguments.json_, "--json"), claimed(arguments.predictions, "--predictions")
    return json, predictions, places_of(arguments, claimed)


def _made(opened: Sequence[Checkpoint], labelled: Sequence[LabelledSet], arguments: EvaluateOptions) -> list[str]:
    """The shifts that corruptions amount to; refused where `--shift` has one of that name."""
    corruptions = corruptions_in(opened, arguments)
    return as_shifts(corruptions, arguments.shift, labelled[0].spec) if corruptions else []


def _settings(
    labelled: Sequence[LabelledSet], opened: Sequence[Checkpoint], arguments: EvaluateOptions
) -> dict[str, Any]:
    """What the report says of how it came about; `decision`: as each checkpoint's decision state has it."""
    jobs = [opened] if arguments.ensemble else [[checkpoint] for checkpoint in opened]
    decided = any(decision_of(job, arguments) is not None for job in jobs)
    temperature: str | float = "decision" if decided else 1.0
    return {
        "data": data_names(labelled),
        "ood": [portable_entry(o) for o in arguments.ood],
        "shift": [portable_entry(s) for s in arguments.shift],
        **({"corrupt": list(arguments.corrupt)} if arguments.corrupt else {}),
        "val": portable_entry(arguments.val),
        "ensemble": arguments.ensemble,
        "temperature": temperature if arguments.temperature is None else arguments.temperature,
        "ood_score": arguments.ood_score or ("decision" if decided else "msp"),
        "limit": arguments.limit,
        "seed": arguments.seed,
        "dtype": arguments.dtype,
        "batch_size": arguments.batch_size,
        **({"cascade": True} if arguments.cascade else {}),
        **({} if arguments.mc_dropout is None else {"mc_dropout": arguments.mc_dropout}),
    }


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
