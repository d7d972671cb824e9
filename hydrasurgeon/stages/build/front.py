"""build's front: the best checkpoint at every price, or the one below it where nothing is better; a
folder of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import OutputError, UsageError
from hydrasurgeon.files.atomic import SUFFIX, hold, real, staged, sweep, write_text
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.resumable import content_hash
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.stages.build.cascading import Cascaded, cascaded
from hydrasurgeon.stages.build.choice import Choice, Estimate
from hydrasurgeon.stages.build.comparing import Choosing, Row, calibrated_row
from hydrasurgeon.stages.build.cost import Budget
from hydrasurgeon.stages.build.making import Making
from hydrasurgeon.stages.build.search import Search
from hydrasurgeon.stages.build.work import perform

FORMAT = "hydrasurgeon.front/1"
"""Format identifier of a front's JSON."""
NAME = "front.json"
"""What it is called, in the folder of the checkpoints."""
MOST = 4 << 20
"""Bytes of it."""


@dataclass(frozen=True)
class Rung:
    """What is worth most within a budget."""

    budget: Budget
    choice: Choice
    judged: Estimate
    cascade: Cascaded | None = None
    """Of a hydra that is within the budget as a cascade only."""

    @property
    def name(self) -> str:
        """`macs-0.5.safetensors`: as its file is called."""
        return f"{self.budget.unit}-{self.budget.most:g}{SUFFIX}"


def rungs(choosing: Choosing, budgets: Sequence[Budget]) -> list[Rung]:
    """The best within each budget; where nothing is worth more than the rung below, that one again."""
    climbed: list[Rung] = []
    plain = [Rung(budget, *choosing.within(budget)) for budget in budgets]
    for at, rung in enumerate(plain):
        budget = rung.budget
        for dearer in plain[at + 1 :]:
            cascade = cascaded(choosing, dearer.choice, dearer.judged, budget)
            if cascade is not None and cascade.judged.value > rung.judged.value:
                rung = Rung(budget, dearer.choice, cascade.judged, cascade)
        stays = climbed and rung.judged.value <= climbed[-1].judged.value
        climbed.append(replace(climbed[-1], budget=budget) if stays else rung)
    return climbed


def rows_of(choosing: Choosing, climbed: Sequence[Rung]) -> tuple[Row, ...]:
    """A row for what is best within each budget, measured where it was not chosen."""
    rows = []
    for rung in climbed:
        if rung.cascade is None:
            rows.append(choosing.row(str(rung.budget), rung.choice, rung.judged))
        else:
            params = choosing.search.cost(rung.choice.members, "params")
            cost, answers = {"macs": rung.cascade.macs, "params": params}, [rung.cascade.answers]
            name = f"{rung.cascade.within}, as a cascade"
            rows.append(calibrated_row(name, len(rung.choice.members), cost, [answers, answers]))
    return tuple(rows)


def taught(search: Search, climbed: Sequence[Rung], options: BuildOptions) -> Search:
    """The same search with what stands on the front taught: to be chosen where VAL says that it is
    better.
    """
    ladder = search.ladder
    assert ladder is not None
    teachers: list[Path | str] = []
    if options.teachers is not None and options.teachers.isdigit():
        for command in (commands := ladder.teachers(int(options.teachers))):
            perform(command, options, search.state)
        teachers = [command.out for command in commands if command.out is not None]
        search = replace(search, commands=(*search.commands, *commands))
    elif options.teachers is not None:
        teachers = [name.strip() for name in options.teachers.split(",") if name.strip()]
    used = dict.fromkeys(number for rung in climbed for number in rung.choice.members)
    cuts = [search.cut(number) for number in used if number >= len(search.candidates)]
    if teachers:  # a whole model learns nothing from itself
        cuts += [ladder.whole(0)] if 0 in used else []
    else:
        cuts = [cut for cut in cuts if cut.size is not None]
    return search.with_cuts(ladder.taught(cut, teachers) for cut in cuts)


