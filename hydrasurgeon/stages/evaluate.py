"""eval: accuracy, calibration, OOD detection, diversity and cost of checkpoints, in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.checkpoint import Checkpoint
from hydrasurgeon.checkpoints.folder import parts_of
from hydrasurgeon.engines import check_engine, chosen, fitted_otherwise, open_models
from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.manifest import UNKNOWN
from hydrasurgeon.files.untrusted import portable, portable_entry, visible
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.measuring.asserts import (
    DIFFERENCES,
    Assertion,
    judged,
    parse_assertion,
    require,
    with_bounds,
)
from hydrasurgeon.measuring.cascades import WHOLE, has_cascade
from hydrasurgeon.measuring.measure import Row, with_mce
from hydrasurgeon.measuring.results import Report
from hydrasurgeon.measuring.sets import (
    LabelledSet,
    by_path,
    labelled_sets,
    name_of,
)
from hydrasurgeon.options.base import STDOUT, stage
from hydrasurgeon.options.measuring import EvaluateOptions
from hydrasurgeon.report.columns import ReportTable, brief
from hydrasurgeon.report.markdown import markdown
from hydrasurgeon.report.page import Material, document
from hydrasurgeon.runtime.answering import CALIBRATE
from hydrasurgeon.stages.evaluate_models import (
    Measured,
    TableEntry,
    by_file,
    few_ood,
    of_files,
    of_models,
    unlike_notes,
)
from hydrasurgeon.statistics.scores.fitted import check_score
from hydrasurgeon.tasks import task_of
from hydrasurgeon.tasks.base import need_feature


@dataclass(frozen=True, repr=False)
class Evaluation:
    """A report that prints itself as tables."""

    report: Report
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Oddities of the data and the checkpoints."""
    printed: Mapping[str, str] = field(default_factory=dict)
    """Reports that are for stdout, by kind."""
    headline: str = ""
    """The page's headline, where one was written."""
    ood_scores: tuple[str, ...] = ()
    """OOD scores that the rows are measured by."""

    @property
    def tables(self) -> list[ReportTable]:
        """The tables of a terminal."""
        return brief(self.report.results, self.ood_scores)

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def require(self) -> None:
        """Raise CheckFailed if an asserted limit is broken."""
        require(self.report.asserts or (), self.report)


@stage(EvaluateOptions)
def evaluate(arguments: EvaluateOptions) -> Evaluation:
    """Evaluate checkpoints (or predictions files) side by side.

    Of several data sets, `D` or `NAME=D`, the first is the one that OOD sets, shifts, temperature
    and cost belong to.
    """
    assertions = [parse_assertion(text) for text in arguments.asserts]
    labelled = labelled_sets(arguments.data, arguments.classes)
    _check(labelled, arguments)
    _check_assertions(assertions, arguments)
    check_engine(arguments, arguments.dtype)
    outputs = _outputs(arguments)
    files = of_files(arguments)
    opened, entries = _opened(arguments)
    names = _names(opened, entries, arguments)
    if opened or not arguments.ensemble:
        files = by_file(files, arguments.predictions_in, names)
    names += [row.name for row in files]
    _check_reference(arguments.reference, names)
    assertions = with_bounds(assertions, names)
    measured = Measured()
    single = {entry.name: opened[entry.members[0]] for entry in entries if not entry.is_ensemble}
    deciding = {} if arguments.no_decision else single
    if opened:
        logits = outputs.get("predictions")
        measured = of_models(opened, entries, labelled, arguments, logits, files)
    rows = with_mce([*measured.rows, *files])
    results = tuple(row.result for row in rows)
    report = Report(
        settings={**_settings(labelled, deciding, files, arguments), **measured.classes},
        results=results,
    )
    at = 0
    if arguments.reference is not None:
        at = [row.name for row in rows].index(arguments.reference)
    models = {
        name: checkpoint.hub_id or checkpoint.path.name for name, checkpoint in single.items()
    }
    notes = (
        *(checkpoint.note for checkpoint in opened if checkpoint.note),
        *measured.notes,
        *few_ood(rows),
        *_no_ood(rows, arguments),
        *_decision_notes(deciding, arguments),
        *unlike_notes(rows, rows[at], models),
    )
    hashes = {name_of([checkpoint]): checkpoint.manifest.weights_sha256 for checkpoint in opened}
    hashes |= {name: checkpoint.manifest.weights_sha256 for name, checkpoint in single.items()}
    if "html" in outputs:
        hashes |= {use: samples.fingerprint()["sha256"] for use, samples in measured.uses.items()}
    material = Material(
        report,
        tuple(rows),
        at,
        arguments.ci or 0.95,
        arguments.seed,
        notes,
        measured.class_names,
        {name: sha256 for name, sha256 in hashes.items() if sha256 != UNKNOWN},
    )
    if arguments.ci is not None:
        report = report.model_copy(update={"differences": material.paired})
    if assertions:
        report = report.model_copy(update={"asserts": judged(assertions, report)})
    if isinstance(outputs.get("json"), Path):
        write_text(outputs["json"], report.to_json())
    printed = _written(material, outputs)
    headline = material.headline if "html" in outputs and len(rows) > 1 else ""
    ood_scores = dict.fromkeys(row.answers.used for row in rows if row.answers.ood_scores)
    return Evaluation(report, measured.skipped, notes, printed, headline, tuple(ood_scores))


