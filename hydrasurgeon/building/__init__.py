"""build: what serves best within a budget, chosen by measuring and made by the other commands.

`members` says what could be chosen, `cost` and `clock` what it costs, `answers` keeps what each
answered; `search` makes candidates, the quickest first; `choosing` proposes and decides, by the
figures of `table`; `front` does so for every budget, and writes what is decided. `plan` says what is
ahead, `work` what lies in the work folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hydrasurgeon.building.front import Front, Rung, how_of
from hydrasurgeon.building.plan import TimeIsUp
from hydrasurgeon.building.search import PROBE, Search
from hydrasurgeon.building.table import Entry
from hydrasurgeon.measuring.bootstrap import Difference, compared
from hydrasurgeon.options.making import BuildOptions

MEASURES = {
    "f1": ("F1", 1, 3, ""),
    "accuracy": ("accuracy", 100, 1, " points"),
    "nll": ("NLL", 1, 3, ""),
    "rmse": ("RMSE", 1, 3, ""),
    "auroc": ("AUROC", 100, 1, " points"),
}
"""Measures that are compared: name, factor, digits and unit."""


def built(search: Search, front: Front) -> str:
    """Make candidates, and write each that is better than what is there, until all are tried, time is
    up, or somebody ends it; why not everything was tried.
    """
    ended = ""
    with search.plan.moving():
        try:
            for _ in search.stages():
                front.settle()
            if search.options.tune is not None:
                chosen = [member for rung in front.rungs for member in rung.entry.choice.members]
                for _ in search.distil(chosen):
                    front.settle()
        except (KeyboardInterrupt, SystemExit) as stop:  # Ctrl-C; SIGTERM
            if not front.rungs:
                raise
            what = "interrupted"
            if isinstance(stop, TimeIsUp):
                what = f"--max-minutes {search.options.max_minutes:g} are over"
            ended = f"{what}: the best so far is written; the same command goes on from here"
        search.plan.may_end = False
        front.finish(early=bool(ended))
    return ended


def summary_of(rungs: Sequence[Rung], single: Entry, options: BuildOptions) -> str:
    """What was made, how it compares with the model as it is, and what to do next."""
    lines = ["Written, compared with your calibrated model on held-out halves of VAL:"]
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
    files, page = str(options.out), ""
    if len(rungs) > 1:
        files, page = f"{files.rstrip('/')}/*.safetensors", " --html front.html"
    models = " ".join(shlex.quote(str(path)) for path in options.checkpoints)
    if single.choice.name == PROBE:  # of a body, which answers nothing itself
        models = shlex.quote(str(single.choice.members[0].file))
    lines.append(
        f"Next, on data that chose nothing: hydrasurgeon eval {files} {models} --data TEST{page}"
    )
    return "\n".join(lines)


def _what(entry: Entry) -> str:
    count = entry.choice.count
    what = f"a hydra of {count} members"
    if entry.is_plain:
        what = entry.choice.name
    elif count == 1:
        what = "one smaller model"
    return f"{what}{how_of(entry)}"


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
