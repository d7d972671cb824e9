"""build's front: what is decided within each budget as candidates come, and written at once where it
is better than what is there; a folder of checkpoints with its record.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hydrasurgeon.building import picture
from hydrasurgeon.building.budgets import Budget
from hydrasurgeon.building.choosing import decide
from hydrasurgeon.building.costs import fusion_of
from hydrasurgeon.building.members import MemberModel
from hydrasurgeon.building.search_space import LEAST_ON, PROBE, SINGLE, SearchSpace
from hydrasurgeon.building.suspects import Suspects
from hydrasurgeon.building.table import AUTO, Candidate, Entry, right_of
from hydrasurgeon.building.work import mark_of
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.engines import INEXACT
from hydrasurgeon.errors import DataError, HydraError, OutputError, SurgeryError, UsageError
from hydrasurgeon.files.atomic import SUFFIX, claims, hold, real, staged, sweep, write_text
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.resumable import content_hash
from hydrasurgeon.files.untrusted import read_json
from hydrasurgeon.lookup import format_number
from hydrasurgeon.measuring.model_differences import Difference, compared
from hydrasurgeon.measuring.results import COMPARED
from hydrasurgeon.options.column_roles import DataSpec
from hydrasurgeon.options.command_line import CommandLine
from hydrasurgeon.options.making import BuildOptions

FORMAT = "hydrasurgeon.front/1"
"""Format identifier of a front's JSON."""
NAME = "front.json"
"""File name of the record, in the folder of the checkpoints."""
MOST = 4 << 20
"""Bytes of it."""
SHOWN = {"f1": 1, "accuracy": 100, "nll": 1, "rmse": 1, "auroc": 100}
"""Measures that are compared, and what they are told in: points are hundredths."""
WITH_WORDS = {"blend": "bag of words blended in", "cascade": "bag of words first"}
"""Words of the table for the use of the bag-of-words model."""
Rungs = Mapping[Budget, Entry]
"""Entries by budget, rising; a budget without a better entry repeats the entry below."""