def _opened(arguments: EvaluateOptions) -> tuple[list[Checkpoint], list[TableEntry]]:
    """Open each checkpoint once; return them, and which of them make a row of the table."""
    named = [parts_of(str(text)) for text in arguments.checkpoints]
    specs = [*dict.fromkeys(spec for _, parts in named for spec in parts)]
    opened = by_path(open_models(specs, arch=arguments.arch, engine=arguments.engine), specs)
    entries = []
    for name, parts in named:
        members = tuple(specs.index(spec) for spec in parts)
        row_name = name or name_of([opened[at] for at in members])
        entries.append(TableEntry(row_name, members))
        if name is not None and [entry.name for entry in entries].count(name) > 1:
            raise UsageError(f"eval: {name} occurs twice", hint="Name them: NAME=CKPT.")
    if not (arguments.ensemble and entries):
        return opened, entries
    several = next((entry for entry in entries if entry.is_ensemble), None)
    if several is not None:
        raise UsageError(
            f"--ensemble: {several.name} is an ensemble already", hint="Leave --ensemble out."
        )
    joined = TableEntry(
        " + ".join(entry.name for entry in entries),
        tuple(at for entry in entries for at in entry.members),
    )
    return opened, [joined]


def _names(
    opened: Sequence[Checkpoint], entries: Sequence[TableEntry], arguments: EvaluateOptions
) -> list[str]:
    """Return what the rows of models will be called, once each is known to be sound."""
    options_in_use = {
        "--html": arguments.html,
        "--shift": arguments.shift,
    }
    cascades = [
        entry.name
        for entry in entries
        if not entry.is_ensemble and has_cascade(opened[entry.members[0]])
    ]
    if arguments.cascade and opened and not cascades:
        message = f"--cascade: the decision state of {opened[0].name} has no cascade"
        raise CheckpointError(message, hint=CALIBRATE)
    for checkpoint in opened:
        for option in (name for name, is_given in options_in_use.items() if is_given):
            need_feature(task_of(checkpoint.manifest.model), option, checkpoint.name)
        checkpoint.check_weights()
    names = []
    for entry in entries:
        names.append(entry.name)
        names += [entry.name + WHOLE] * (arguments.cascade and entry.name in cascades)
    return names


def _check_reference(name: str | None, names: Sequence[str]) -> None:
    """Refuse a --reference that no row will have, before models run."""
    if name is not None and name not in names:
        raise UsageError(
            f"--reference {visible(name)}: no such result{did_you_mean(name, names, visible)}",
            hint=f"There are {', '.join(map(visible, names))}.",
        )


def _no_ood(rows: Sequence[Row], arguments: EvaluateOptions) -> list[str]:
    """Return a note on OOD scores that have nothing to detect."""
    if arguments.ood_score is None or any(row.answers.ood_scores for row in rows):
        return []
    return ["--ood-score: without OOD data (--ood) no AUROC is measured"]


def _decision_notes(deciding: Mapping[str, Checkpoint], arguments: EvaluateOptions) -> list[str]:
    """Return notes on models that answer otherwise here than where they are deployed."""
    notes: list[str] = []
    for name, checkpoint in deciding.items():
        device, dtype = arguments.device, arguments.dtype
        engine = chosen(checkpoint, arguments.engine, device=device, dtype=dtype)
        notes += filter(None, [fitted_otherwise(checkpoint, engine)])
        decision = checkpoint.manifest.decision
        words = decision.words if decision else None
        if words and words.mode == "cascade" and not arguments.cascade:
            how = "measured without its cascade; --cascade measures it as deployed"
            notes.append(f"{name}: {how}")
    return notes


