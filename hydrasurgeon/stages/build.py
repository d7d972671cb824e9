"""build: what serves best within a budget: the model itself, a smaller one, the mean or a hydra."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydrasurgeon.building import built
from hydrasurgeon.building.body import Body
from hydrasurgeon.building.cost import Budget, parse_budgets
from hydrasurgeon.building.front import claim_front
from hydrasurgeon.building.making import WITH_OOD, check_enough, keys_of, laddered
from hydrasurgeon.building.members import recipe_of
from hydrasurgeon.building.table import Row
from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.checkpoints.reading import Single, open_single, undecided
from hydrasurgeon.checkpoints.writing import claim_checkpoint
from hydrasurgeon.criteria import criterion
from hydrasurgeon.data import Samples, fit_classes, open_data
from hydrasurgeon.decision.fitting import FEWEST_OOD, too_few_ood
from hydrasurgeon.errors import DataError, OutputError, SurgeryError, UsageError
from hydrasurgeon.files.atomic import claims, hold, make_folder, named, real
from hydrasurgeon.files.plots import check_plot
from hydrasurgeon.measuring.sets import apart
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.problems import problem_of
from hydrasurgeon.stages.fuse import fusable, with_common_names
from hydrasurgeon.surgery.cut import check_stock
from hydrasurgeon.surgery.means import check_common_start
from hydrasurgeon.tuning.recipes import load_recipe

FORMAT = "hydrasurgeon.build/1"
"""Format identifier of the JSON report."""
NO_CLASS = (
    "Leave out --stock; `export -o DIR/` writes a graph that clients run without code of ours."
)
"""What to do about models that their own library has no class for."""
FEWEST = 20
"""Samples of the validation set."""


@dataclass(frozen=True)
class Built:
    """What was decided, what it is worth next to the plain rivals, and where it was written."""

    path: Path | None
    """None: nothing was written."""
    objective: str
    work: Path
    rows: tuple[Row, ...] = ()
    """The plain rivals."""
    front: tuple[Row, ...] = ()
    """What is decided within each budget."""
    members: tuple[str, ...] = ()
    """Members of the last."""
    estimate: float = 0.0
    """The objective of the last, by the figures of its row."""
    script: str = ""
    plan: tuple[str, ...] = ()
    """The stages, what each took in forward passes, and the time on this machine."""
    summary: str = ""
    """All of it in one paragraph."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        path = None
        if self.path is not None:
            path = str(self.path)
        return {"format": FORMAT, **asdict(self), "path": path, "work": str(self.work)}


@stage(BuildOptions)
def build(options: BuildOptions) -> Built:
    """Choose members of one or several models, within a budget or several, and make what serves
    best.
    """
    budgets = parse_budgets(options.budget)
    _check(options, budgets)
    out, picture = _outputs(options, several=len(budgets) > 1)
    body = _body(options)
    if body is not None:
        options = _tuned(body)
    val = open_data(options.val, limit=options.limit, seed=options.seed)
    models = _opened(options, val)
    options = _for_numbers(models, options)
    sets, notes = _opened_data(models[0], val, options)
    with_mean = averaged(models)
    outcome = built(models, sets, options, budgets, out, picture, averaged=with_mean, body=body)
    if outcome is None:
        return Built(None, options.goal, options.work)
    notes = [*(opened.note for opened in models if opened.note), *notes]
    if len(models) > 1 and not with_mean:
        notes.append("the models share no start: their mean and its parts are left out")
    if options.calibrate:
        notes.append(
            "the decision state was fitted on --val, by which the members were chosen: run "
            "calibrate on fresh data for the full guarantee"
        )
    else:
        notes.append("the table is of calibrated models; --no-calibrate writes none: run calibrate")
    path: Path | None = out
    if options.dry_run:
        path = None
    return Built(
        path=path,
        objective=options.goal,
        work=options.work,
        rows=outcome.rows,
        front=outcome.front,
        members=tuple(member.label for member in outcome.last.entry.choice.members),
        estimate=outcome.last.entry.value,
        script=outcome.script,
        plan=outcome.plan,
        summary=outcome.summary,
        notes=tuple(dict.fromkeys(notes)),
    )


def averaged(models: Sequence[Single]) -> bool:
    """Whether they are several, and have a mean that is like them."""
    if len(models) == 1:
        return False
    try:
        check_common_start(models, list(models[0].weights), "--mean")
    except SurgeryError:
        return False
    return True


def _body(options: BuildOptions) -> Body | None:
    """The checkpoint, where it is one without a classifier."""
    first = undecided(open_single(options.checkpoints[0], arch=options.arch))
    bare = first.manifest.model.num_classes == 0 and not first.family.named_classes
    if bare and len(options.checkpoints) == 1:
        return Body(first, options)
    if options.seeds is not None:
        raise UsageError(
            "--seeds requires one body without a classifier",
            hint="Models that are tuned already need none.",
        )
    return None