class Front:
    """Decides within budgets, by one table, and writes what is decided."""

    def __init__(self, search: SearchSpace, out: Path, *, force: bool, is_unfinished: bool) -> None:
        self.search = search
        self.options: BuildOptions = search.options
        self.out = out
        self.force = force or is_unfinished
        """True if files at `out` may be replaced; those of an earlier run of this build always
        may.
        """
        self.there = search.state.record.get("made") if is_unfinished else None
        """File name of the checkpoint that an interrupted build has written."""
        self.refused: dict[tuple[Budget, Candidate], HydraError] = {}
        """Errors of choices that calibrate refused or that take too long."""
        self.rungs: Rungs = {}
        """Written entries of the budgets that have one."""
        self.ended = ""
        """Why not everything was tried."""

    @property
    def references(self) -> list[Entry]:
        """The plain rivals, in the fastest engine of float32."""
        return [
            self.search.table.entry(self.search.costs.in_engines(choice)[0])
            for choice in self.search.plain
        ]

    def run(self) -> str:
        """Make candidates, and write each that is better than what is there, until all are tried, time
        is up, or somebody ends it; why not everything was tried.
        """
        with self.search.plan.moving():
            try:
                for _ in self.search.stages():
                    self.settle()
                    budgets = self.search.budgets
                    self.search.missing = [item for item in budgets if item not in self.rungs]
                self.search.plan.hold()
            except BaseException as error:
                why = self.search.plan.why_ended(error)
                if why is None or not self.rungs:
                    raise
                self.ended = (
                    f"{why}: the best so far is written; the same command goes on from here"
                )
            self.search.plan.hold()
            self.finish(early=bool(self.ended))
        return self.ended

    def summary(self) -> str:
        """Return text on the written files, their comparison with the unpruned model, and the next
        step.
        """
        rows = "on the validation rows"
        if self.options.crossed:
            rows = "by five-fold cross-validation"
        references = {item.choice.name: item for item in self.references}
        single = references.get(SINGLE, references.get(PROBE))
        assert single is not None
        is_made = bool(single.choice.members[0].making)  # of a body, which answers nothing itself
        reference = self.search.opened.name
        if is_made:
            reference = "the probe" if single.choice.name == PROBE else "the first tuned model"
        lines = [f"Compared with {reference} {rows}:"]
        below: Entry | None = None
        for budget, entry in self.rungs.items():
            description = f"{budget}: {_describe(entry)} at {entry.cost[budget.unit]:.2f}x"
            if entry is below:
                yet = ", yet" if self.ended else ""
                lines.append(
                    f"{budget}: the same model as for the budget below; nothing is better{yet}"
                )
            elif entry is single:
                lines.append(
                    f"{budget}: {reference}, calibrated; nothing else that was tried in this budget is better"
                )
            else:
                changes = compared(entry.answers, single.answers)
                texts = [_change(item) for item in changes if item.metric in SHOWN]
                lines.append(f"{description}: {'; '.join(texts)}")
            below = entry
            if self.options.risk is not None:
                lines.append(f"  {self._promise(self.options.risk, budget, entry)}")
        options = self.options
        files, page = shlex.quote(str(options.out)), ""
        if len(self.search.budgets) > 1:
            folder = shlex.quote(str(options.out).rstrip("/"))
            files, page = f"{folder}/*.safetensors", " --html front.html"
        if not is_made:
            files += "".join(f" {shlex.quote(str(path))}" for path in options.checkpoints)
        if any(entry.choice.words == "cascade" for entry in self.rungs.values()):
            page = f" --cascade{page}"
        data = ["--data", "TEST", *DataSpec.parse(options.data).options()]
        data += ["--skip-bad"] * options.skip_bad
        lines.append(
            f"next, with labelled rows that build has not seen in place of TEST: hydrasurgeon eval {files} {shlex.join(data)}{page}"
        )
        if options.certifying is None and "--risk" not in self.search.answer_store.task.lacks:
            lines.append(self._to_abstain(data[2:]))
        return "\n".join(lines)

    def recommendation(self) -> str:
        """Return one sentence on the file of the best value, the cheapest of equals."""
        budget, entry = max(self.rungs.items(), key=lambda rung: rung[1].value)
        cost = f"{entry.cost[budget.unit]:.2f}x the {budget.unit} of the unpruned model"
        worth = f"{entry.objective.name} {abs(entry.value):.3f}"
        file = str(self.out)
        if len(self.search.budgets) > 1:
            file = f"{file.rstrip('/')}/{budget.unit}-{budget.most:g}{SUFFIX}"
        members = "; ".join(member.label for member in entry.choice.members)
        contents = "" if entry.is_plain else f" ({members})"
        return f"recommended: {file}, {_describe(entry)}{contents}: {worth} at {cost}"

    def _promise(self, risk: float, budget: Budget, entry: Entry) -> str:
        """Return a sentence on what the file of a rung promises, measured on the certifying rows."""
        if budget in self.unpromised:
            return f"it never abstains, because --risk {risk:g} cannot be promised"
        decision = open_checkpoint(rung_file(self.search, entry)).manifest.decision
        assert decision is not None
        answered = 1.0
        if decision.limits is not None:
            answered = decision.limits.answered
        elif decision.abstain is not None:
            answered = decision.abstain.coverage
        return (
            f"promised with 95 % confidence: at most {100 * risk:g} % of its answers are wrong "
            f"(it answered {100 * answered:.1f} % of the {decision.certified:,} rows that certify this "
            "and were used for nothing else)"
        )

    def _to_abstain(self, columns: Sequence[str]) -> str:
        """Return the line that says how to make a file that abstains of the last rung."""
        options, file = self.options, str(self.options.out)
        *_, (budget, entry) = self.rungs.items()
        if len(self.search.budgets) > 1:
            first = next(rung for rung, other in self.rungs.items() if other is entry)
            file = f"{file.rstrip('/')}/{budget.unit}-{first.most:g}{SUFFIX}"
        data = ["--data", "UNUSED", "--fit-data", DataSpec.parse(options.data).place, *columns]
        words = [
            "calibrate",
            file,
            *data,
            "--risk",
            f"{possible_risk(entry.worth):g}",
            "-o",
            "ready",
        ]
        return f"to let it abstain, with labelled rows that were used nowhere in place of UNUSED: hydrasurgeon {shlex.join(words)}"

    def settle(self) -> None:
        """Decide with what there is, and write what is better than before, one after the other: time
        may end between two.
        """
        while (rungs := self._decided_next()) != self.rungs:
            if not self._write(rungs):
                continue  # another may fit VAL better
            budget = next(rung for rung in rungs if rungs[rung] is not self.rungs.get(rung))
            entry = rungs[budget]
            worth = f"{entry.objective.name} {abs(entry.value):.3f}"
            description = f"{_describe(entry)} at {entry.cost[budget.unit]:.2f}x, {worth}"
            self.options.note(f"written {budget}: {description}")
            self.rungs, self.force = rungs, True
            self.search.plan.best = f"{budget}: {description}"
            self.search.plan.may_end = len(rungs) == len(self.search.budgets)
            self.search.state.keep(unfinished=mark_of(self.options))

    def finish(self, *, early: bool) -> None:
        """Record all rivals; where everything was tried, a budget that nothing is within is an error."""
        if len(self.search.budgets) > 1 and self.rungs:
            self._write(self.rungs, done=not early)
        self._draw()
        self.search.state.keep(unfinished=mark_of(self.options) if early else None)
        for budget in self.search.budgets:
            if not early and budget not in self.rungs:
                for (refusing, _), error in self.refused.items():
                    if refusing == budget:
                        raise error
                self._refuse(budget)

    def _draw(self) -> None:
        """Write front.svg beside the result, or among the rungs; a file of somebody else stays."""
        several = len(self.search.budgets) > 1
        place = (self.out if several else self.out.absolute().parent) / picture.NAME
        if place.exists() and not place.read_bytes().startswith(picture.BEGIN.encode()):
            self.options.note(f"note: {place} is not a picture of build, and stays")
            return
        unit = self.search.budgets[0].unit
        names = {entry: name_of(budget, entry) for budget, entry in self.rungs.items()}
        drawing = picture.draw(
            self.search.table.entries,
            [*names],
            unit,
            lambda entry: names.get(entry) or _describe(entry),
        )
        if drawing is not None and self.rungs:
            write_text(place, drawing)

    def _decided_next(self) -> Rungs:
        """Return the current entries with the first new one, which also serves larger budgets that
        it improves.
        """
        rungs: dict[Budget, Entry] = {}
        below = new = None
        for budget in self.search.budgets:
            there = self.rungs.get(budget)
            if new is None:
                entry = self._decided(self._within(budget), budget, below)
                entry = there if entry is None else entry
                if entry is None:
                    continue
                # What is there gives way to what is better alone.
                least = -math.inf if below is None else below.value
                if there is not None and there.value >= max(entry.value, least):
                    entry = there
                new = None if entry is there else entry
            else:
                entry = new if there is None or there.value < new.value else there
            rungs[budget] = below = entry
        return rungs

    def _decided(self, entries: list[Entry], budget: Budget, below: Entry | None) -> Entry | None:
        """Return the best entry whose figures were measured rather than assumed."""
        while entries:
            entry = decide(entries, budget.unit, below)
            if not entry.choice.assumed:
                return entry
            measured = self.search.table.entry(replace(entry.choice, assumed=False))
            entries.remove(entry)
            fits = budget.allows(measured.cost[budget.unit])
            if fits and (budget, measured.choice) not in self.refused:
                entries.append(measured)
        return below

    def _within(self, budget: Budget) -> list[Entry]:
        """Return every entry that a budget allows."""
        search = self.search
        entries = []
        for way in (way for choice in search.candidates for way in search.ways(choice, budget)):
            if (budget, way) not in self.refused and search.costs.pays(way, budget):
                with contextlib.suppress(SurgeryError):  # too many go on where words come first
                    entries.append(self.search.table.entry(way))
        return entries

    def _refuse(self, budget: Budget) -> None:
        search, unit = self.search, budget.unit
        ways = [way for choice in search.candidates for way in search.costs.in_engines(choice)]
        costs = [search.costs.cost(replace(way, assumed=True))[unit] for way in ways]
        message = f"the cheapest candidate has {unit}={format_number(min(costs), 2)}"
        if unit == "time":
            if search.words is not None:
                costs.append(search.costs.words_time.time + LEAST_ON * min(costs))
            message = (
                f"the fastest candidate takes time={format_number(min(costs), 2)} on this machine"
            )
        raise SurgeryError(f"--budget {budget}: {message}", hint="Give a larger --budget.")

    def _write(self, rungs: Rungs, *, done: bool = False) -> bool:
        """Make what was decided, and put it where it belongs, once everything was tried or before;
        whether all of it could be made.
        """
        search = self.search
        files = {entry: rung_file(search, entry) for entry in rungs.values()}
        if not all(self._make(budget, entry, files[entry]) for budget, entry in rungs.items()):
            return False
        search.plan.hold()  # a file and what lies beside it come together
        if len(search.budgets) > 1:
            write_front(self.out, rungs, files, self.references, done=done)
            return True
        (file,) = files.values()
        if file.name != self.there:
            publish(file, self.out, force=self.force)
        self.there = file.name
        search.state.keep(made=file.name, unfinished=mark_of(self.options))
        return True

    def _make(self, budget: Budget, entry: Entry, file: Path) -> bool:
        """Make and calibrate the file of an entry; return False if that fails or exceeds the
        budget.
        """
        member = made_of(entry, self.options)
        calibration = calibration_of(self.search, entry, member.file, file)
        try:
            for command in member.making:
                self.search.workshop.perform(command)
            self._calibrate(calibration, file)
            self.search.costs.time_written(entry, file, budget)
        except (DataError, SurgeryError) as error:
            self.search.plan.check()
            self.refused[budget, entry.choice] = error
            return False
        return True

    def _calibrate(self, command: CommandLine, file: Path) -> None:
        """Calibrate a file; without --risk where the rows that certify cannot promise it. No other
        file takes its place then: these rows choose nothing.
        """
        try:
            self.search.workshop.perform(command)
        except DataError as error:
            if self.options.risk is None:
                raise
            self.search.plan.check()
            self.search.workshop.perform(command.but(risk=None))
            why = self.search.state.record.get("unpromised", {})
            message = [error.message, (error.hint or "").replace("--data", "--val")]
            self.search.state.keep(unpromised=why | {file.name: message})

    @property
    def suspects(self) -> Suspects | None:
        """Rows whose label looks wrong; None if labels were not judged."""
        record = self.search.state.record.get("suspects")
        return None if record is None else Suspects(**record)

    @property
    def unpromised(self) -> dict[Budget, tuple[str, str]]:
        """Budgets whose file does not keep --risk; why, and what to do."""
        why = self.search.state.record.get("unpromised", {})
        names = {budget: rung_file(self.search, entry).name for budget, entry in self.rungs.items()}
        return {budget: tuple(why[name]) for budget, name in names.items() if name in why}


