"""build's front: what is decided within each budget, with the plain rivals; a folder of checkpoints
with its record and its picture.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydrasurgeon.building.choosing import Pool, decide, proposals, propose
from hydrasurgeon.building.cost import Budget
from hydrasurgeon.building.making import Search
from hydrasurgeon.building.members import Member, compatible
from hydrasurgeon.building.table import Choice, Entry, Objective, Row, Table, right_of
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import OutputError, SurgeryError, UsageError
from hydrasurgeon.files.atomic import SUFFIX, hold, real, staged, sweep, write_text
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.plots import figure, save_figure
from hydrasurgeon.options.making import BuildOptions

FORMAT = "hydrasurgeon.front/1"
"""Format identifier of a front's JSON."""
NAME = "front.json"
"""What it is called, in the folder of the checkpoints."""
MOST = 4 << 20
"""Bytes of it."""
AXES = {
    "macs": "multiply-adds, times the unpruned model's",
    "params": "parameters, times the unpruned model's",
    "time": "time of a sample, times the unpruned model's in float32",
}
"""What stands at the axis of each cost."""


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
    """Decides within budgets, by one table."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.options: BuildOptions = search.options
        single = Choice.of(search.backbone, name="single model, calibrated")
        objective = Objective(self.options.goal)
        if objective.sees_ood:
            plain = self._table(objective).entry(single).figures()
            objective = replace(objective, floor=float(right_of(plain)) - self.options.spare)
        self.table = self._table(objective)
        rivals = [search.computed(choice) for choice in (single, *self._rivals())]
        self.references = [self.table.entry(in_float32) for in_float32, *_ in rivals]
        self.single = self.references[0]
        names = "hydra behind the mean of {} layers"
        for members in search.mean_trunks:
            assert members[0].hydra is not None
            choice = Choice.of(*members, name=names.format(members[0].hydra.layers))
            rivals.append(search.computed(choice))
        self.plain = [self.table.entry(choice) for choices in rivals for choice in choices]
        """The references, the same in 8 bits, and hydras behind mean trunks."""
        whole = Pool(objective, search.members, map(search.read, search.members))
        halves = [
            Pool(
                objective,
                search.members,
                (search.read(each).halves()[n] for each in search.members),
            )
            for n in (0, 1)
        ]
        self.pools = (whole, *halves)

    def _table(self, objective: Objective) -> Table:
        search = self.search
        return Table(objective, search.read, search.cost, search.timed)

    def _rivals(self) -> list[Choice]:
        """What needs no surgery, besides the model itself: a probe, the mean of several, and their
        ensemble.
        """
        count = len(self.options.paths)
        models, means = self.search.unpruned[:count], self.search.unpruned[count:]
        rivals = [Choice.of(mean, name=f"mean of {count}") for mean in means]
        if self.search.probe is not None:
            rivals.insert(0, Choice.of(self.search.probe, name="probe"))
        if count > 1:
            rivals.append(Choice.of(*models, name=f"ensemble of {count}"))
        return rivals

    def rungs(self, budgets: Sequence[Budget]) -> list[Rung]:
        """What is decided within each budget, rising."""
        proposed = {budget: self._proposed(budget) for budget in budgets}
        rungs: list[Rung] = []
        for budget in budgets:
            entries = self._within(budget, proposed[budget])
            below = None
            if rungs:
                below = rungs[-1].entry
            entry = self._decided(entries, budget, below)
            if entry is below:
                rungs.append(Rung(budget, entry, rungs[-1].file, no_better=True))
            else:
                rungs.append(Rung(budget, entry, f"{budget.unit}-{budget.most:g}{SUFFIX}"))
        return rungs

    def _decided(self, entries: list[Entry], budget: Budget, below: Entry | None) -> Entry:
        """What stands once nothing about it is assumed."""
        while entries:
            entry = decide(entries, budget.unit, below)
            if not entry.choice.assumed:
                return entry
            measured = self.table.entry(replace(entry.choice, assumed=False))
            entries = [other for other in entries if other is not entry]
            if budget.allows(measured.cost[budget.unit]):
                entries.append(measured)
        if below is not None:
            return below
        wanted = self.options.wanted
        what = f"--members {wanted}: no {wanted} candidates cost at most {budget}"
        hint = "Allow more, ask for fewer members, or try more --candidates."
        if wanted is None:
            times = [self.search.times([member]) for member in self.search.members]
            least = min(taken.time for each in times for taken in each.values())
            what = (
                f"--budget {budget}: the fastest candidate takes time={least:.2g} on this machine"
            )
            hint = "Allow more than that."
        raise SurgeryError(what, hint=hint)

    def _within(self, budget: Budget, proposed: Sequence[Choice]) -> list[Entry]:
        """Everything that a budget could pay: the plain rivals, and what was proposed for it."""
        wanted = self.options.wanted
        entries = [
            entry
            for entry in self.plain
            if budget.allows(entry.cost[budget.unit])
            and wanted in (None, len(entry.choice.members))
            and not self.search.needs_code(entry.choice.members)
        ]
        entries += [self.table.entry(choice) for choice in proposed]
        if budget.unit == "time":  # in one engine a proposal may take longer than in another
            entries = [entry for entry in entries if budget.allows(entry.cost["time"])]
        return entries

    def _proposed(self, budget: Budget) -> list[Choice]:
        search = self.search

        def allowed(members: Sequence[Member]) -> bool:
            if not compatible(members) or search.needs_code(members):
                return False
            if budget.unit != "time":
                return budget.allows(search.cost(members, budget.unit))
            return any(budget.allows(taken.time) for taken in search.times(members).values())

        whole, first, rest = (
            propose(pool, search.pools, allowed, self.options.wanted) for pool in self.pools
        )
        # What is a plain rival is measured as one: nobody chose its members.
        plain = [entry.choice.members for entry in self.references]
        proposed = [each for each in proposals(whole, first, rest) if each.members not in plain]
        return [choice for each in proposed for choice in search.computed(each)]

    def better_with_code(self, rung: Rung) -> Entry | None:
        """The best single model within a budget of those that --stock left out."""
        cuts = [each for each in self.search.cuts if each.size and self.search.needs_code([each])]
        choices = [each for cut in cuts for each in self.search.computed(Choice.of(cut))]
        entries = [self.table.entry(choice) for choice in choices]
        unit = rung.budget.unit
        within = [entry for entry in entries if rung.budget.allows(entry.cost[unit])]
        return max(within, key=lambda entry: entry.value, default=None)


def name_of(rung: Rung) -> str:
    """`macs=0.5`: as a table shows it."""
    name = str(rung.budget)
    if rung.entry.is_plain:
        name = f"{rung.budget}: {rung.entry.choice.name}"
    return f"{name}{engine_of(rung.entry)}"


def engine_of(entry: Entry) -> str:
    """`, --engine int8`: by what its time was measured."""
    if "time" not in entry.cost:
        return ""
    return f", --engine {entry.choice.engine}"


def claim_front(options: BuildOptions) -> Path:
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
    if not options.force:
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
    out: Path,
    rungs: Sequence[Rung],
    rows: Sequence[Row],
    files: Mapping[str, Path],
    references: Sequence[tuple[Entry, Row]],
) -> None:
    """All checkpoints and the record of them, or nothing; `files` are where each name was made."""
    paths = {id(rung.entry): rung.file for rung in rungs}
    entries = []
    for rung, row in zip(rungs, rows, strict=True):
        manifest = open_checkpoint(files[rung.file]).manifest
        about = {"budget": rung.budget.most, "path": rung.file, "kind": manifest.kind}
        entries.append({**about, **_record(rung.entry, row)})
    rivals = []
    for entry, row in references:
        kind = "backbone"
        if row.members > 1:
            kind = "hydra"
        about = {"budget": None, "path": paths.get(id(entry)), "kind": kind}
        rivals.append({"name": row.name, **about, **_record(entry, row)})
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
    how = {}
    if "time" in row.cost:
        how["engine"] = entry.choice.engine
    return {
        **how,
        "members": row.members,
        "made_of": [member.label for member in entry.choice.members],
        "estimate": entry.value,
        **row.cost,
        **row.worth,
        "errors": dict(row.errors),
    }


def draw_front(rows: Sequence[Row], front: Sequence[Row], unit: str, path: Path) -> None:
    """Quality against cost, the best within each budget and the plain rivals; the same bytes for
    the same rows.
    """
    import matplotlib

    measures = [
        name for name in ("rmse", "nll", "f1", "accuracy", "auroc") if name in rows[0].worth
    ]
    with matplotlib.rc_context({"font.size": 9}):
        drawn = figure(5.5 * len(measures))
        axes = drawn.subplots(1, len(measures), squeeze=False)[0]
        for place, measure in zip(axes, measures, strict=True):
            factor, label = 100, f"{measure} (%)"
            if measure in ("nll", "rmse"):
                factor, label = 1, measure.upper()
            costs = [row.cost[unit] for row in front]
            worths = [factor * row.worth[measure] for row in front]
            place.plot(costs, worths, marker="o", color="C0", label="best within the budget")
            for number, row in enumerate(rows):
                place.scatter(
                    row.cost[unit],
                    factor * row.worth[measure],
                    marker="s^Dv<>P"[number % 7],
                    color=f"C{number + 1}",
                    label=row.name,
                    zorder=3,
                )
            place.set(xlabel=AXES[unit], ylabel=label)
            place.grid(alpha=0.3)
        axes[0].legend(frameon=False)
        save_figure(drawn, path)
