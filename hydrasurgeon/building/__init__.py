"""build: what serves best within a budget, chosen by measuring and made by the other commands.

`members` says what could be chosen, `cost` what it costs, `cache` keeps what each answered,
`choosing` proposes and decides, by the figures of `table`; `front` does so for every budget, and
`making` makes what was decided. `plan` says what is ahead.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydrasurgeon.building.cost import Budget
from hydrasurgeon.building.front import Front, Rung, draw_front, name_of, write_front
from hydrasurgeon.building.making import (
    Copy,
    Search,
    commands_of,
    distilled,
    make,
    rung_file,
    searched,
)
from hydrasurgeon.building.table import Entry, Row
from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.data import Samples
from hydrasurgeon.files.atomic import named
from hydrasurgeon.measuring.bootstrap import Difference, compared
from hydrasurgeon.options.commands import Command, script
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.processes import joined

MEASURES = {
    "accuracy": ("accuracy", 100, 1, " points"),
    "nll": ("NLL", 1, 3, ""),
    "auroc": ("AUROC", 100, 1, " points"),
}
"""Measures that are compared: name, factor, digits and unit."""


@dataclass(frozen=True)
class Outcome:
    """What was decided, next to what else there is."""

    rows: tuple[Row, ...]
    front: tuple[Row, ...]
    """What is decided within each budget."""
    last: Rung
    script: str
    plan: tuple[str, ...]
    summary: str


def built(
    models: Sequence[Single],
    sets: Mapping[str, Sequence[Samples]],
    options: BuildOptions,
    budgets: Sequence[Budget],
    out: Path,
    picture: Path | None,
    *,
    averaged: bool,
) -> Outcome | None:
    """Search, decide and make; None in all processes but the first."""
    with joined() as world:  # once: processes that part cannot meet again
        search = searched(models, sets, options, budgets, averaged=averaged)
        world.gather(None)
    if not world.is_main:
        return None
    front = Front(search)
    rungs = front.rungs(budgets)
    if options.tune is not None:
        search.plan.begin("tuned")
        search = distilled(search, [rung.entry for rung in rungs])
        front = Front(search)
        rungs = front.rungs(budgets)
    search.plan.begin("made")
    rows = [entry.row(entry.choice.name) for entry in front.references]
    rung_rows = tuple(rung.entry.row(name_of(rung)) for rung in rungs)
    commands = _commands(search, rungs, out)
    if not options.dry_run:
        for file, making in commands.items():
            make(search, making, file)
        if len(budgets) > 1:
            files = {rung.file: rung_file(search, rung.entry) for rung in rungs}
            references = list(zip(front.references, rows, strict=True))
            write_front(out, rungs, rung_rows, files, references)
    if picture is not None:
        draw_front(rows, rung_rows, budgets[-1].unit, picture)
    return Outcome(
        rows=tuple(rows),
        front=rung_rows,
        last=rungs[-1],
        script=_script(search, commands, rungs, out),
        plan=search.plan.lines,
        summary=summary_of(rungs, front.single, options),
    )


def _commands(search: Search, rungs: Sequence[Rung], out: Path) -> dict[Path, list[Command | Copy]]:
    """What makes each file, equal ones once."""
    if len(rungs) == 1:
        return {out: commands_of(search, rungs[0].entry, out)}
    files = {rung_file(search, rung.entry): rung.entry for rung in rungs}
    return {file: commands_of(search, entry, file) for file, entry in files.items()}


def _script(
    search: Search,
    commands: Mapping[Path, Sequence[Command | Copy]],
    rungs: Sequence[Rung],
    out: Path,
) -> str:
    """The commands that make every output, each once."""
    options = search.options
    work, shown = options.work, named(options.out)[0]
    first = [f"work=${{WORK:-{shlex.quote(work.name)}.again}}", 'mkdir -p "$work"']
    places = {out: shown}
    if len(rungs) > 1:
        first.append(f"mkdir -p {shlex.quote(str(out))}")
        places = {rung_file(search, rung.entry): out / rung.file for rung in rungs}
        shown = out
    lines = [command.line(work, "work") for command in search.commands]
    for file, making in commands.items():
        last = replace(making[-1], out=places[file])
        lines += [command.line(work, "work") for command in (*making[:-1], last)]
    return script(f"Makes {shown.name}.", [*first, *dict.fromkeys(lines)])


def summary_of(rungs: Sequence[Rung], single: Entry, options: BuildOptions) -> str:
    """What was made, how it compares with the model as it is, and what to do next."""
    written = "Written"
    if options.dry_run:
        written = "To be written"
    sentences = [f"{written}, compared with your calibrated model on held-out halves of VAL:"]
    sentences += [f"{_compared(rung, single)}." for rung in rungs if not rung.no_better]
    same = [str(rung.budget) for rung in rungs if rung.no_better]
    if same:
        sentences.append(
            f"Nothing better was found for {', '.join(same)} than for the budget below."
        )
    lossy = [rung for rung in rungs if _losses(rung.entry, single)]
    if lossy:
        sentences.append(f"To lose less than at {lossy[0].budget}: {_remedy(lossy[0], options)}.")
    files, page = str(options.out), ""
    if len(rungs) > 1:
        files, page = f"{files.rstrip('/')}/*.safetensors", " --html front.html"
    models = " ".join(shlex.quote(str(path)) for path in options.checkpoints)
    sentences.append(
        f"Next, on data that chose nothing: hydrasurgeon eval {files} {models} --data TEST{page}"
    )
    return "\n".join(sentences)


def _compared(rung: Rung, single: Entry) -> str:
    """`macs=0.5: one smaller model at 0.50x: loses in accuracy; accuracy -13.1 points (…)`."""
    entry = rung.entry
    what = f"{rung.budget}: {_what(entry)} at {entry.cost[rung.budget.unit]:.2f}x"
    if entry is single:
        return f"{what}: nothing within the budget is better by more than chance"
    changes = ", ".join(map(_change, _differences(entry, single)))
    better, worse = _judged(entry, single, "better"), _judged(entry, single, "worse")
    verdict = "no different by more than chance"
    if better and worse:
        verdict = f"better in {better}, worse in {worse}"
    elif better:
        verdict = f"better in {better}, nowhere worse by more than chance"
    elif worse:
        verdict = f"loses in {worse}"
    return f"{what}: {verdict}; {changes}"


def _what(entry: Entry) -> str:
    if entry.choice.name.startswith("single"):
        return "your model, calibrated"
    if entry.is_plain:
        return f"the {entry.choice.name}"
    count = len(entry.choice.members)
    if count == 1:
        return "one smaller model"
    if entry.choice.cascade is not None:
        return f"a cascade of {count} members"
    return f"a hydra of {count} members"


def _remedy(rung: Rung, options: BuildOptions) -> str:
    """What to try where a rung loses."""
    larger = min(1.0, 1.5 * rung.budget.most)
    remedies = []
    if rung.budget.most < 1:
        remedies.append(f"a larger budget (--budget {rung.budget.unit}={larger:g})")
    if options.tune is None:
        remedies.append("--tune auto, which distils the members")
    remedies.append("more of TRAIN for scores and repairs (--score-limit)")
    return ", or ".join(remedies)


def _differences(entry: Entry, single: Entry) -> list[Difference]:
    return [each for each in compared(entry.answers, single.answers) if each.metric in MEASURES]


def _losses(entry: Entry, single: Entry) -> str:
    return _judged(entry, single, "worse")


def _judged(entry: Entry, single: Entry, judgement: str) -> str:
    """`accuracy and NLL`: what is better, or worse, by more than chance."""
    return " and ".join(
        MEASURES[each.metric][0]
        for each in _differences(entry, single)
        if each.judgement == judgement
    )


def _change(difference: Difference) -> str:
    """`accuracy +0.4 points (-0.6 to +1.3)`."""
    name, factor, digits, unit = MEASURES[difference.metric]
    value, low, high = (
        f"{factor * number:+.{digits}f}"
        for number in (difference.value, difference.low, difference.high)
    )
    return f"{name} {value}{unit} ({low} to {high})"