def publish(file: Path, out: Path, *, force: bool) -> None:
    """Write a copy of a checkpoint, as a file or a directory."""
    opened, slash = open_checkpoint(file), "" if out.name.endswith(SUFFIX) else "/"
    with claims():  # another may come in its place
        save(
            claim_checkpoint(f"{out}{slash}", force=force),
            opened.tensors.planned(),
            lambda sha256: rewritten(opened.manifest, weights_sha256=sha256),
            files=opened.files,
        )


def made_of(entry: Entry, options: BuildOptions) -> MemberModel:
    """Return the chosen member, or the hydra of several."""
    members = entry.choice.members
    return members[0] if len(members) == 1 else fusion_of(members, options)


def calibration_of(search: SearchSpace, entry: Entry, file: Path, out: Path) -> CommandLine:
    """Return the command that calibrates a checkpoint as the table's figures assume."""
    options, choice = search.options, entry.choice
    words: dict[str, Any] = {"data": options.choosing, **options.names, **options.running}
    if options.crossed:
        words |= {"data": options.data, "cross": True}
    promised = ("certifying", "certify"), ("risk", "risk"), ("coverage", "coverage")
    words |= {
        calibrate_option: getattr(options, build_option)
        for build_option, calibrate_option in promised
    }
    words |= {"limit": options.limit, "seed": options.seed, "arch": options.arch}
    if entry.score not in (AUTO, "mi"):
        words["ood_score"] = entry.score
    else:
        words["ood"] = list(options.ood)
    if not options.crossed and (search.answer_store.task.features or choice.words != "off"):
        words["fit_data"] = options.data
    if choice.engine in INEXACT:
        words["engine"] = choice.engine
    words["words"] = choice.words
    if choice.words == "cascade":
        words["budget"] = f"on={choice.most_on:.6f}"
    return CommandLine("calibrate", (file,), words, out)


