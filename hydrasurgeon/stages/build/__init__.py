"""build: the hydra that is worth most within a budget, chosen by measuring and made by the other commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.class_names import names_in, with_class_names
from hydrasurgeon.checkpoints.reading import Single, open_single, undecided
from hydrasurgeon.checkpoints.writing import claim_checkpoint
from hydrasurgeon.criteria import criterion
from hydrasurgeon.data import Samples, open_data
from hydrasurgeon.errors import CheckpointError, DataError, OutputError, UsageError
from hydrasurgeon.files.atomic import claims, hold, make_folder, named, real
from hydrasurgeon.files.plots import check_plot
from hydrasurgeon.measuring.sets import apart
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.processes import joined
from hydrasurgeon.stages.build.choice import Choosing, Row, draw_front
from hydrasurgeon.stages.commands import Command, script
from hydrasurgeon.stages.build.cost import parse_budgets
from hydrasurgeon.stages.build.making import REFIT, Making
from hydrasurgeon.stages.build.search import WITH_FOREIGN, Search, check_enough, keys_of, searched
from hydrasurgeon.stages.build.together import needs_foreign, objective_of
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
    rows: tuple[Row, ...]
    front: tuple[Row, ...]
    """What is worth most within each budget."""
    members: tuple[str, ...]
    """How the members are pruned."""
    objective: str
    estimate: float
    optimism: float
    """How much more the choice looked to be worth on the samples it was made on."""
    script: str
    work: Path
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "path": None if self.path is None else str(self.path),
            "objective": self.objective,
            "estimate": self.estimate,
            "optimism": self.optimism,
            "members": list(self.members),
            "rows": [row.to_json() for row in self.rows],
            "front": [row.to_json() for row in self.front],
            "work": str(self.work),
            "script": self.script,
            "notes": list(self.notes),
        }


@stage(BuildOptions)
def build(options: BuildOptions) -> Built:
    """Choose members of a checkpoint together, within a budget, and make the hydra of them."""
    _check(options)
    out, picture = _outputs(options)
    opened = _opened(options)
    sets, odd = _opened_data(opened, options)
    with joined() as world:  # once: processes that part cannot meet again
        search = searched(opened, sets, options)
        world.gather(None)
    if not world.is_main:
        return Built(None, (), (), (), options.goal, 0.0, 0.0, "", options.work)
    built, commands = _chosen(search, options, out)
    if picture is not None:
        draw_front(built.rows, built.front, parse_budgets(options.budget)[0].unit, picture)
    if not options.dry_run:
        _make(commands, out, options)
    notes = (*([opened.note] if opened.note else []), *odd, *built.notes)
    return replace(built, path=None if options.dry_run else out, notes=notes)


def _chosen(search: Search, options: BuildOptions, out: Path) -> tuple[Built, list[Command]]:
    """Choose for every budget, compare with what could be had otherwise, and plan how it is made."""
    choosing = Choosing(search, options)
    choices = [(budget, *choosing.within(budget)) for budget in parse_budgets(options.budget)]
    budget, choice, judged = choices[-1]
    making = Making(search, options, choice.members, out)
    rows, last = choosing.references(), choosing.row("what was built", choice, judged)
    tuned = False
    if options.tune is not None:
        more, tuned = making.tuned(choosing, budget)
        rows += [*more, replace(last, name="the choice, not tuned")]
        last = replace(more[-1], name="what was built") if tuned else last
    commands, work = making.commands(tuned=tuned), options.work
    lines = [f"work=${{WORK:-{shlex.quote(work.name)}.again}}", 'mkdir -p "$work"']
    lines += [command.line(work, "work") for command in (*search.commands, *commands)]
    built = Built(
        path=out,
        rows=(*rows, last),
        front=tuple(choosing.row(str(budget), choice, judged) for budget, choice, judged in choices),
        members=tuple(search.candidates[i].label for i in choice.members),
        objective=options.goal,
        estimate=judged.value,
        optimism=judged.optimism,
        script=script(f"Makes {out.name}.", lines),
        work=work,
        notes=(*making.notes, *([REFIT] if options.calibrate else [])),
    )
    return built, commands


def _check(options: BuildOptions) -> None:
    """Options that go together."""
    objective_of(options.goal)
    if needs_foreign(options.goal) and not options.ood:
        raise UsageError(
            f"--objective {options.goal}: requires OOD data", hint="Give --ood D, or --objective acc or nll."
        )
    keys = keys_of(options)
    for key in keys:
        criterion(key, option="--criteria")
        if key in WITH_FOREIGN and not options.ood:
            raise UsageError(f"--criteria {key}: requires OOD data", hint="Give --ood D, or circuit-acc.")
    check_enough(options.wanted, options.candidates + 1)
    if options.tune is not None:
        load_recipe(options.tune, {})
    parse_budgets(options.budget)


def _outputs(options: BuildOptions) -> tuple[Path, Path | None]:
    """Output and picture; they and the work folder can be written."""
    inputs = [options.checkpoint, options.data, options.val, options.ood, options.classes, options.template]
    out, _ = named(options.out)
    if not options.dry_run:
        with claims():  # the command that writes it will hold it
            out = claim_checkpoint(options.out, force=options.force, inputs=inputs)
    picture = None
    if options.plot is not None:
        picture = check_plot(Path(options.plot), force=options.force, inputs=inputs)
    work = options.work
    if work.exists() and not work.is_dir():
        raise OutputError(f"{work}: is not a directory", hint="Give another --cache.")
    make_folder(work.parent)
    hold(real(work), option="--cache")
    return out, picture


def _opened(options: BuildOptions) -> Single:
    """The backbone, a classifier."""
    opened = undecided(open_single(options.checkpoint, arch=options.arch))
    named = with_class_names(opened, classes=options.classes, templates=options.template, names=names_in(options.val))
    if named.manifest.model.num_classes == 0:
        raise CheckpointError(
            f"{named.path}: has no classes to choose between",
            hint="Finetune it with a classifier, or give a CLIP its --classes.",
        )
    return named


def _opened_data(opened: Single, options: BuildOptions) -> tuple[dict[str, list[Samples]], list[str]]:
    """What is read: training, validation and OOD data, all different; and what is odd about them."""
    model = opened.manifest.model

    def labelled(spec: str) -> Samples:
        return open_data(spec, limit=options.limit, seed=options.seed, model=model)

    sets = {"data": [labelled(options.data)], "val": [labelled(options.val)]}
    sets["ood"] = [open_data(spec, limit=options.limit, seed=options.seed) for spec in options.ood]
    in_turn = [("--val", sets["val"][0]), ("--data", sets["data"][0]), *(("--ood", s) for s in sets["ood"])]
    notes = [samples.note for _, samples in in_turn if samples.note is not None]
    notes += apart(in_turn, "What members are chosen by must be neither trained on nor OOD data.")
    if len(sets["val"][0]) < FEWEST:
        raise DataError(
            f"--val {options.val}: has {len(sets['val'][0])} samples",
            hint=f"A choice that two halves judge needs at least {FEWEST}.",
        )
    return sets, notes


def _make(commands: Sequence[Command], out: Path, options: BuildOptions) -> None:
    """Run what is not there yet; the last command writes the output."""
    for command in commands:
        last = command.out == out
        if last or command.out is None or not command.out.exists():
            force = {"force": options.force} if last else {}
            command.run(device=options.device, progress=options.progress, **force)
