"""build: what serves best within a budget: the model itself, a smaller one, the mean or a hydra."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydrasurgeon.building.answers import AnswerStore
from hydrasurgeon.building.budgets import Budget, parse_budgets
from hydrasurgeon.building.clock import Clock
from hydrasurgeon.building.dry_run import commands_ahead
from hydrasurgeon.building.front import Front, claim_front, name_of
from hydrasurgeon.building.members import (
    QUICK,
    SCORED,
    SEEDS,
    given_models,
    is_large,
    probe_of,
)
from hydrasurgeon.building.one_table import judged_rows, unjudged_note, with_val
from hydrasurgeon.building.plan import Plan, seconds_of_a_pass, steps_of
from hydrasurgeon.building.search_space import SearchSpace, averaged
from hydrasurgeon.building.suspects import LabelCheck, Suspects, can_be_judged
from hydrasurgeon.building.table import TableRow
from hydrasurgeon.building.work import STATE, Workshop, WorkState, unfinished
from hydrasurgeon.checkpoints.checkpoint import Single, open_single, undecided
from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.checkpoints.writing import claim_checkpoint
from hydrasurgeon.data import Samples, fit_classes, fit_held_out, read_data
from hydrasurgeon.data.label_check import (
    class_counts,
    collecting,
    label_notes,
    new_class_errors,
    raise_all,
    text_errors,
)
from hydrasurgeon.data.matching import check_class_names
from hydrasurgeon.data.perturbed import Perturbed
from hydrasurgeon.data.samples import left_out_note, part_of
from hydrasurgeon.decision.fitting import FEWEST_OOD, check_count, too_few_ood
from hydrasurgeon.decision.split import check_crossed
from hydrasurgeon.errors import CheckFailed, DataError, OutputError, UsageError
from hydrasurgeon.files.atomic import claims, hold, make_folder, named, real
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.files.torchrun import process_count
from hydrasurgeon.measuring.known import certifying
from hydrasurgeon.measuring.sets import overlap_notes
from hydrasurgeon.memo import sharing
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.column_roles import SPLIT, DataSpec
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.options.making import THIRD, BuildOptions
from hydrasurgeon.stages.fuse import fusable, with_common_names
from hydrasurgeon.tasks import task_of
from hydrasurgeon.tasks.base import Task, need_feature
from hydrasurgeon.tuning.recipes import load_recipe
from hydrasurgeon.tuning.start import model_to_tune

FORMAT = "hydrasurgeon.build/1"
"""Format identifier of the JSON report."""
FEWEST = 20
"""Minimum number of validation rows."""
CLOCK = 15.0
"""Seconds that it takes, about, to write the graphs of a model and time them."""


@dataclass(frozen=True)
class Built:
    """The chosen models, their worth beside the baselines, and the files they were written to."""

    path: Path | None
    """None: nothing was written."""
    objective: str
    work: Path
    rows: tuple[TableRow, ...] = ()
    """The plain rivals."""
    front: tuple[TableRow, ...] = ()
    """The chosen model of each budget."""
    members: tuple[str, ...] = ()
    """Members of the last."""
    estimate: float = 0.0
    """The objective of the last, by the figures of its row."""
    plan: tuple[str, ...] = ()
    """The stages, and what each takes on this machine."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Commands of each stage, with --dry-run."""
    recommendation: str = ""
    """One sentence on the file to use."""
    summary: str = ""
    """All of it in one paragraph."""
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    """True if a signal ended it, with the best so far."""
    suspects: Suspects | None = None
    """Rows whose label looks wrong; None if labels were not judged."""
    unpromised: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Budgets whose file does not keep --risk; why, and what to do."""

    def require(self) -> None:
        """Raise what a signal raises, or that a promise is not kept, after the best was shown."""
        if self.interrupted:
            raise KeyboardInterrupt
        if self.unpromised:
            (_, hint), *_ = self.unpromised.values()
            raise CheckFailed(f"--risk: not promised by {', '.join(self.unpromised)}", hint=hint)

    def to_json(self) -> dict[str, Any]:
        path = None if self.path is None else str(self.path)
        suspects = None if self.suspects is None else self.suspects.to_json()
        places = {"path": path, "work": str(self.work)}
        return {"format": FORMAT, **asdict(self), **places, "suspects": suspects}


@stage(BuildOptions)
@sharing()
def build(options: BuildOptions) -> Built:
    """Choose members of one or several models, within a budget or several, and write what serves
    best as soon as there is something.
    """
    budgets = parse_budgets(options.budget)
    _check(options)
    out, is_unfinished = _output(options, several=len(budgets) > 1)
    inputs = _inputs(options)
    options = inputs.options
    for line in inputs.lines():
        options.note(line)
    plan = _plan(inputs, budgets)
    if options.dry_run:
        return _dry_run(inputs, budgets, plan)
    for line in plan.lines:
        options.note(line)
    search = _search(inputs, budgets, plan)
    front = Front(search, out, force=options.force, is_unfinished=is_unfinished)
    ended = front.run()
    of_models = [model.note for model in inputs.models]
    # What is new stands before what was said at the start, as few notes are printed.
    return _built(inputs, front, [ended, *_notes(inputs, front), *of_models, *inputs.notes])


@dataclass
class BuildInputs:
    """Models and data that a build begins with, checked."""

    options: BuildOptions
    """With the objective and the validation rows filled in."""
    models: list[Single]
    model: Model
    """Description of the first model; of a body, of what it becomes."""
    is_body: bool
    """True for one model without a classifier."""
    rows: Samples
    """Rows whose labels can be judged: held-out rows too."""
    val: Samples
    """Validation rows, those that certify too."""
    sets: dict[str, list[Samples]]
    """Training, validation and OOD data of the search."""
    notes: list[str]
    parted: str | None
    """Sentence on how the one table was split; None if it was not."""

    @property
    def task(self) -> Task:
        """The task of every model."""
        return task_of(self.model)

    @property
    def judges_labels(self) -> bool:
        """True if labels that look wrong are listed."""
        return can_be_judged(self.task, self.rows)

    def lines(self) -> Iterator[str]:
        """Yield what is told before the work begins."""
        data, options = self.sets["data"][0], self.options
        if self.parted is not None:
            yield self.parted
        for note in self.notes:
            yield f"note: {note}"
        labelled = [data] if options.crossed else [data, self.val]
        yield from filter(None, map(class_counts, labelled))
        yield _rows(data, self.sets["val"][0], len(self.val), options)
        if self.is_body and is_large(data, options):
            yield (
                f"the first probe reads {QUICK:,} rows, chosen by a hash of their content; the "
                "bag-of-words model reads all, later stages read more"
            )


def _inputs(options: BuildOptions) -> BuildInputs:
    """Open the models, read the data, and check that they suit each other."""
    body, spec = _body(options), options.data
    options, parted = with_val(
        options, lambda: read_data(options.data, options), body=body is not None
    )
    rows = data = read_data(options.data, options)
    if options.data != spec:  # held-out rows may have wrong labels too
        rows = read_data(spec, options)
    val = data if options.crossed else read_data(str(options.val), options)
    notes = [left_out_note(samples) for samples in (data, val)]
    if body is None:
        models = _opened(options, val)
        model = models[0].manifest.model
        data, val = _labelled(model, data, val, options)
    else:
        models = [classifying(body, options)]
        model, data, val = _of_data(body.manifest.model, data, val, options)
    options = _for_numbers(model, models[0].name, options)
    if options.crossed:
        val = judged_rows(data)
    if options.crossed or parted is not None:
        notes += unjudged_note(data, val)
    for opened in models:  # calibrate would refuse, or leave out, the same after the work
        if options.crossed:
            certifying(val, opened.manifest.history, "--data")
            continue
        val, of_val = certifying(val, opened.manifest.history, "--val", fitted=("--data", data))
        notes += of_val
    sets, more = _checked_sets(model, models[0].name, data, val, options)
    return BuildInputs(
        options=options,
        models=models,
        model=model,
        is_body=body is not None,
        rows=rows,
        val=val,
        sets=sets,
        notes=[*dict.fromkeys(filter(None, [*notes, *more]))],
        parted=parted,
    )


def _dry_run(inputs: BuildInputs, budgets: Sequence[Budget], plan: Plan) -> Built:
    """Return the stages and their commands."""
    options = inputs.options
    commands = commands_ahead(
        plan.steps, options, budgets, inputs.models, inputs.sets["val"][0], is_body=inputs.is_body
    )
    return Built(
        None,
        options.goal,
        options.work,
        plan=plan.lines,
        commands=commands,
        notes=tuple(inputs.notes),
    )


def _notes(inputs: BuildInputs, front: Front) -> Iterator[str]:
    """Yield notes on the result."""
    options = inputs.options
    if len(inputs.models) > 1 and not averaged(inputs.models):
        yield "the models share no start, so they have no mean"
    if front.suspects is not None:
        yield front.suspects.note
    for budget, (why, _) in front.unpromised.items():
        yield f"{budget}: written without {why}"
    if options.crossed and options.without is not None:
        yield "figures leave out the rows that --without lists, so rows to come will give worse ones"
    if options.crossed:
        yield (
            "figures and thresholds are estimates of five folds: the file promises nothing; --val 0.2 "
            "holds rows out that certify"
        )
    elif options.certifying is None:
        yield (
            "the validation rows chose the model and fitted its decision state: run calibrate "
            "on fresh data for the full guarantee"
        )


def _built(inputs: BuildInputs, front: Front, notes: Iterable[str | None]) -> Built:
    """Return the result of a front that has ended."""
    options, plan = inputs.options, front.search.plan
    *_, last = front.rungs.values()
    return Built(
        path=front.out,
        objective=options.goal,
        work=options.work,
        rows=tuple(rung.row(rung.choice.name) for rung in front.references),
        front=tuple(rung.row(name_of(budget, rung)) for budget, rung in front.rungs.items()),
        members=tuple(member.label for member in last.choice.members),
        estimate=last.value,
        plan=plan.lines,
        recommendation=front.recommendation(),
        summary=front.summary(),
        notes=tuple(dict.fromkeys(filter(None, notes))),
        interrupted=plan.interrupted,
        suspects=front.suspects,
        unpromised={str(budget): why for budget, why in front.unpromised.items()},
    )


def _rows(data: Samples, chosen: Samples, count: int, options: BuildOptions) -> str:
    """Say how many rows are for what; `count` is the number of validation rows."""
    if options.crossed:
        return f"{len(data):,} training rows; {count:,} of them are judged by models of other folds"
    rows = f"{len(data):,} training rows, {count:,} validation rows"
    if len(chosen) == count:
        return rows
    return f"{rows}: {len(chosen):,} choose, promises are certified on {count - len(chosen):,}"


def _plan(inputs: BuildInputs, budgets: Sequence[Budget]) -> Plan:
    """Plan the stages of the command, with the time of each."""
    options, is_body = inputs.options, inputs.is_body
    timed = budgets[0].unit == "time"
    models = (options.seeds or SEEDS) if is_body else len(options.checkpoints)
    if options.crossed:  # what trains longer than a linear fit is not trained for each fold
        is_body, models = False, 1
    # A budget above one is filled by several smaller models, where there are several.
    sizes = sum(1 + timed for budget in budgets if budget.most < 1 or models > 1)
    steps = steps_of(
        options,
        inputs.sets,
        len(budgets),
        timed=CLOCK * timed,
        body=is_body,
        models=models,
        sizes=0 if options.crossed else sizes,
        judged=0 if options.crossed else len(inputs.rows) * inputs.judges_labels,
    )
    seconds = seconds_of_a_pass(inputs.models[0], inputs.sets["val"][0], options)
    return Plan(steps, seconds, options.progress, options.max_minutes)


def _search(inputs: BuildInputs, budgets: Sequence[Budget], plan: Plan) -> SearchSpace:
    """Return the search space, with the probe of a body; the work folder is open then."""
    options, sets, val = inputs.options, inputs.sets, inputs.sets["val"][0]
    state = WorkState(options.work / STATE, _identity(inputs.models, sets, options))
    workshop = Workshop(options, plan.tick)
    label_check = None
    if inputs.judges_labels:
        fitted = fit_classes(inputs.rows, inputs.model)
        label_check = LabelCheck(inputs.rows, fitted, options, state, inputs.task)
    probe, models = None, inputs.models
    if inputs.is_body:
        _open(state)
        rows = QUICK if is_large(sets["data"][0], options) else None
        probe = probe_of(options.paths[0], options, rows=rows)
        plan.begin("quick")
        with plan.moving():
            workshop.make(probe.making)
        models = _opened(options.but(checkpoints=(probe.file,)), inputs.val)
    first = models[0]
    train = read_data(options.data, options.but(limit=SCORED), model=first.manifest.model)
    ood = [*sets["ood"]]
    if ood:  # those given are of one kind: what is chosen by them alone may tell no other
        ood.append(Perturbed(val, options.seed))
    crossed = sets["data"][0] if options.crossed else None
    search = SearchSpace(
        options=options,
        budgets=budgets,
        opened=first,
        models=given_models(options) if probe is None else [],
        answer_store=AnswerStore(val, ood, train, inputs.task, options, plan.tick, crossed),
        data=sets["data"][0],
        workshop=workshop,
        plan=plan,
        state=state,
        clock=Clock(first, val, options, state) if budgets[0].unit == "time" else None,
        probe=probe,
        label_check=label_check,
    )
    search.check(models)
    if not inputs.is_body:  # what is refused leaves no folder
        _open(state)
    return search


def _open(state: WorkState) -> None:
    """Make the work folder, or go on in it."""
    make_folder(state.path.parent)
    state.open()


def _body(options: BuildOptions) -> Single | None:
    """Return the checkpoint if it is a body without a classifier, else None."""
    first = undecided(open_single(options.checkpoints[0], arch=options.arch))
    bare = first.manifest.model.num_classes == 0 and not first.family.named_classes
    if bare and len(options.checkpoints) == 1:
        return first
    if options.seeds is not None:
        raise UsageError(
            "--seeds requires one model without a classifier",
            hint="It is only for models without a classifier.",
        )
    return None


def _opened(options: BuildOptions, val: Samples) -> list[Single]:
    """Open the models and check that they share an architecture and classes."""
    read = [undecided(open_single(path, arch=options.arch)) for path in options.checkpoints]
    models = with_common_names([classifying(opened, options, val) for opened in read])
    for opened in models:
        need_classes(opened.manifest, opened.path)
        check_class_names(opened.path, opened.manifest.model.labels)
        if options.sees_ood:
            need_feature(task_of(opened.manifest.model), "--objective ood", opened.name, UsageError)
    fusable(models)
    return models


def _labelled(
    model: Model, data: Samples, val: Samples, options: BuildOptions
) -> tuple[Samples, Samples]:
    """Return both sets with the model's classes; all that is wrong with them is one error."""
    errors = list[DataError]()
    for samples in (data, val):
        errors += text_errors(samples, skip_bad=options.skip_bad)
    with collecting(errors):
        data = fit_classes(data, model)
    with collecting(errors):
        val = fit_classes(val, model)
    raise_all(errors)
    return data, val