def claim_front(options: BuildOptions) -> Path:
    """`-o` as a folder that is this command's to write, and to replace where it holds a front."""
    out = Path(options.out)
    if out.suffix == SUFFIX:
        hint = f"Give -o {out.with_suffix('')}/."
        raise UsageError(
            f"-o {out}: several budgets ask for a front, which is a folder of checkpoints",
            hint=hint,
        )
    out = real(out)
    if not out.parent.is_dir():
        raise OutputError(f"{out.parent}: no such directory", hint="Create it first.")
    hold(out, option="-o")
    sweep(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not out.is_dir() or not _is_front(out):
            raise OutputError(
                f"{out}: holds what is no front", hint="Move it away, or give another -o."
            )
        if not options.force:
            raise OutputError(
                f"{out}: already exists", hint="Give --force to replace it, or another -o."
            )
    return out


def _is_front(folder: Path) -> bool:
    """Whether a folder holds a front and nothing else."""
    if not (folder / NAME).is_file():
        return False
    said = read_json(folder / NAME, most=MOST)
    listed = said.get("rungs") if isinstance(said, dict) else None
    paths = [folder / str(each.get("path")) for each in listed or () if isinstance(each, dict)]
    ours = {NAME, *(path.name for path in paths), *(sidecar(path).name for path in paths)}
    return {path.name for path in folder.iterdir()} <= ours


def makings_of(search: Search, climbed: Sequence[Rung], options: BuildOptions) -> list[Making]:
    """What makes each rung's file, in the work folder."""
    made = []
    for rung in climbed:
        members = rung.choice.members
        about = {str(at): search.file(number).name for at, number in enumerate(members)}
        about |= {"calibrate": str(options.calibrate)}
        within = None if rung.cascade is None else rung.cascade.within.most
        about |= {} if within is None else {"cascade": str(within)}
        file = options.work / f"rung-{content_hash(about, '')[:12]}{SUFFIX}"
        made.append(Making(search, options, members, file, cascade=within))
    return made


def write_front(
    out: Path,
    climbed: Sequence[Rung],
    files: Sequence[Path],
    choosing: Choosing,
    references: Sequence[Row],
) -> None:
    """All checkpoints and the record of them, or nothing."""
    options, rows = choosing.options, rows_of(choosing, climbed)
    same = [
        rung.budget.most
        for below, rung in pairwise(climbed)
        if rung.choice is below.choice and rung.cascade is below.cascade
    ]
    entries = []
    for rung, row, file in zip(climbed, rows, files, strict=True):
        members = [choosing.search.label(number) for number in rung.choice.members]
        manifest = open_checkpoint(file).manifest
        about = {"budget": rung.budget.most, "path": rung.name, "kind": manifest.kind}
        more = {"members": row.members, "made_of": members, "estimate": rung.judged.value}
        entries.append({**about, **more, **_figures(row)})
        if rung.cascade is not None:
            assert manifest.decision is not None
            assert manifest.decision.cascade is not None
            entries[-1] |= {"cascade": True, "macs": manifest.decision.cascade.cost.expected}
    record = {
        "format": FORMAT,
        "unit": climbed[0].budget.unit,
        "objective": options.goal,
        "rungs": entries,
        "no_better": same,
        "references": [
            {"name": row.name, "members": row.members, **_figures(row)} for row in references
        ],
    }
    with staged(out) as folder:
        for rung, file in zip(climbed, files, strict=True):
            place = folder / rung.name
            shutil.copyfile(file, place)
            shutil.copyfile(sidecar(file), sidecar(place))
        write_text(folder / NAME, json.dumps(record, indent=1, allow_nan=False) + "\n")


def _figures(row: Row) -> dict[str, Any]:
    """Price and worth of a row, with standard errors."""
    return {**row.cost, **row.worth, "errors": dict(row.errors)}