def _written(material: Material, outputs: Mapping[str, Any]) -> dict[str, str]:
    """Write the HTML and Markdown reports; return those that are for stdout, by kind."""
    printed = {}
    for kind, written in (("html", document), ("markdown", markdown)):
        if outputs.get(kind) == STDOUT:
            printed[kind] = written(material)
        elif kind in outputs:
            write_text(outputs[kind], written(material))
    return printed


def _check(labelled: Sequence[LabelledSet], arguments: EvaluateOptions) -> None:
    """Refuse arguments that do not go together."""
    checkpoints, files = arguments.checkpoints, arguments.predictions_in
    if not checkpoints and not files:
        raise UsageError(
            "eval: nothing to evaluate", hint="Give checkpoints, or --predictions-in F."
        )
    if checkpoints and not labelled:
        raise UsageError("eval: --data is required", hint="Give --data D.")
    if arguments.ensemble and len(checkpoints or files) < 2:
        raise UsageError(
            "--ensemble requires two checkpoints, or two predictions files and no checkpoint"
        )
    for flag, is_given in (
        ("--cascade", arguments.cascade),
        ("--predictions", arguments.predictions is not None),
    ):
        if is_given and len(labelled) > 1:
            raise UsageError(f"{flag} requires one data set", hint="Give one --data.")
    if arguments.predictions is not None and len(checkpoints) > 1 and not arguments.ensemble:
        raise UsageError(
            "--predictions holds one model's logits",
            hint="Give one checkpoint, or several as A+B.",
        )
    if arguments.temperature == "fit" and files:
        raise UsageError(
            "--temperature fit: a predictions file has no validation set",
            hint="Give the temperature as a number.",
        )
    if arguments.temperature == "fit" and arguments.val is None:
        raise UsageError("--temperature fit requires --val", hint="Give --val D.")
    # What a predictions file may be asked for, it says itself.
    if checkpoints and arguments.ood_score not in (None, "all"):
        for kind in str(arguments.ood_score).split(","):
            check_score(kind)


def _check_assertions(assertions: Sequence[Assertion], arguments: EvaluateOptions) -> None:
    """Refuse limits of differences where none are measured."""
    for assertion in assertions:
        if assertion.path.startswith(DIFFERENCES) and arguments.ci is None:
            raise UsageError(
                f"--assert {assertion.text}: differences are measured with --ci",
                hint="Give --ci 0.95.",
            )


def _outputs(arguments: EvaluateOptions) -> dict[str, Any]:
    """Return the destination of each output, after checking that it can be written."""
    force, inputs = arguments.force, arguments.sources
    kinds = {"json": "json_", "predictions": "predictions", "html": "html", "markdown": "markdown"}
    outputs = {kind: getattr(arguments, name) for kind, name in kinds.items()}
    if Path(outputs["predictions"] or "").suffix == ".npz":
        message = f"--predictions {outputs['predictions']}: is written as .safetensors, not as .npz"
        raise UsageError(message, hint="Name a .safetensors file.")
    printed = [f"--{kind}" for kind, out in outputs.items() if out == STDOUT]
    if len(printed) > 1:
        raise UsageError(
            f"{' and '.join(printed)} cannot both go to stdout", hint="Name a file for one of them."
        )
    return {
        kind: out
        if out == STDOUT
        else output_file(out, option=f"--{kind}", force=force, inputs=inputs)
        for kind, out in outputs.items()
        if out is not None
    }


def _settings(
    labelled: Sequence[LabelledSet],
    deciding: Mapping[str, Checkpoint],
    files: Sequence[Row],
    arguments: EvaluateOptions,
) -> dict[str, Any]:
    """Return the settings of the report. `deciding` maps names to models that answer by their
    decision state.
    """
    decided = any(checkpoint.manifest.decision for checkpoint in deciding.values())
    decided = decided or any(row.decided for row in files)
    data: str | list[str] | None = None
    if len(labelled) == 1:
        data = portable(labelled[0].spec)
    elif labelled:
        data = [f"{labelled_set.name}={portable(labelled_set.spec)}" for labelled_set in labelled]
    temperature: object = arguments.temperature
    if temperature is None:
        temperature = "decision" if decided else 1.0
    settings: dict[str, Any] = {
        "data": data,
        "ood": [portable_entry(o) for o in arguments.ood],
        "shift": [portable_entry(s) for s in arguments.shift],
        "val": arguments.val and portable(arguments.val),
        "temperature": temperature,
        "ood_score": arguments.ood_score or ("decision" if decided else "msp"),
    }
    for name in ("ensemble", "limit", "seed", "dtype", "batch_size"):
        settings[name] = getattr(arguments, name)
    if arguments.cascade:
        settings["cascade"] = True
    if arguments.ci is not None:
        settings["ci"] = arguments.ci
    return settings