def _of_data(
    body: Model, data: Samples, val: Samples, options: BuildOptions
) -> tuple[Model, Samples, Samples]:
    """Return what a body becomes that learns from TRAIN, and both sets with its classes; all that is
    wrong with them is one error.
    """
    errors = new_class_errors(data, val)
    for samples in (data, val):
        errors += text_errors(samples, skip_bad=options.skip_bad)
    raise_all(errors)
    model = model_to_tune(body, load_recipe("probe", {}), data)
    data = fit_classes(data, model)
    model = model.model_copy(update={"labels": data.classes})
    return model, data, fit_held_out(val, model)


def _for_numbers(model: Model, name: object, options: BuildOptions) -> BuildOptions:
    """Return the options with an objective that suits the model: rmse for numbers alone."""
    numbers = task_of(model).link == "square"
    if numbers and options.objective is None:
        return options.but(objective="rmse")
    if numbers != (options.objective == "rmse"):
        raise UsageError(
            f"--objective {options.goal} is not supported for {name}",
            hint="Regression models are chosen by rmse, all others by another metric.",
        )
    return options


def _check(options: BuildOptions) -> None:
    """Raise UsageError for options that do not go together, before any file is read."""
    if options.sees_ood and not options.ood:
        hint = "Give --ood D, or --objective acc or nll."
        raise UsageError(f"--objective {options.goal} requires OOD data", hint=hint)
    if process_count() > 1:
        raise UsageError(
            "build cannot run in several processes",
            hint="Tune the models with torchrun -m hydrasurgeon finetune, then build from them.",
        )


