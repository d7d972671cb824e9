"""eval: accuracy, calibration, OOD detection, diversity and cost of checkpoints, in one table."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.data.batches import batch_size_of
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.history import installed
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.measuring.asserts import check_paths, judged, parse_assertion
from hydrasurgeon.measuring.cascades.run import FULL
from hydrasurgeon.measuring.cost import machine
from hydrasurgeon.measuring.results import Report
from hydrasurgeon.measuring.rows import Row, with_mce
from hydrasurgeon.measuring.running import by_path, name_of
from hydrasurgeon.measuring.sets import (
    LabelledSet,
    check_cascades,
    check_classes,
    corruptions_in,
    labelled_sets,
    portable_entry,
)
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.measuring import EvaluateOptions
from hydrasurgeon.report.examples import Examples, examples_of
from hydrasurgeon.report.markdown import markdown
from hydrasurgeon.report.page import Material, document
from hydrasurgeon.runtime.tensors import device_of
from hydrasurgeon.sharing.measured_card import claimed_cards
from hydrasurgeon.stages.evaluate_models import (
    Measured,
    by_file,
    decision_ignored,
    of_files,
    of_models,
    uncalibrated,
    unlike_notes,
)
from hydrasurgeon.statistics.scores.fitted import check_score

STDOUT = "-"
"""A report that is printed."""


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

    Of several data sets, `D` or `NAME=D`, the first is the one that OOD sets, shifts, temperature
    and cost belong to.
    """
    assertions = [parse_assertion(text) for text in arguments.asserts]
    labelled = labelled_sets(arguments.data, arguments.classes)
    _check(labelled, arguments)
    outputs = _outputs(arguments)
    # None where it is to be fitted.
    temperature = None if arguments.temperature == "fit" else arguments.temperature or 1.0
    files = of_files(arguments, temperature)
    opened = by_path(
        [open_checkpoint(each, arch=arguments.arch) for each in arguments.checkpoints],
        arguments.checkpoints,
    )
    corruptions_in(arguments.corrupt, arguments.shift, opened)
    plain = uncalibrated(opened, arguments)
    twin = plain if plain is not None and arguments.val is not None else None
    cards = claimed_cards(arguments, opened)
    names = _names(opened, arguments)
    if opened or not arguments.ensemble:
        files = by_file(files, arguments.predictions_in, names)
    names += [row.name for row in files]
    _check_reference(arguments.reference, names)
    check_paths(assertions, [*names, *([] if twin is None else [twin.name])])
    if opened and files:
        first = labelled[0].named(opened, arguments.template)[0]
        check_classes(
            first.name, first.manifest.model.num_classes, files[0].name, files[0].answers.classes
        )
    measured = Measured()
    with (
        contextlib.nullcontext(opened) if twin is None else twin.beside(opened, arguments) as every
    ):
        if every:
            measured = of_models(
                every, labelled, arguments, temperature, outputs.get("predictions")
            )
    rows = with_mce([*measured.rows, *files])
    results = tuple(row.result for row in rows)
    report = Report(
        settings={**_settings(labelled, opened, arguments), **measured.classes},
        results=results,
        asserts=judged(assertions, results) if assertions else None,
    )
    if isinstance(outputs.get("json"), Path):
        write_text(outputs["json"], report.to_json())
    ours = [row.result for row in measured.rows if twin is None or row.name != twin.name]
    paths, hub = cards.write(
        ours, measured.uses, report.settings, bars=arguments.progress is not None
    )
    notes = [*(each.note for each in opened if each.note), *measured.notes]
    if plain is not None and twin is None:
        notes.append(plain.advice())
    at = next(
        (
            at
            for at, row in enumerate(rows)
            if row.name == (twin.name if twin else arguments.reference)
        ),
        0,
    )
    material = _material(report, rows, at, opened, measured, notes, arguments)
    printed = _written(material, outputs)
    return Evaluation(report, measured.skipped, paths, (*notes, *unlike_notes(rows)), printed, hub)


def _names(opened: Sequence[Checkpoint], arguments: EvaluateOptions) -> list[str]:
    """What the rows of models will be called, once each is known to be sound."""
    check_cascades(opened if arguments.cascade else ())
    for checkpoint in opened:
        checkpoint.digests()
    jobs = [opened] if arguments.ensemble and opened else [[each] for each in opened]
    names = [name_of(job, passes=arguments.mc_dropout) for job in jobs]
    return [each for name in names for each in (name, name + FULL)] if arguments.cascade else names


def _check_reference(wanted: str | None, names: Sequence[str]) -> None:
    """Refuse a reference that no result will be called, before models run."""
    if wanted is not None and wanted not in names:
        raise UsageError(
            f"--reference {visible(wanted)}: no such result{did_you_mean(wanted, names, visible)}",
            hint=f"There are {', '.join(map(visible, names))}.",
        )


def _written(material: Material, outputs: Mapping[str, Any]) -> dict[str, str]:
    """The report as people read it; what of it is to be printed."""
    printed = {}
    for kind, written in (("html", document), ("markdown", markdown)):
        if outputs.get(kind) == STDOUT:
            printed[kind] = written(material)
        elif kind in outputs:
            write_text(outputs[kind], written(material))
    return printed


