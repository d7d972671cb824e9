"""build: the hydra that is worth most within a budget, chosen by measuring and made by the other commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.class_names import names_in, with_class_names
from hydrasurgeon.checkpoints.decided import undecided
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, single
from hydrasurgeon.checkpoints.writing import claim_checkpoint
from hydrasurgeon.criteria import score_key
from hydrasurgeon.errors import CheckpointError, DataError, OutputError, UsageError
from hydrasurgeon.files.atomic import SUFFIX, claims, hold, make_folder, named, real
from hydrasurgeon.files.plots import check_plot
from hydrasurgeon.lookup import whole_number
from hydrasurgeon.measuring.overlap import apart
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import BuildOptions

if TYPE_CHECKING:
    from hydrasurgeon.criteria.together.budget import Budget
    from hydrasurgeon.criteria.together.row import Row
    from hydrasurgeon.data import Samples
    from hydrasurgeon.stages.commands import Command

FORMAT = "hydrasurgeon.build/1"
"""Of the JSON report."""
CRITERIA = ("taylor", "fisher", "magnitude")
"""What candidates are pruned by without foreign data, besides circuits of accuracy."""
MOST_MEMBERS = 16
"""Members that may be wanted."""
FEWEST = 20
"""Validation samples."""
WITH_FOREIGN = ("circuit-avg", "circuit-ood")
"""The circuits that are searched where there are foreign data."""


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
    is_main: bool = True
    """False in the processes of torchrun that only run candidates."""

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


class Building(BuildOptions):
    """What `build` is to do, and what follows from it."""

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The criteria, as manifests name their scores."""
        if self.criteria is None:
            return (*CRITERIA, *(WITH_FOREIGN if self.ood else ("circuit-acc",)))
        named = [name.strip() for name in self.criteria.split(",") if name.strip()]
        return tuple(dict.fromkeys(self._key(name) for name in named))

    def _key(self, name: str) -> str:
        if name == "circuit" and not self.ood:
            return "circuit-acc"
        return score_key(name)

    @cached_property
    def goal(self) -> str:
        """The objective's name."""
        return self.objective or ("avg" if self.ood else "nll")

    @cached_property
    def wanted(self) -> int | None:
        """How many members; None: as many as are worth most."""
        return None if self.members == "auto" else int(self.members)

    @cached_property
    def budgets(self) -> list[Budget]:
        from hydrasurgeon.criteria.together.budget import parse_budgets

        return parse_budgets(self.budget)

    @property
    def work(self) -> Path:
        """The folder of scores and answers."""
        if self.cache is not None:
            return Path(self.cache)
        out = Path(self.out)
        return out.with_name(f"{out.name.removesuffix(SUFFIX)}.build")

    @property
    def names(self) -> dict[str, Any]:
        """The class names, as other commands take them."""
        return {"classes": self.classes, "template": list(self.template)}

    @property
    def running(self) -> dict[str, Any]:
        """How models run, where other commands must know."""
        return {
            "dtype": None if self.dtype == "float32" else self.dtype,
            "batch_size": self.batch_size,
            "skip_bad": self.skip_bad,
        }


@stage(Building)
def build(arguments: Building) -> Built:
    """Choose members of a checkpoint together, within a budget, and make the hydra of them."""
    checkpoint = arguments.checkpoint
    _check(arguments)
    out, picture, work = _outputs(checkpoint, arguments)
    opened = _opened(checkpoint, arguments)
    sets, odd = _opened_data(opened, arguments)
    from hydrasurgeon.runtime.processes import joined
    from hydrasurgeon.stages.build_choice import chosen
    from hydrasurgeon.stages.build_search import searched

    with joined() as world:  # once: processes that part cannot meet again
        search = searched(opened, checkpoint, work, sets, arguments)
        world.gather(None)
    if not world.is_main:
        return Built(None, (), (), (), arguments.goal, 0.0, 0.0, "", work, is_main=False)
    outcome = chosen(search, arguments, work=work, out=out)
    if picture is not None:
        from hydrasurgeon.criteria.together.plot import draw_front

        draw_front(outcome.rows, outcome.front, arguments.budgets[0].unit, picture)
    if not arguments.dry_run:
        _make(outcome.commands, out, arguments)
    return Built(
        path=None if arguments.dry_run else out,
        rows=outcome.rows,
        front=outcome.front,
        members=outcome.labels,
        objective=arguments.goal,
        estimate=outcome.estimate,
        optimism=outcome.optimism,
        script=outcome.script,
        work=work,
        notes=(*([opened.note] if opened.note else []), *odd, *outcome.notes),
    )


