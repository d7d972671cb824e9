"""build: the hydra that is worth most within a budget, chosen by measuring and made by the other
commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.checkpoints.reading import Single, open_single, undecided
from hydrasurgeon.checkpoints.writing import claim_checkpoint
from hydrasurgeon.criteria import criterion
from hydrasurgeon.data import Samples, open_data
from hydrasurgeon.errors import DataError, OutputError, UsageError
from hydrasurgeon.files.atomic import claims, hold, make_folder, named, real
from hydrasurgeon.files.plots import check_plot
from hydrasurgeon.measuring.sets import apart
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.processes import joined
from hydrasurgeon.stages.build.choice import Choice
from hydrasurgeon.stages.build.comparing import Choosing, Row, crossed, draw_front
from hydrasurgeon.stages.build.cost import Budget, parse_budgets
from hydrasurgeon.stages.build.front import (
    claim_front,
    makings_of,
    rows_of,
    rungs,
    taught,
    write_front,
)
from hydrasurgeon.stages.build.ladder import laddered
from hydrasurgeon.stages.build.making import Making
from hydrasurgeon.stages.build.search import WITH_FOREIGN, check_enough, keys_of, searched
from hydrasurgeon.stages.build.summary import answers_of, summary_of
from hydrasurgeon.stages.commands import Command, script
from hydrasurgeon.stages.fuse import fusable, with_common_names
from hydrasurgeon.tuning.recipes import load_recipe

FORMAT = "hydrasurgeon.build/1"
"""Format identifier of the JSON report."""
FEWEST = 20
"""Validation samples."""


@dataclass(frozen=True)
class Built:
    """What was chosen, what it is worth beside the others, and where it was written."""

    path: Path | None
    """None: nothing was written."""
    objective: str
    work: Path
    rows: tuple[Row, ...] = ()
    front: tuple[Row, ...] = ()
    """What is worth most within each budget."""
    members: tuple[str, ...] = ()
    """How the members are pruned."""
    estimate: float = 0.0
    optimism: float = 0.0
    """How much more the choice looked to be worth on the samples it was made on."""
    script: str = ""
    plan: tuple[str, ...] = ()
    """The stages, what each took in forward passes, and the time on this machine."""
    summary: str = ""
    """All of it in one paragraph."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        path = None if self.path is None else str(self.path)
        return {"format": FORMAT, **asdict(self), "path": path, "work": str(self.work)}


@stage(BuildOptions)
def build(options: BuildOptions) -> Built:
    """Choose members of one or several models, within a budget or several, and make what is worth
    most.
    """
    budgets = _check(options)
    out, picture = _outputs(options, several=len(budgets) > 1)
    models = _opened(options)
    sets, notes = _opened_data(models[0], options)
    with joined() as world:  # once: processes that part cannot meet again
        search = searched(models, sets, options)
        world.gather(None)
    if not world.is_main:
        return Built(None, options.goal, options.work)
    options = search.cache.options  # its progress tells the stages
    choosing = Choosing(search, options)
    climbed = rungs(choosing, budgets)
    search.plan.begin(-1 if options.tune is None else -2)
    if search.ladder is not None and options.tune is not None:
        choosing = Choosing(taught(search, climbed, options), options)
        climbed = rungs(choosing, budgets)
    making = Making(choosing.search, options, climbed[-1].choice.members, out)
    rows, front, tuned = choosing.references(), rows_of(choosing, climbed), False
    last = replace(front[-1], name="what was built")
    if search.ladder is None and options.tune is not None:
        more, tuned = making.tuned(choosing, budgets[-1])
        rows += [*more, replace(last, name="the choice, not tuned")]
        last = replace(more[-1], name="what was built") if tuned else last
    answered = answers_of(choosing, climbed)
    answered[-1] = crossed(making.answers, making.answers) if tuned else answered[-1]
    rival = crossed(*choosing.halves(Choice((0,), 0.0)))
    summary = summary_of([last] if len(budgets) == 1 else front, answered, rival, budgets, options)
    search.plan.begin(-1)
    makings = [making] if len(budgets) == 1 else makings_of(choosing.search, climbed, options)
    plans = [each.commands(tuned=tuned) for each in makings]
    if not options.dry_run:
        for each, commands in zip(makings, plans, strict=True):
            for command in commands:
                each.make(command)
        if len(budgets) > 1:
            write_front(out, climbed, [each.out for each in makings], choosing, rows)
    if len(budgets) == 1:
        rows.append(last)
    if picture is not None:
        draw_front(rows, front, budgets[-1].unit, picture)
    places = [out] if len(budgets) == 1 else [out / rung.name for rung in climbed]
    chosen_by = "the decision state was fitted on --val, by which the members were chosen"
    refit = (
        [f"{chosen_by}: run calibrate on fresh data for the full guarantee"]
        if options.calibrate
        else []
    )
    said = [
        *(each.note for each in models if each.note),
        *notes,
        *(note for each in makings for note in each.notes),
    ]
    return Built(
        path=None if options.dry_run else out,
        objective=options.goal,
        work=options.work,
        rows=tuple(rows),
        front=front,
        members=tuple(choosing.search.label(i) for i in climbed[-1].choice.members),
        estimate=climbed[-1].judged.value,
        optimism=climbed[-1].judged.optimism,
        script=_script(choosing.search.commands, plans, places, options),
        notes=(*dict.fromkeys(said), *refit),
        plan=search.plan.lines,
        summary=summary,
    )