def _material(
    report: Report,
    rows: Sequence[Row],
    reference: int,
    opened: Sequence[Checkpoint],
    measured: Measured,
    notes: Sequence[str],
    arguments: EvaluateOptions,
) -> Material:
    """What the page and Markdown are made of; samples for the page are of models that ran here, the
    reference first.
    """
    examples: tuple[Examples, ...] = ()
    if (
        arguments.html is not None
        and not arguments.no_examples
        and measured.samples is not None
        and measured.samples.labels.ndim == 1
    ):
        row = rows[reference] if rows[reference].timing is not None else rows[0]
        examples = examples_of(row.answers, measured.samples, measured.class_names)
    return Material(
        report,
        tuple(rows),
        {name_of([checkpoint]): checkpoint.manifest for checkpoint in opened},
        reference,
        arguments.ci or 0.95,
        arguments.seed,
        tuple(notes),
        classes=measured.class_names,
        examples=examples,
        facts=_facts(arguments) if opened else {"hydrasurgeon": installed("hydrasurgeon")},
        uses=measured.uses,
    )


def _facts(arguments: EvaluateOptions) -> dict[str, object]:
    """Versions, the device and the batch: what may move the last digits of a figure."""
    device = device_of(arguments.device)
    name = f"{device} ({machine(device)['device']})" if device.type == "cuda" else str(device)
    versions = {package: installed(package) for package in ("hydrasurgeon", "torch")}
    return {**versions, "device": name, "batch size": batch_size_of(arguments.batch_size)}


def _check(labelled: Sequence[LabelledSet], arguments: EvaluateOptions) -> None:
    """Refuse arguments that do not go together."""
    checkpoints, ensemble, computed = (
        arguments.checkpoints,
        arguments.ensemble,
        arguments.predictions_in,
    )
    single = (
        "--cascade"
        if arguments.cascade
        else "--predictions"
        if arguments.predictions is not None
        else None
    )
    several = arguments.predictions is not None and len(checkpoints) > 1 and not ensemble
    for wrong, message, hint in (
        (single and len(labelled) > 1, f"{single}: is for one data set", "Give one --data."),
        (
            not checkpoints and not computed,
            "eval: nothing to evaluate",
            "Give checkpoints, or --predictions-in F.",
        ),
        (checkpoints and not labelled, "eval: needs data", "Give --data D."),
        (
            ensemble and len(checkpoints or computed) < 2,
            (
                "--ensemble: needs at least two checkpoints, or two predictions files and no "
                "checkpoint"
            ),
            None,
        ),
        (
            several,
            "--predictions: holds one model's logits",
            "Give one checkpoint, or several with --ensemble.",
        ),
        (
            computed and arguments.temperature == "fit",
            "--temperature fit: a predictions file has no validation set",
            "Give the temperature as a number.",
        ),
        (
            arguments.temperature == "fit" and arguments.val is None,
            "--temperature fit: needs a validation set",
            "Give --val D.",
        ),
    ):
        if wrong:
            raise UsageError(message, hint=hint)
    # What a predictions file may be asked for, it says itself.
    if checkpoints and arguments.ood_score not in (None, "all"):
        for kind in str(arguments.ood_score).split(","):
            check_score(kind)


def _outputs(arguments: EvaluateOptions) -> dict[str, Any]:
    """Where report, logits and pages go, all this command's to write."""
    force, inputs = arguments.force, arguments.sources
    kinds = {"json": "json_", "predictions": "predictions", "html": "html", "markdown": "markdown"}
    outputs = {kind: getattr(arguments, name) for kind, name in kinds.items()}
    return {
        kind: out
        if out == STDOUT
        else output_file(out, option=f"--{kind}", force=force, inputs=inputs)
        for kind, out in outputs.items()
        if out is not None
    }


def _settings(
    labelled: Sequence[LabelledSet], opened: Sequence[Checkpoint], arguments: EvaluateOptions
) -> dict[str, Any]:
    """What the report says of how it came about; `decision`: as each checkpoint's decision state
    has it.
    """
    jobs = [opened] if arguments.ensemble else [[checkpoint] for checkpoint in opened]
    named = [f"{each.name}={portable_entry(each.spec)}" for each in labelled]
    decided = any(
        job[0].manifest.decision is not None
        for job in jobs
        if job and not decision_ignored(job, arguments)
    )
    temperature: str | float = "decision" if decided else 1.0
    plain = ("ensemble", "limit", "seed", "dtype", "batch_size")
    return {
        "data": named
        if len(labelled) > 1
        else portable_entry(labelled[0].spec if labelled else None),
        "ood": [portable_entry(o) for o in arguments.ood],
        "shift": [portable_entry(s) for s in arguments.shift],
        **({"corrupt": list(arguments.corrupt)} if arguments.corrupt else {}),
        "val": portable_entry(arguments.val),
        "temperature": temperature if arguments.temperature is None else arguments.temperature,
        "ood_score": arguments.ood_score or ("decision" if decided else "msp"),
        **{name: getattr(arguments, name) for name in plain},
        **({"cascade": True} if arguments.cascade else {}),
        **({} if arguments.mc_dropout is None else {"mc_dropout": arguments.mc_dropout}),
    }
