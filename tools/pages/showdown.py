"""docs/reference/showdown.md, docs/showdown.svg and README's lead table, from showdown.json and few.json of
benchmarks/results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pages import tables
from pages.front import saved
from pages.template import rendered

WAYS = {
    "setfit": "SetFit + optimum + MAPIE",
    "setfit longer": "SetFit, ten minutes",
    "trainer": "Trainer + temperature",
    "trainer longer": "Trainer, three epochs",
    "ours 1": "`build`, `time=1`",
    "ours 0.2": "`build`, `time=0.2`",
    "ours longer": "`build`, ten minutes",
}
COLOURS = ("#c7762b", "#e8b27d", "#5c5c5c", "#a3338b", "#1b6ca8", "#0b8a5c", "#7fb800")
MARKS = (
    "<!-- showdown: tools/render_docs.py writes it from benchmarks/results/showdown.json -->",
    "<!-- end of showdown -->",
)
"""Around the README's table."""
ROWS = (
    ("seeds", "seeds", "{:.0f}"),
    ("lines to write", "lines", "{:.0f}"),
    ("CPU minutes to train", "minutes", "{:.1f}"),
    ("start and one answer, CPU seconds", "start", "{:.1f}"),
    ("… MB", "megabytes", "{:.0f}"),
    ("ms a text, alone", "ms/1", "{:.2f}"),
    ("… 32 at once", "ms/32", "{:.2f}"),
    ("accuracy ↑", "accuracy", "{:.1%}"),
    ("NLL ↓", "nll", "{:.3f}"),
    ("ECE ↓", "ece", "{:.3f}"),
    ("at most 2 % wrong: answered ↑", "risk 0.02/answered", "{:.1%}"),
    ("… promise broken ↓", "risk 0.02/broken", "{:.1%}"),
    ("… out-of-scope answered ↓", "risk 0.02/answered far-scope", "{:.1%}"),
    ("at most 5 % wrong: answered ↑", "risk 0.05/answered", "{:.1%}"),
    ("… promise broken ↓", "risk 0.05/broken", "{:.1%}"),
    ("sets for 90 %: hold", "sets/covered", "{:.1%}"),
    ("… labels ↓", "sets/size", "{:.2f}"),
    ("out-of-scope refused ↑", "refused far-scope", "{:.1%}"),
    ("other intents refused ↑", "refused near-intents", "{:.1%}"),
)
GOALS: tuple[tuple[str, str, str, Callable[[float], bool]], ...] = (
    ("ms/1", "{} ms a text", "0.4 ms a text", lambda ms: ms <= 0.4),
    ("accuracy", "{} accuracy", "97 % accuracy", lambda right: right >= 0.965),
    (
        "risk 0.02/broken",
        "at most 2 % of answers wrong (broken in {} of random splits)",
        "kept in 95 % of random splits",
        lambda broken: broken <= 0.05,
    ),
    (
        "refused far-scope",
        "{} of out-of-scope queries refused",
        "9 of 10 refused",
        lambda refused: refused >= 0.9,
    ),
)
"""Goals for `build` with a time of 0.2 on CLINC150, in these words."""
CLAIMED = "ours longer"
"""`build` as it is where nobody says how long it may take."""
DRAWN = ("ms/1", "accuracy", "risk 0.02/answered", "risk 0.02/broken")
"""Left against errors; right against each other."""
LEAD_WAYS = [way for way in WAYS if way != "ours 1"]
LEAD = ("lines", "start", "ms/1", "accuracy", "nll", *DRAWN[2:], "refused far-scope")
"""The rows that README has room for."""
FEW_WAYS = {
    "setfit": "SetFit",
    "setfit temperature": "… temperature",
    "regression temperature": "regression, temperature",
    "ours": "`build`",
}
FEW_TASKS = {"clinc": "CLINC150", "movie": "movies"}
FEW_ROWS = (
    ("accuracy ↑, %", "accuracy", 100, 1),
    ("NLL ↓", "nll", 1, 3),
    ("ECE ↓", "ece", 1, 3),
    ("CPU minutes", "minutes", 1, 1),
    ("out-of-scope refused ↑, %", "refused far-scope", 100, 1),
    ("other intents refused ↑, %", "refused near-intents", 100, 1),
)
"""Title, name, factor and decimals."""
Results = dict[str, Any]


def page(results: Results, few: Results) -> str:
    """Return the page."""
    by_task = {task: table(results, task) for task in results["tasks"]}
    return rendered(
        "showdown",
        results=results,
        tables=by_task,
        claim=claim(results),
        results_few=few,
        few=few_table(few),
    )


def lead(results: Results, few: Results) -> str:
    """Return README's table, with the claims below it."""
    rows = [row for row in ROWS if row[1] in LEAD]
    return f"{table(results, 'clinc', rows, LEAD_WAYS)}\n\n{claim(results)} {few_claim(few)}"