def _output(options: BuildOptions, *, several: bool) -> tuple[Path, bool]:
    """Claim the output and the work folder. Return the output path, and True if an earlier run of
    this build left what lies there.
    """
    work = options.work
    is_unfinished = unfinished(options)
    if several:
        out = claim_front(options, force=options.force or is_unfinished)
    else:
        (out, _) = named(options.out)
        if not options.dry_run:
            with claims():  # the command that writes it will hold it
                force = options.force or is_unfinished
                out = claim_checkpoint(options.out, force=force, inputs=options.sources)
    if work.is_symlink():
        raise OutputError(f"{work}: is a link", hint="Give another --cache.")
    if work.exists() and not work.is_dir():
        raise OutputError(f"{work}: is not a directory", hint="Give another --cache.")
    make_folder(work.parent)
    hold(real(work), option="--cache")
    return out, is_unfinished


def _checked_sets(
    model: Model, name: str, data: Samples, val: Samples, options: BuildOptions
) -> tuple[dict[str, list[Samples]], list[str]]:
    """Return the training, validation and OOD data, and notes on what is odd about them. The sets
    must not overlap.
    """
    ood = [read_data(spec, options, labelled=False) for spec in options.ood]
    in_turn = [("--data", data), *(("--ood", samples) for samples in ood)]
    if not options.crossed:
        in_turn.insert(0, ("--val", val))
    notes = [samples.note for _, samples in in_turn if samples.note is not None]
    for _, samples in in_turn[: 1 if options.crossed else 2]:
        notes += label_notes(samples)
    notes += overlap_notes(
        in_turn,
        "Validation rows must not occur in --data or --ood: split your table, for example 80/20.",
    )
    chosen = val
    if options.certifying is not None:
        if options.risk is not None:
            need_feature(task_of(model), "--risk", name, UsageError)
        chosen = part_of(val, f"0-{THIRD}")
    if options.crossed:
        check_crossed(len(val))
    elif len(chosen) < FEWEST:
        needed, hint = FEWEST, "One half of them judges what the other half chose."
        if chosen is not val:
            needed = math.ceil(100 * FEWEST / THIRD)
            hint = (
                f"{FEWEST} of {needed} choose; the others only certify the promise. "
                f"Without --risk and --coverage, {FEWEST} rows are enough."
            )
        elif SPLIT in DataSpec.parse(str(options.val)).columns:
            hint += " Where rows are few, --val cross takes five folds of all of them."
        message = f"--val {options.val}: has {len(val)} rows; at least {needed} are needed"
        raise DataError(message, hint=hint)
    if chosen is not val:
        promise = CalibrateOptions.model_construct(risk=options.risk)
        if options.coverage is not None:
            promise = promise.but(coverage=options.coverage)
        try:
            check_count(len(val), promise, task_of(model), fitting=len(chosen))
        except DataError as error:
            hint = (error.hint or "").replace("--data", "--val")
            raise DataError(f"--val {options.val}: {error.message}", hint=hint) from error
    few = [too_few_ood(f"--ood {samples.spec}", len(samples)) for samples in ood]
    ood = [samples for samples, note in zip(ood, few, strict=True) if note is None]
    notes += [note for note in few if note is not None]
    if "--objective ood" in task_of(model).lacks:
        ood = []
    if not ood and options.sees_ood and options.goal != "avg":
        hint = f"Give --ood data of {FEWEST_OOD} samples or more, or --objective nll."
        raise DataError(f"--objective {options.goal} requires OOD data", hint=hint)
    return {"data": [data], "val": [chosen], "ood": ood}, notes


def _identity(
    models: Sequence[Single], sets: Mapping[str, Sequence[Samples]], options: BuildOptions
) -> dict[str, Any]:
    """Return the facts that must be unchanged for a work folder to be reused."""

    def content(samples: Samples) -> str:
        record = samples.fingerprint()
        return f"{record['rows']} rows {record['sha256'][:12]}"

    weights: dict[str, str] = {}
    for path, opened in zip(options.checkpoints, models, strict=True):
        sha256 = opened.record(opened.digests()).sha256
        for other, digest in weights.items():
            if digest == sha256:
                hint = "Give each model once: several are fine-tunings of their own."
                raise UsageError(f"{path}: has the weights of {other}", hint=hint)
        weights[str(path)] = sha256
    data = {name: [content(samples) for samples in sets[name]] for name in ("data", "val", "ood")}
    plain = ("limit", "seed", "seeds", "dtype", "batch_size", "skip_bad")
    classes = None if options.classes is None else Path(str(options.classes)).name
    return {
        "weights": [*weights.values()],
        **{name.replace("_", " "): getattr(options, name) for name in plain},
        "classes": classes,
        "template": [Path(str(template)).name for template in options.template],
        **data,
    }
