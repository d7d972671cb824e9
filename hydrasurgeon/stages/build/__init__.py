"""build: the hydra that is worth most within a budget, chosen by measuring and made by the other commands."""

from __future__ import annotations

import shlex
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
from hydrasurgeon.stages.build.comparing import Choosing, Row, draw_front
from hydrasurgeon.stages.build.cost import parse_budgets
from hydrasurgeon.stages.build.making import Making
from hydrasurgeon.stages.build.search import WITH_FOREIGN, check_enough, keys_of, searched
from hydrasurgeon.stages.commands import script
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
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        path = None if self.path is None else str(self.path)
        return {"format": FORMAT, **asdict(self), "path": path, "work": str(self.work)}


@stage(BuildOptions)
def build(options: BuildOptions) -> Built:
    """Choose members of a checkpoint together, within a budget, and make the hydra of them."""
    _check(options)
    out, picture = _outputs(options)
    opened = undecided(open_single(options.checkpoint, arch=options.arch))
    opened = classifying(opened, options, options.val)
    need_classes(opened)
    sets, notes = _opened_data(opened, options)
    with joined() as world:  # once: processes that part cannot meet again
        search = searched(opened, sets, options)
        world.gather(None)
    if not world.is_main:
        return Built(None, options.goal, options.work)
    choosing = Choosing(search, options)
    choices = [(budget, *choosing.within(budget)) for budget in parse_budgets(options.budget)]
    budget, choice, judged = choices[-1]
    making = Making(search, options, choice.members, out)
    rows, last, tuned = choosing.references(), choosing.row("what was built", choice, judged), False
    if options.tune is not None:
        more, tuned = making.tuned(choosing, budget)
        rows += [*more, replace(last, name="the choice, not tuned")]
        last = replace(more[-1], name="what was built") if tuned else last
    front = tuple(choosing.row(str(budget), choice, judged) for budget, choice, judged in choices)
    if picture is not None:
        draw_front([*rows, last], front, budget.unit, picture)
    commands, work = making.commands(tuned=tuned), options.work
    if not options.dry_run:
        for command in commands:
            making.make(command)
    lines = [f"work=${{WORK:-{shlex.quote(work.name)}.again}}", 'mkdir -p "$work"']
    lines += [command.line(work, "work") for command in (*search.commands, *commands)]
    chosen_by = "the decision state was fitted on --val, by which the members were chosen"
    refit = [f"{chosen_by}: run calibrate on fresh data for the full guarantee"] if options.calibrate else []
    return Built(
        path=None if options.dry_run else out,
        objective=options.goal,
        work=work,
        rows=(*rows, last),
        front=front,
        members=tuple(search.candidates[i].label for i in choice.members),
        estimate=judged.value,
        optimism=judged.optimism,
        script=script(f"Makes {out.name}.", lines),
        notes=(*([opened.note] if opened.note else []), *notes, *making.notes, *refit),
    )


def _check(options: BuildOptions) -> None:
    """Options that go together, before anything is read."""
    keys = keys_of(options)
    for key in keys:
        criterion(key, option="--criteria")
    wanting = [f"--objective {options.goal}"] if options.goal not in ("acc", "nll") else []
    wanting += [f"--criteria {key}" for key in keys if key in WITH_FOREIGN]
    if wanting and not options.ood:
        hint = "Give --ood D, or --objective acc or nll, and circuit-acc among --criteria."
        raise UsageError(f"{wanting[0]}: requires OOD data", hint=hint)
    check_enough(options.wanted, options.candidates + 1)
    if options.tune is not None:
        load_recipe(options.tune, {})
    parse_budgets(options.budget)


def _outputs(options: BuildOptions) -> tuple[Path, Path | None]:
    """Output and picture; they and the work folder can be written."""
    (out, _), picture, work = named(options.out), None, options.work
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


def _opened_data(opened: Single, options: BuildOptions) -> tuple[dict[str, list[Samples]], list[str]]:
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