def _script(
    scorings: Sequence[Command],
    plans: Sequence[Sequence[Command]],
    places: Sequence[Path],
    options: BuildOptions,
) -> str:
    """The commands that make every output, each once."""
    commands = [*scorings]
    for plan, place in zip(plans, places, strict=True):
        commands += [*plan[:-1], replace(plan[-1], out=place)]
    out = named(options.out)[0] if len(places) == 1 else places[0].parent
    first = [f"work=${{WORK:-{shlex.quote(options.work.name)}.again}}", 'mkdir -p "$work"']
    first += [f"mkdir -p {shlex.quote(str(out))}"] if len(places) > 1 else []
    lines = [command.line(options.work, "work") for command in commands]
    return script(f"Makes {out.name}.", [*first, *dict.fromkeys(lines)])


def _opened(options: BuildOptions) -> list[Single]:
    """The models, of one architecture and with the same classes."""
    read = [undecided(open_single(path, arch=options.arch)) for path in options.checkpoints]
    models = with_common_names([classifying(opened, options, options.val) for opened in read])
    for opened in models:
        need_classes(opened.manifest, opened.path)
        if opened.manifest.model.problem == "multi_label" and options.goal not in ("acc", "nll"):
            what = (
                f"--objective {options.goal}: {opened.name} has many labels, and OOD data "
                "choose no members of such"
            )
            raise UsageError(
                what, hint="Give --objective nll or acc; circuits may still see --ood."
            )
    fusable(models)
    return models


def _check(options: BuildOptions) -> list[Budget]:
    """The budgets; options that go together, before anything is read."""
    keys = keys_of(options)
    for key in keys:
        criterion(key, option="--criteria")
    wanting = [f"--objective {options.goal}"] if options.goal not in ("acc", "nll") else []
    wanting += [f"--criteria {key}" for key in keys if key in WITH_FOREIGN]
    if wanting and not options.ood:
        hint = "Give --ood D, or --objective acc or nll, and circuit-acc among --criteria."
        raise UsageError(f"{wanting[0]}: requires OOD data", hint=hint)
    if not laddered(options):
        check_enough(options.wanted, options.candidates + 1)
    if options.tune not in (None, "auto"):
        load_recipe(str(options.tune), {})
    return parse_budgets(options.budget)


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
    if work.exists() and not work.is_dir():
        raise OutputError(f"{work}: is not a directory", hint="Give another --cache.")
    make_folder(work.parent)
    hold(real(work), option="--cache")
    return out, picture


def _opened_data(
    opened: Single, options: BuildOptions
) -> tuple[dict[str, list[Samples]], list[str]]:
    """What is read: training, validation and OOD data, all different; and what is odd about them."""
    read = partial(open_data, limit=options.limit, seed=options.seed)
    data, val = (read(spec, model=opened.manifest.model) for spec in (options.data, options.val))
    foreign = [read(spec) for spec in options.ood]
    in_turn = [("--val", val), ("--data", data), *(("--ood", samples) for samples in foreign)]
    notes = [samples.note for _, samples in in_turn if samples.note is not None]
    notes += apart(in_turn, "What members are chosen by must be neither trained on nor OOD data.")
    if len(val) < FEWEST:
        hint = f"A choice that two halves judge needs at least {FEWEST}."
        raise DataError(f"--val {options.val}: has {len(val)} samples", hint=hint)
    return {"data": [data], "val": [val], "ood": foreign}, notes
