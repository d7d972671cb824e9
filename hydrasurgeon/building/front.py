"""build's front: what is decided within each budget as candidates come, and written at once where it
is better than what is there; a folder of checkpoints with its record.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hydrasurgeon.building.choosing import decide, propose
from hydrasurgeon.building.clock import EIGHT_BITS
from hydrasurgeon.building.cost import Budget
from hydrasurgeon.building.members import Member
from hydrasurgeon.building.search import LEAST_ON, SINGLE, Search, fusion_of
from hydrasurgeon.building.table import AUTO, Choice, Entry, Objective, Row, Table, right_of
from hydrasurgeon.building.work import mark_of
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import DataError, OutputError, SurgeryError, UsageError
from hydrasurgeon.files.atomic import SUFFIX, hold, real, staged, sweep, write_text
from hydrasurgeon.files.decided import ZERO_SHOT
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.resumable import content_hash
from hydrasurgeon.options.commands import Command
from hydrasurgeon.options.making import BuildOptions

FORMAT = "hydrasurgeon.front/1"
"""Format identifier of a front's JSON."""
NAME = "front.json"
"""What it is called, in the folder of the checkpoints."""
MOST = 4 << 20
"""Bytes of it."""
SPARE = 0.005
"""The share of samples by which accuracy may fall where OOD data choose."""


@dataclass(frozen=True)
class Rung:
    """What is decided within a budget."""

    budget: Budget
    entry: Entry
    file: str
    """Its name in the folder; of the rung below where it is the same again."""
    no_better: bool = False
    """Whether nothing is better than the rung below."""