def rung_file(search: SearchSpace, entry: Entry) -> Path:
    """Return the path of a rung's checkpoint in the work folder."""
    choice, options = entry.choice, search.options
    how = (choice.engine in INEXACT, entry.score, choice.words, f"{choice.most_on:.6f}")
    promised = (options.risk, options.coverage)
    about = {"made": made_of(entry, options).file.name, "how": repr((*how, *promised))}
    return options.work / f"rung-{content_hash(about, '')[:12]}{SUFFIX}"


def name_of(budget: Budget, entry: Entry) -> str:
    """Return the name of a row in the table, such as `macs=0.5: the mean`."""
    name = f"{budget}: {entry.choice.name}" if entry.is_plain else str(budget)
    return f"{name}{how_of(entry)}"


def how_of(entry: Entry) -> str:
    """Return a suffix such as `, bag of words blended in, --engine int8`: the use of the
    bag-of-words model, and the engine that was timed.
    """
    words, how = entry.choice.words, ""
    if words != "off":
        how = f", {WITH_WORDS[words]}"
    if "time" in entry.cost:
        how = f"{how}, --engine {entry.choice.engine}"
    return how


def claim_front(options: BuildOptions, *, force: bool) -> Path:
    """Return `-o` as a folder that this command may write, or replace if it holds a front."""
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
    """Return True if a folder holds a front and nothing else."""
    if not (folder / NAME).is_file():
        return False
    record = read_json(folder / NAME, most=MOST)
    listed = None
    if isinstance(record, dict):
        listed = record.get("rungs")
    paths = [folder / str(rung.get("path")) for rung in listed or () if isinstance(rung, dict)]
    our_files = {
        NAME,
        picture.NAME,
        *(path.name for path in paths),
        *(sidecar(path).name for path in paths),
    }
    return {path.name for path in folder.iterdir()} <= our_files


