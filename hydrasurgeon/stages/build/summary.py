"""build's last paragraph: what was made, beside what, what that gains and loses, what it costs, and
what to do next.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.measuring.bootstrap import Difference, compared
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.stages.build.comparing import Choosing, Row, crossed
from hydrasurgeon.stages.build.cost import Budget
from hydrasurgeon.stages.build.front import Rung

NAMES = {
    "accuracy": ("accuracy", 100, 1, " points"),
    "nll": ("NLL", 1, 3, ""),
    "auroc": ("AUROC", 100, 1, " points"),
}
"""Measures that are compared: name, factor, digits and unit."""


def summary_of(
    rows: Sequence[Row],
    answers: Sequence[Answered],
    rival: Answered,
    budgets: Sequence[Budget],
    options: BuildOptions,
) -> str:
    """One paragraph in plain words on what was made, the last of them compared with the model as it
    is.
    """
    last = rows[-1]
    against = [[d for d in compared(each, rival) if d.metric in NAMES] for each in answers]
    sentences = []
    if len(budgets) > 1:
        word = "checkpoint" if len(rows) == 1 else "checkpoints"
        sentences.append(
            f"{'To be written' if options.dry_run else 'Written'}: {len(rows)} {word}."
        )
        good = [
            row
            for row, differences in zip(rows, against, strict=True)
            if not _named(differences, "worse")
        ]
        if good:
            sentences.append(
                "The cheapest that is nowhere worse than your model by more than chance costs "
                f"{good[0].price} of it"
                f" ({good[0].name})."
            )
        sentences.append(f"The dearest one is {_what(last)}.")
    changes = ", ".join(_change(difference) for difference in against[-1])
    sentences.append(f"Beside your model, calibrated too, on data that did not choose: {changes}.")
    made = (
        "at that price" if len(budgets) > 1 else "to be written" if options.dry_run else "written"
    )
    sentences.append(verdict(last, against[-1], budgets[-1], made))
    files = options.out if len(budgets) == 1 else f"{options.out}".rstrip("/") + "/*.safetensors"
    models = " ".join(shlex.quote(str(path)) for path in options.checkpoints)
    page = "" if len(budgets) == 1 else " --html front.html"
    sentences.append(
        f"Next, on data that chose nothing: hydrasurgeon eval {files} {models} --data TEST{page}"
    )
    return " ".join(sentences)


def verdict(
    row: Row, differences: Sequence[Difference], budget: Budget, made: str = "written"
) -> str:
    """Whether it is worth it."""
    better, worse = _named(differences, "better"), _named(differences, "worse")
    cost = row.cost[budget.unit]
    price = (
        f"costs {cost:.2f} times as much" if cost > 1 else f"is {100 * (1 - cost):.0f} % cheaper"
    )
    nothing = (
        f"Nothing within {budget.most:g}x beats your model on this data by more than "
        f"chance; {made}:"
    )
    if row.members == 1 and cost == 1 and not better:
        return f"{nothing} one model of the same price."
    if better and worse:
        return (
            f"It gains in {better}, loses in {worse} by more than chance, and {price}: weigh them."
        )
    if better:
        return (
            f"It is better in {better} by more than chance, nowhere worse, and {price}: worth it."
        )
    if worse:
        return f"{nothing} {_what(row)}, which {price} and is worse in {worse} by more than chance."
    if cost <= 1:
        return f"{nothing} {_what(row)}, {100 * (1 - cost):.0f} % cheaper, as good."
    return f"{nothing} {_what(row)}, which {price}: stay with your model, and calibrate it."


def _what(row: Row) -> str:
    return "one member" if row.members == 1 else f"a hydra of {row.members} members"


def _named(differences: Sequence[Difference], judgement: str) -> str:
    return " and ".join(
        NAMES[each.metric][0] for each in differences if each.judgement == judgement
    )


def _change(difference: Difference) -> str:
    """`accuracy +0.4 points (-0.6 to +1.3)`."""
    name, factor, digits, unit = NAMES[difference.metric]
    value, low, high = (
        f"{factor * each:+.{digits}f}"
        for each in (difference.value, difference.low, difference.high)
    )
    return f"{name} {value}{unit} ({low} to {high})"


def answers_of(choosing: Choosing, climbed: Sequence[Rung]) -> list[Answered]:
    """What each rung answers, where the other half of the samples chose it."""
    each = (
        [[r.cascade.answers]] * 2 if r.cascade else choosing.halves(r.choice, r.judged)
        for r in climbed
    )
    return [crossed(*halves) for halves in each]