def few_table(few: Results) -> str:
    """Return the table of few texts a class: means ± standard errors."""
    lines = []
    for case, ways in few["cases"].items():
        task, shots = case.split()
        for way, title in FEW_WAYS.items():
            if way in ways:
                figures = [few_figure(ways[way], *row[1:]) for row in FEW_ROWS]
                lines.append([f"{FEW_TASKS[task]}, {shots}", title, str(len(ways[way])), *figures])
    heads = ["texts a class", "", "seeds", *(row[0] for row in FEW_ROWS)]
    return "\n".join(tables.table(heads, lines))


def few_figure(runs: list[dict[str, float]], name: str, factor: float, decimals: int) -> str:
    """Return a mean and its standard error; – if it was not measured."""
    values = [factor * run[name] for run in runs if name in run]
    if not values:
        return "–"
    error = f"±{stdev(values) / len(values) ** 0.5:.{decimals}f}" if len(values) > 1 else ""
    return f"{mean(values):.{decimals}f}{error}"


def few_claim(few: Results) -> str:
    """Return accuracy and NLL with the fewest rows of CLINC150."""
    ways = few["cases"]["clinc 8"]
    built, setfit, temperature = (
        [mean(run[name] for run in ways[way]) for name in ("accuracy", "nll")]
        for way in ("ours", "setfit", "setfit temperature")
    )
    return (
        f"With 8 texts a class: {built[0]:.1%} accuracy, NLL {built[1]:.2f} (SetFit {setfit[0]:.1%}, "
        f"{setfit[1]:.2f}; calibrated {temperature[1]:.2f})."
    ).replace("%", " %")


def figure(results: Results, task: str, way: str, path: str) -> float | None:
    """Return the mean over seeds; None if it was not measured."""
    timed = results.get("times", {}).get(way, {}) if task == "clinc" else {}
    values = []
    for seed in results["tasks"][task].get(way, []):
        counts = {"lines": results["lines"][way], "seeds": len(results["tasks"][task][way])}
        value: Any = {**seed, **timed, **counts}
        for key in path.split("/"):
            value = None if value is None else value.get(key)
        values.append(value)
    if not values or None in values:
        return None
    return mean(values) / (results["splits"] if path.endswith("broken") else 1)


def table(results: Results, task: str, rows: Any = ROWS, among: Iterable[str] = WAYS) -> str:
    """Return a table with a row for each question and a column for each way."""
    ways = [way for way in among if way in results["tasks"][task]]
    lines = [f"| | {' | '.join(WAYS[way] for way in ways)} |", f"|---|{'---:|' * len(ways)}"]
    for title, path, form in rows:
        values = [figure(results, task, way, path) for way in ways]
        if any(value is not None for value in values):
            cells = ["–" if value is None else form.format(value) for value in values]
            unit = ", %" * form.endswith("%}")
            shown = " | ".join(cell.rstrip("%") for cell in cells)
            lines.append(f"| {title}{unit} | {shown} |")
    return "\n".join(lines)


def claim(results: Results) -> str:
    """Return the goals with their figures, and those that were missed."""
    shown, missed, unknown = [], [], []
    for path, sentence, goal, reached in GOALS:
        value = figure(results, "clinc", CLAIMED, path)
        if value is None:
            unknown.append(goal)
        else:
            form = {row[1]: row[2] for row in ROWS}[path]
            shown.append(sentence.format(form.format(value).replace("%", " %")))
            missed += [] if reached(value) else [goal]
    judged = " ".join(
        f"{verdict}: {', '.join(goals)}."
        for verdict, goals in (("Goals missed", missed), ("Not measured", unknown))
        if goals
    )
    judged = judged or "All that was set as a goal is reached."
    return f"**`build` in ten minutes: one file, one core, {', '.join(shown)}.** {judged}"


def plot(results: Results, path: Path) -> None:
    """Time against errors; what is answered under a promise against how often that is broken."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8.2, 3.2), layout="constrained")
    left, right = drawn.subplots(1, 2)
    for (way, title), colour in zip(WAYS.items(), COLOURS, strict=True):
        label = title.replace("`", "")
        ms, accuracy, answered, broken = (figure(results, "clinc", way, path) for path in DRAWN)
        if ms is not None and accuracy is not None:
            left.plot(ms, 100 - 100 * accuracy, "o", color=colour, markersize=8)
        if answered is not None and broken is not None:
            right.plot(100 * answered, 100 * broken, "o", color=colour, markersize=8, label=label)
    left.set(xlabel="ms a text, one core", ylabel="% wrong", xscale="log", ylim=(0, None))
    left.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    left.minorticks_off()
    right.set(
        xlabel="% answered, promised: at most 2 % wrong", ylabel="% of halvings that broke it"
    )
    right.set(xlim=(-4, 104), ylim=(-4, 104))
    for panel in (left, right):
        panel.grid(visible=True, alpha=0.25)
    saved(drawn, right, path)