def write_front(
    out: Path,
    rungs: Rungs,
    files: Mapping[Entry, Path],
    references: Sequence[Entry],
    *,
    done: bool,
) -> None:
    """Write all checkpoints and their record, or nothing; `files` are their paths in the work
    folder. The record lists budgets without a better file only if the search is `done`.
    """
    names: dict[Entry, str] = {}
    entries = []
    for budget, entry in rungs.items():
        name = names.setdefault(entry, f"{budget.unit}-{budget.most:g}{SUFFIX}")
        manifest = open_checkpoint(files[entry]).manifest
        about = {"budget": budget.most, "path": name, "kind": manifest.kind}
        entries.append({**about, **_record(entry)})
    rivals = []
    for entry in references:
        kind = "hydra" if entry.choice.count > 1 else "backbone"
        about = {"name": entry.choice.name, "budget": None, "path": names.get(entry), "kind": kind}
        rivals.append({**about, **_record(entry)})
    pairs = pairwise(rungs.items()) if done else ()
    record = {
        "format": FORMAT,
        "unit": next(iter(rungs)).unit,
        "objective": references[0].objective.name,
        "rungs": entries,
        "no_better": [budget.most for (_, below), (budget, entry) in pairs if entry is below],
        "references": rivals,
    }
    with staged(out) as folder:
        for entry, name in names.items():
            shutil.copyfile(files[entry], folder / name)
            write_text(sidecar(folder / name), open_checkpoint(files[entry]).manifest.to_json())
        write_text(folder / NAME, json.dumps(record, indent=1, allow_nan=False) + "\n")


def _record(entry: Entry) -> dict[str, Any]:
    """Return an entry's members, cost and figures with standard errors."""
    choice, how = entry.choice, {}
    if "time" in entry.cost:
        how["engine"] = choice.engine
    if choice.words != "off":
        how["words"] = choice.words
    return {
        **how,
        "members": choice.count,
        "made_of": [member.label for member in choice.members],
        "estimate": entry.value,
        **entry.cost,
        **entry.worth,
        "errors": entry.errors,
    }


def possible_risk(figures: Mapping[str, float]) -> float:
    """Return a risk that leaves most rows answered: 0.05, or half of the model's error if that is
    more.
    """
    return max(0.05, math.ceil(round(50 * (1 - right_of(figures)), 6)) / 100)


def _describe(entry: Entry) -> str:
    count = entry.choice.count
    text = f"a hydra of {count} members"
    if entry.is_plain:
        text = entry.choice.name
    elif count == 1:
        text = "one smaller model"
    return f"{text}{how_of(entry)}"


def _change(difference: Difference) -> str:
    """Return text such as `accuracy +0.4 points (-0.6 to +1.3)`, with `better` or `worse` if
    clear.
    """
    factor = SHOWN[difference.metric]
    digits, unit = (3, "") if factor == 1 else (1, " points")
    value, low, high = (
        f"{factor * number:+.{digits}f}"
        for number in (difference.value, difference.low, difference.high)
    )
    text = f"{COMPARED[difference.metric].name} {value}{unit} ({low} to {high})"
    if difference.judgement == "equal":
        return text
    return f"{text}, {difference.judgement}"
