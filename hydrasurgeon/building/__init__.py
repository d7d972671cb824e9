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

from hydrasurgeon.building.body import Body
from hydrasurgeon.building.cost import Budget
from hydrasurgeon.building.front import Front, Rung, draw_front, engine_of, name_of, write_front
from hydrasurgeon.building.making import (
    Copy,
    Search,
    commands_of,
    distilled,
    make,
    probed,
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
    "f1": ("F1", 1, 3, ""),
    "accuracy": ("accuracy", 100, 1, " points"),
    "nll": ("NLL", 1, 3, ""),
    "rmse": ("RMSE", 1, 3, ""),
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
    body: Body | None = None,
) -> Outcome | None:
    """Search, decide and make; None in all processes but the first."""
    with joined() as world:  # once: processes that part cannot meet again
        search = searched(models, sets, options, budgets, averaged=averaged)
        if body is not None:
            search = replace(search, commands=(*body.tunings, *search.commands))
        search = probed(search, None if body is None else body.options.paths[0])
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
        summary=summary_of(rungs, front.single, options) + _cost_of_stock(front, rungs),
    )


def _cost_of_stock(front: Front, rungs: Sequence[Rung]) -> str:
    """What sizes that need our code would change, where --stock left them out."""
    lines = []
    for rung in rungs:
        other = front.better_with_code(rung)
        if other is None:
            continue
        changes = compared(other.answers, rung.entry.answers)
        shown = "; ".join(_change(each) for each in changes if each.metric in MEASURES)
        label = other.choice.members[0].label
        lines.append(f"\nWithout --stock, {rung.budget}: {label}, with code of ours: {shown}")
    return "".join(lines)


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
    lines = [f"{written}, compared with your calibrated model on held-out halves of VAL:"]
    lossy: dict[str, list[str]] = {}
    for rung in rungs:
        what = f"{rung.budget}: {_what(rung.entry)} at {rung.entry.cost[rung.budget.unit]:.2f}x"
        if rung.no_better:
            lines.append(f"{rung.budget}: nothing better than for the budget below")
        elif rung.entry is single:
            lines.append(f"{what}: nothing is better by more than chance")
        else:
            changes = compared(rung.entry.answers, single.answers)
            changes = tuple(each for each in changes if each.metric in MEASURES)
            lines.append(f"{what}: {'; '.join(map(_change, changes))}")
            lost = [MEASURES[each.metric][0] for each in changes if each.judgement == "worse"]
            if lost:
                lossy[str(rung.budget)] = lost
    if lossy:
        lines.append(
            f"{next(iter(lossy))} loses in {' and '.join(next(iter(lossy.values())))} by "
            f"more than chance. To lose less: {_remedy(options)}."
        )
    files, page = str(options.out), ""
    if len(rungs) > 1:
        files, page = f"{files.rstrip('/')}/*.safetensors", " --html front.html"
    models = " ".join(shlex.quote(str(path)) for path in options.checkpoints)
    lines.append(
        f"Next, on data that chose nothing: hydrasurgeon eval {files} {models} --data TEST{page}"
    )
    return "\n".join(lines)


def _what(entry: Entry) -> str:
    count = len(entry.choice.members)
    what = f"a hydra of {count} members"
    if entry.is_plain:
        what = entry.choice.name
    elif count == 1:
        what = "one smaller model"
    return f"{what}{engine_of(entry)}"


def _remedy(options: BuildOptions) -> str:
    """What to try where a rung loses."""
    remedies = ["a larger budget", "more of TRAIN for scores and repairs (--score-limit)"]
    if options.tune is None:
        remedies.append("distilled members (--tune auto)")
    return ", or ".join(remedies)


def _change(difference: Difference) -> str:
    """`accuracy +0.4 points (-0.6 to +1.3)`, and whether that is better or worse."""
    name, factor, digits, unit = MEASURES[difference.metric]
    value, low, high = (
        f"{factor * number:+.{digits}f}"
        for number in (difference.value, difference.low, difference.high)
    )
    text = f"{name} {value}{unit} ({low} to {high})"
    if difference.judgement == "equal":
        return text
    return f"{text}, {difference.judgement}"