def _tuned(body: Body) -> BuildOptions:
    """The same of models that are tuned from a body; what is wrong with the data is said before."""
    body.perform([body.probe])
    probe = body.options.but(checkpoints=(body.probe.out,))
    val = open_data(probe.val, limit=probe.limit, seed=probe.seed)
    _opened_data(_opened(probe, val)[0], val, probe)
    body.perform(body.tunings)
    # Models that are best left as they start are all the probe.
    made = {open_single(file).manifest.weights_sha256: file for file in reversed(body.models)}
    return body.options.but(checkpoints=tuple(reversed(made.values())), seeds=len(body.models))


def _opened(options: BuildOptions, val: Samples) -> list[Single]:
    """The models, of one architecture and with the same classes."""
    read = [undecided(open_single(path, arch=options.arch)) for path in options.checkpoints]
    models = with_common_names([classifying(opened, options, val) for opened in read])
    for opened in models:
        need_classes(opened.manifest, opened.path)
        if options.stock:
            check_stock(opened, opened.manifest, hint=NO_CLASS)
        if problem_of(opened.manifest.model).several and options.sees_ood:
            raise UsageError(
                f"--objective {options.goal} is not supported for multi-label models "
                f"({opened.name})",
                hint="Give --objective nll or acc; circuits may still see --ood.",
            )
    fusable(models)
    return models


def _for_numbers(models: Sequence[Single], options: BuildOptions) -> BuildOptions:
    """Models of numbers are chosen by their errors, others never are."""
    numbers = problem_of(models[0].manifest.model).name == "number"
    if numbers and options.objective is None:
        return options.but(objective="rmse")
    if numbers != (options.objective == "rmse"):
        raise UsageError(
            f"--objective {options.goal} is not for the problem of {models[0].name}",
            hint="Models of numbers are chosen by rmse, and no others.",
        )
    return options


def _check(options: BuildOptions, budgets: Sequence[Budget]) -> None:
    """Options that go together, before anything is read."""
    keys = keys_of(options)
    for key in keys:
        criterion(key, option="--criteria")
    wanting = [f"--criteria {key}" for key in keys if key in WITH_OOD]
    if options.sees_ood:
        wanting.insert(0, f"--objective {options.goal}")
    if wanting and not options.ood:
        hint = "Give --ood D, or --objective acc or nll, and circuit-acc among --criteria."
        raise UsageError(f"{wanting[0]} requires OOD data", hint=hint)
    if budgets[0].unit == "time" and keys:
        raise UsageError(
            f"--criteria conflicts with --budget {options.budget}",
            hint="Time is measured of members that are files, cut to sizes.",
        )
    if not keys and options.candidates != BuildOptions.model_fields["candidates"].default:
        raise UsageError(
            "--candidates requires --criteria for several models",
            hint="Members of several models are cut to sizes that fill the budgets.",
        )
    if not laddered(options, budgets):
        check_enough(options.wanted, options.candidates + 1)
    if options.tune is not None:
        load_recipe(recipe_of(options), {})


def _outputs(options: BuildOptions, *, several: bool) -> tuple[Path, Path | None]:
    """Output and picture; they and the work folder can be written."""
    picture, work = None, options.work
    if several:
        out = claim_front(options)
    else:
        (out, _) = named(options.out)
        if not options.dry_run:
            with claims():  # the command that writes it will hold it
                out = claim_checkpoint(options.out, force=options.force, inputs=options.sources)
    if options.plot is not None:
        picture = check_plot(Path(options.plot), force=options.force, inputs=options.sources)
    if work.is_symlink():
        raise OutputError(f"{work}: is a link", hint="Give another --cache.")
    if work.exists() and not work.is_dir():
        raise OutputError(f"{work}: is not a directory", hint="Give another --cache.")
    make_folder(work.parent)
    hold(real(work), option="--cache")
    return out, picture


def _opened_data(
    opened: Single, val: Samples, options: BuildOptions
) -> tuple[dict[str, list[Samples]], list[str]]:
    """What is read: training, validation and OOD data, all different; and what is odd about them."""
    model = opened.manifest.model
    read = partial(open_data, limit=options.limit, seed=options.seed)
    val = fit_classes(val, model)
    data = read(options.data, model=model)
    ood = [read(spec) for spec in options.ood]
    in_turn = [("--val", val), ("--data", data), *(("--ood", samples) for samples in ood)]
    notes = [samples.note for _, samples in in_turn if samples.note is not None]
    notes += apart(in_turn, "What members are chosen by must be neither trained on nor OOD data.")
    if len(val) < FEWEST:
        hint = f"A choice that two halves judge needs at least {FEWEST}."
        raise DataError(f"--val {options.val}: has {len(val)} samples", hint=hint)
    few = [too_few_ood(f"--ood {each.spec}", len(each)) for each in ood]
    ood = [samples for samples, note in zip(ood, few, strict=True) if note is None]
    notes += [note for note in few if note is not None]
    numbers = problem_of(model).name == "number"
    if numbers or problem_of(model).several:  # no score of a whole sample is measured
        ood = []
    if not ood and options.sees_ood and options.goal != "avg":
        hint = f"Give --ood data of {FEWEST_OOD} samples or more, or --objective nll."
        raise DataError(f"--objective {options.goal} requires OOD data", hint=hint)
    train = open_data(options.data, model=model, limit=options.score_limit, seed=options.seed)
    return {"data": [data], "val": [val], "ood": ood, "train": [train]}, notes