class Front:
    """Decides within budgets, by one table, and writes what is decided."""

    def __init__(self, search: Search, out: Path, *, force: bool, ours: bool) -> None:
        self.search = search
        self.options: BuildOptions = search.options
        self.out = out
        self.force = force or ours
        """Whether what lies at `out` may be replaced; what was written here always may."""
        self.there = search.state.known.get("made") if ours else None
        """What lies there already, of a build that was ended early."""
        self.making: Entry | None = None
        """What is being made."""
        self.unfit: list[Entry] = []
        """What calibrate refused."""
        self.refused: DataError | SurgeryError | None = None
        """Why."""
        self.rungs: list[Rung] = []
        """What is written, of budgets that something is within."""

    @cached_property
    def table(self) -> Table:
        """The one table; what may be lost of accuracy is known once the first model answered."""
        search = self.search
        table = Table(
            Objective(self.options.goal),
            search.asked.read,
            search.cost,
            words=lambda: search.words,
            problem=search.asked.problem,
            leaves_out=() if search.opened.family.named_classes else ZERO_SHOT,
            seed=self.options.seed,
        )
        if self.options.sees_ood:
            answers = table.entry(search.plain[0]).answers
            right = right_of(answers.quality(*answers.everything)).item()
            table.objective.floor = right - SPARE
        return table

    @property
    def references(self) -> list[Entry]:
        """The plain rivals, in the fastest engine of float32."""
        plain = [each for each in self.search.plain if each.members[0].count == 1]
        entries = [self.table.entry(self.search.computed(each)[0]) for each in plain]
        return [
            replace(each, cost=self.search.cost(each.choice, on=0.0))
            if each.choice.words == "alone"
            else each
            for each in entries
        ]

    @property
    def single(self) -> Entry:
        """The first model; of a body that has none yet, the probe."""
        return next(
            (each for each in self.references if each.choice.name == SINGLE), self.references[0]
        )

    def settle(self) -> None:
        """Decide with what there is, and write what is better than before."""
        while True:
            rungs = self._decided_all()
            if [id(rung.entry) for rung in rungs] == [id(rung.entry) for rung in self.rungs]:
                return
            try:
                self._write(rungs)
                break
            except (DataError, SurgeryError) as error:  # another may fit VAL better
                self.refused = error
                assert self.making is not None
                self.unfit.append(self.making)
        self.rungs, self.force = rungs, True
        self.search.plan.may_end = len(rungs) == len(self.search.budgets)
        self.search.state.keep(unfinished=mark_of(self.out))

    def finish(self, *, early: bool) -> None:
        """Record all rivals; where everything was tried, a budget that nothing is within is an error."""
        if len(self.search.budgets) > 1 and self.rungs:
            self._write(self.rungs)
        self.search.state.keep(unfinished=mark_of(self.out) if early else None)
        for budget in self.search.budgets:
            if not early and budget not in [rung.budget for rung in self.rungs]:
                if self.refused is not None:
                    raise self.refused
                self._refuse(budget)

    def _decided_all(self) -> list[Rung]:
        """What is decided within each budget, rising."""
        rungs: list[Rung] = []
        before = {rung.budget: rung.entry for rung in self.rungs}
        for budget in self.search.budgets:
            below = rungs[-1].entry if rungs else None
            entry = self._decided(self._within(budget), budget, below)
            if entry is None:
                continue
            kept = before.get(budget)
            # What is there gives way to what is better alone.
            if kept is not None and kept.value >= max(
                entry.value, below.value if below else -math.inf
            ):
                entry = kept
            if entry is below:
                rungs.append(Rung(budget, entry, rungs[-1].file, no_better=True))
            else:
                rungs.append(Rung(budget, entry, f"{budget.unit}-{budget.most:g}{SUFFIX}"))
        return rungs

    def _decided(self, entries: list[Entry], budget: Budget, below: Entry | None) -> Entry | None:
        """What stands once nothing about it is assumed."""
        while entries:
            entry = decide(entries, budget.unit, below)
            if not entry.choice.assumed:
                return entry
            measured = self.table.entry(replace(entry.choice, assumed=False))
            entries = [other for other in entries if other is not entry]
            unfit = any(measured is each for each in self.unfit)
            if budget.allows(measured.cost[budget.unit]) and not unfit:
                entries.append(measured)
        return below

    def _within(self, budget: Budget) -> list[Entry]:
        """Everything that a budget could pay: the plain rivals and what is proposed for it."""
        search = self.search
        choices = [each for each in search.plain if search.offers(each)]
        if len(search.members) > 1 or search.cuts:
            found = propose(self.table, search.pools, lambda some: search.allowed(some, budget))
            # What is a plain rival is measured as one: nobody chose its members.
            plain = [each.members for each in search.plain]
            choices += [each for each in found if each.members not in plain]
        entries = []
        for way in (way for each in choices for way in search.ways(each, budget)):
            if search.pays(way, budget):
                with contextlib.suppress(SurgeryError):  # too many go on where words come first
                    entries.append(self.table.entry(way))
        return [entry for entry in entries if not any(entry is each for each in self.unfit)]

    def _refuse(self, budget: Budget) -> None:
        search, unit = self.search, budget.unit
        choices = [*search.plain, *(Choice.of(member) for member in search.members)]
        costs = [search.cost(way)[unit] for each in choices for way in search.computed(each)]
        what = f"the cheapest candidate has {unit}={min(costs):.2g}"
        if unit == "time":
            if search.words is not None:
                costs.append(search.words_time.time + LEAST_ON * min(costs))
            what = f"the fastest candidate takes time={min(costs):.2g} on this machine"
        raise SurgeryError(f"--budget {budget}: {what}", hint="Allow more than that.")

    def _write(self, rungs: Sequence[Rung]) -> None:
        """Make what was decided, and put it where it belongs."""
        search = self.search
        if len(search.budgets) == 1:
            made = rung_file(search, rungs[0].entry).name
            if made != self.there:
                self._make(rungs[0].entry, self.out)
            self.there = made
            search.state.keep(made=made, unfinished=mark_of(self.out))
            return
        files = {rung.file: rung_file(search, rung.entry) for rung in rungs}
        for rung in rungs:
            if not files[rung.file].exists():
                self._make(rung.entry, files[rung.file])
        write_front(self.out, rungs, files, self.references)

    def _make(self, entry: Entry, out: Path) -> None:
        self.making = entry
        options, made = self.options, made_of(entry, self.options)
        for command in made.making:
            self.search.workshop.perform(command)
        force = self.force or out != self.out
        calibration = calibration_of(self.search, entry, made.file, out)
        calibration.run(device=options.device, progress=self.search.plan.tick, force=force)


def made_of(entry: Entry, options: BuildOptions) -> Member:
    """The member that was chosen, or the hydra of several."""
    members = entry.choice.members
    return members[0] if len(members) == 1 else fusion_of(members, options)


def calibration_of(search: Search, entry: Entry, file: Path, out: Path) -> Command:
    """What writes a checkpoint with the decision state that the table's figures are of."""
    options, choice = search.options, entry.choice
    words: dict[str, Any] = {"data": options.val, **options.names, **options.running}
    words |= {"limit": options.limit, "seed": options.seed, "arch": options.arch}
    if entry.score not in (AUTO, "mi"):
        words["ood_score"] = entry.score
    else:
        words["ood"] = list(options.ood)
    if search.asked.problem.features or choice.words != "off":
        words["fit_data"] = options.data
    if choice.engine == EIGHT_BITS:
        words["engine"] = EIGHT_BITS
    words["words"] = choice.words
    if choice.words == "first":
        words["budget"] = f"on={choice.most_on:.6f}"
    return Command("calibrate", (file,), words, out)