def _check(arguments: Building) -> None:
    """Options that go together."""
    from hydrasurgeon.criteria import check_search, criterion
    from hydrasurgeon.criteria.together.budget import check_enough
    from hydrasurgeon.criteria.together.objective import needs_foreign, objective_of

    objective_of(arguments.goal)
    if needs_foreign(arguments.goal) and not arguments.ood:
        raise UsageError(
            f"--objective {arguments.goal}: needs foreign data", hint="Give --ood D, or --objective acc or nll."
        )
    for key in arguments.keys:
        criterion(key, option="--criteria")
        if key in ("circuit-avg", "circuit-ood") and not arguments.ood:
            raise UsageError(f"--criteria {key}: needs foreign data", hint="Give --ood D, or circuit-acc.")
    check_search(arguments.search)
    if not arguments.keys:
        raise UsageError("--criteria: names none", hint="Such as taylor,fisher.")
    for option, number in (("--candidates", arguments.candidates), ("--score-limit", arguments.score_limit)):
        if number < 1:
            raise UsageError(f"{option} {number}: must be at least 1")
    if not 0 <= arguments.max_drop <= 100:
        raise UsageError(f"--max-drop {arguments.max_drop:g}: must lie between 0 and 100 points")
    wanted = arguments.members
    if wanted != "auto" and not 1 <= (whole_number(str(wanted)) or 0) <= MOST_MEMBERS:
        raise UsageError(f"--members {wanted}: neither auto nor a number from 1 to {MOST_MEMBERS}")
    check_enough(arguments.wanted, arguments.candidates + 1)
    if arguments.tune is not None:
        from hydrasurgeon.tuning.recipes import load_recipe

        load_recipe(arguments.tune, {})
    _ = arguments.budgets


def _outputs(checkpoint: str | Path, arguments: Building) -> tuple[Path, Path | None, Path]:
    """Output, picture and work folder, all of which can be written."""
    inputs = [checkpoint, arguments.data, arguments.val, arguments.ood, arguments.classes, arguments.template]
    out, _ = named(arguments.out)
    if not arguments.dry_run:
        with claims():  # the command that writes it will hold it
            out = claim_checkpoint(arguments.out, force=arguments.force, inputs=inputs)
    picture = None
    if arguments.plot is not None:
        picture = check_plot(Path(arguments.plot), force=arguments.force, inputs=inputs)
    work = arguments.work
    if work.exists() and not work.is_dir():
        raise OutputError(f"{work}: is no folder", hint="Give another --cache.")
    make_folder(work.parent)
    hold(real(work), option="--cache")
    return out, picture, work


def _opened(checkpoint: str | Path, arguments: Building) -> Checkpoint:
    """The backbone, a classifier."""
    opened = undecided(open_checkpoint(checkpoint, arch=arguments.arch))
    single(opened)
    named = with_class_names(
        opened, classes=arguments.classes, templates=arguments.template, names=names_in(arguments.val)
    )
    if named.manifest.model.num_classes == 0:
        raise CheckpointError(
            f"{named.path}: has no classes to choose between",
            hint="Finetune it with a classifier, or give a CLIP its --classes.",
        )
    return named


def _opened_data(opened: Checkpoint, arguments: Building) -> tuple[dict[str, list[Samples]], list[str]]:
    """What is read: training, validation and foreign data, all different; and what is odd about them."""
    from hydrasurgeon.data import open_data

    model = opened.manifest.model

    def labelled(spec: str) -> Samples:
        return open_data(spec, limit=arguments.limit, seed=arguments.seed, model=model)

    sets = {"data": [labelled(arguments.data)], "val": [labelled(arguments.val)]}
    sets["ood"] = [open_data(spec, limit=arguments.limit, seed=arguments.seed) for spec in arguments.ood]
    in_turn = [("--val", sets["val"][0]), ("--data", sets["data"][0]), *(("--ood", s) for s in sets["ood"])]
    notes = [samples.note for _, samples in in_turn if samples.note is not None]
    notes += apart(in_turn, "What members are chosen by must be neither trained on nor foreign.")
    if len(sets["val"][0]) < FEWEST:
        raise DataError(
            f"--val {arguments.val}: has {len(sets['val'][0])} samples",
            hint=f"A choice that two halves judge needs at least {FEWEST}.",
        )
    return sets, notes


def _make(commands: Sequence[Command], out: Path, arguments: Building) -> None:
    """Run what is not there yet; the last command writes the output."""
    for command in commands:
        last = command.out == out
        if last or command.out is None or not command.out.exists():
            force = {"force": arguments.force} if last else {}
            command.run(device=arguments.device, progress=arguments.progress, **force)