def rung_file(search: Search, entry: Entry) -> Path:
    """Where a rung's checkpoint is made, in the work folder."""
    choice = entry.choice
    how = (choice.engine == EIGHT_BITS, entry.score, choice.words, f"{choice.most_on:.6f}")
    about = {"made": made_of(entry, search.options).file.name, "how": repr(how)}
    return search.options.work / f"rung-{content_hash(about, '')[:12]}{SUFFIX}"


def name_of(rung: Rung) -> str:
    """`macs=0.5: the mean`: as a table shows it."""
    name = str(rung.budget)
    if rung.entry.is_plain:
        name = f"{rung.budget}: {rung.entry.choice.name}"
    return f"{name}{how_of(rung.entry)}"


def how_of(entry: Entry) -> str:
    """`, words beside, --engine int8`: where a reader of words answers, and by what its time was
    measured.
    """
    words, how = entry.choice.words, ""
    if words not in ("off", "alone"):
        how = f", words {words}"
    if "time" in entry.cost:
        how = f"{how}, --engine {entry.choice.engine}"
    return how


def claim_front(options: BuildOptions, *, force: bool) -> Path:
    """`-o` as a folder that is this command's to write, and to replace where it holds a front."""
    out = Path(options.out)
    if out.suffix == SUFFIX:
        raise UsageError(
            f"-o {out}: several budgets ask for a front, which is a folder of checkpoints",
            hint=f"Give -o {out.with_suffix('')}/.",
        )
    out = real(out)
    if not out.parent.is_dir():
        raise OutputError(f"{out.parent}: no such directory", hint="Create it first.")
    hold(out, option="-o")
    sweep(out)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return out
    if not out.is_dir() or not _is_front(out):
        hint = "Move it away, or give another -o."
        raise OutputError(f"{out}: holds files that are not a front's", hint=hint)
    if not force:
        hint = "Give --force to replace it, or another -o."
        raise OutputError(f"{out}: already exists", hint=hint)
    return out


def _is_front(folder: Path) -> bool:
    """Whether a folder holds a front and nothing else."""
    if not (folder / NAME).is_file():
        return False
    record = read_json(folder / NAME, most=MOST)
    listed = None
    if isinstance(record, dict):
        listed = record.get("rungs")
    paths = [folder / str(each.get("path")) for each in listed or () if isinstance(each, dict)]
    ours = {NAME, *(path.name for path in paths), *(sidecar(path).name for path in paths)}
    return {path.name for path in folder.iterdir()} <= ours


def write_front(
    out: Path, rungs: Sequence[Rung], files: Mapping[str, Path], references: Sequence[Entry]
) -> None:
    """All checkpoints and the record of them, or nothing; `files` are where each name was made."""
    paths = {id(rung.entry): rung.file for rung in rungs}
    entries = []
    for rung in rungs:
        manifest = open_checkpoint(files[rung.file]).manifest
        about = {"budget": rung.budget.most, "path": rung.file, "kind": manifest.kind}
        entries.append({**about, **_record(rung.entry, rung.entry.row(name_of(rung)))})
    rivals = []
    for entry in references:
        kind = "hydra" if entry.choice.count > 1 else "backbone"
        about = {"budget": None, "path": paths.get(id(entry)), "kind": kind}
        name = entry.choice.name
        rivals.append({"name": name, **about, **_record(entry, entry.row(name))})
    record = {
        "format": FORMAT,
        "unit": rungs[0].budget.unit,
        "objective": rungs[0].entry.objective.name,
        "rungs": entries,
        "no_better": [rung.budget.most for rung in rungs if rung.no_better],
        "references": rivals,
    }
    with staged(out) as folder:
        for name, file in files.items():
            shutil.copyfile(file, folder / name)
            write_text(sidecar(folder / name), open_checkpoint(file).manifest.to_json())
        write_text(folder / NAME, json.dumps(record, indent=1, allow_nan=False) + "\n")


def _record(entry: Entry, row: Row) -> dict[str, Any]:
    """What it is made of, its cost and its worth, with standard errors."""
    how, made_of = {}, [member.label for member in entry.choice.members]
    if "time" in row.cost:
        how["engine"] = entry.choice.engine
    if entry.choice.words != "off":
        how["words"] = entry.choice.words
    if entry.choice.words == "alone":
        made_of = []
    return {
        **how,
        "members": row.members,
        "made_of": made_of,
        "estimate": entry.value,
        **row.cost,
        **row.worth,
        "errors": dict(row.errors),
    }
