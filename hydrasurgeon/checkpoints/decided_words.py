"""A decision state in words: what `calibrate` and `inspect` print, and model cards tell, of it and
of its data.
"""

from __future__ import annotations

from collections.abc import Iterator

from hydrasurgeon.files.decided import DecisionRecord
from hydrasurgeon.files.manifest import DataRecord, Manifest
from hydrasurgeon.lookup import format_number, percent

CHOSEN = {
    "option": "",
    "ood": ": it separates the OOD data best",
    "perturbed": ": it separates perturbed validation rows best",
    "default": "",
}
"""Phrases for what the OOD score was chosen by."""
SURE_OF_NOTHING = 0.005
"""A threshold below this leaves no familiar input unanswered."""
CALIBRATED = 0.05
"""A temperature as near to 1 as this changes hardly any probability."""


def decision_lines(decision: DecisionRecord) -> list[str]:
    """Return the decision state as sentences without a full stop."""
    return [*fitted_lines(decision), *promise_lines(decision)]


def fitted_lines(decision: DecisionRecord) -> list[str]:
    """Return what was fitted, and on how many rows."""
    lines = [_constants(decision)]
    if decision.accuracy is not None:
        of_what = "" if decision.labels is None else " of each yes or no"
        if decision.entities is not None:
            of_what = " of words"
        lines.append(f"accuracy{of_what} {percent(decision.accuracy)} on the validation rows")
    if decision.words is not None:
        worth = decision.words.worth
        gain = worth.nll[0] - worth.nll[1]
        verb = "lowers" if gain >= 0 else "raises"
        lines.append(
            f"the bag-of-words model {verb} NLL by {abs(gain):.4f} on rows that it was not fitted on (standard error {worth.se:.4f})"
        )
    if decision.cascade is not None:
        first = "the first member"
        if decision.cascade.novelty is not None:
            first = "the bag-of-words model"
        lines.append(
            f"cascade: {first} answers if it is at least {percent(decision.cascade.threshold)} sure; {percent(decision.cascade.share_on)} of the rows go on to the full model"
        )
    rows = f"fitted on {decision.fitted:,} rows, certified on {decision.certified:,} others"
    if decision.estimated:
        rows = f"estimated on {decision.fitted:,} training rows by classifiers of five folds: no promise"
    return [*lines, f"OOD score {decision.ood.score}{CHOSEN[decision.ood.chosen_by]}", rows]


def promise_lines(decision: DecisionRecord) -> list[str]:
    """Return what to expect of the answers."""
    ood, abstain, limits = decision.ood, decision.abstain, decision.limits
    lines = [
        f"an input is unfamiliar if its OOD score exceeds {format_number(ood.threshold)}, as it does for {percent(ood.id_flagged)} of normal inputs",
        _sets(decision),
    ]
    if limits is not None:
        most = percent(limits.risk)
        yes = f"it never says yes: no threshold keeps at most {most} of these answers wrong"
        if limits.yes is not None:
            yes = f"it says yes from a probability of {percent(limits.yes)}: at most {most} of these answers are wrong"
        lines += [
            yes,
            f"it says no below a probability of {percent(limits.no)}: at most {most} of the true yes are missed",
            f"it answers {percent(limits.answered)} of the rows; each limit holds with {percent(1 - limits.delta)} confidence",
        ]
    if abstain is not None:
        rows = "entities" if decision.entities else "rows"
        sure = (
            f"it answers if it is at least {percent(abstain.threshold)} sure, which is the case for"
        )
        if abstain.threshold < SURE_OF_NOTHING:
            sure = "it answers every familiar input:"
        lines.append(
            f"{sure} {percent(abstain.coverage)} of {rows}; at most {percent(abstain.risk)} of these answers are wrong ({percent(1 - abstain.delta)} confidence)"
        )
    if decision.cover is not None:
        cover = decision.cover
        lines.append(
            f"a word belongs to an entity from a probability of {percent(cover.threshold)} ({percent(cover.words)} of words); at most {percent(cover.risk)} of true entities are missed ({percent(1 - cover.delta)} confidence)"
        )
    return lines


def _constants(decision: DecisionRecord) -> str:
    """Return what calibrates, and what that does to the NLL."""
    joint, nll = decision.joint, decision.nll
    used = "temperature" if joint is None else "joint"
    change = ""
    if {"before", used} <= set(nll):
        worse = ": it does not help there" if nll[used] > nll["before"] else ""
        change = (
            f" (on rows that it was not fitted on, NLL goes from {nll['before']:.3f} to "
            f"{nll[used]:.3f}{worse})"
        )
    if decision.labels is not None:
        return f"a temperature and a threshold for each of {len(decision.labels.thresholds)} labels{change}"
    if joint is not None:
        return f"joint calibration, aleatoric {joint.aleatoric:.3f}, epistemic {joint.epistemic:.3f}{change}"
    if decision.bias is not None:
        return f"temperature {decision.temperature:.3f}, bias {decision.bias:.3f}{change}"
    if abs(decision.temperature - 1) < CALIBRATED:
        return f"temperature {decision.temperature:.3f}: hardly any correction was needed"
    return f"temperature {decision.temperature:.3f}{change}"


def _sets(decision: DecisionRecord) -> str:
    """Return what prediction sets promise."""
    sets = decision.conformal
    if decision.entities is not None:
        how = {"product": "product", "least": "smallest"}[decision.entities.probability]
        return f"the probability of an entity is the {how} of its words' probabilities"
    if decision.labels is not None:
        return f"prediction sets miss at most {percent(1 - sets.coverage)} of the labels, on average over rows that have one"
    if decision.joint is not None:  # of numbers
        return f"intervals hold the truth in {percent(sets.coverage)} of cases"
    return (
        f"prediction sets ({sets.method}) hold the true label in {percent(sets.coverage)} of cases"
    )


def data_lines(manifest: Manifest) -> Iterator[tuple[str, DataRecord]]:
    """Yield the use and the record of each data set: validation, then training, then OOD data."""
    entry = next((step for step in reversed(manifest.history) if step.command == "calibrate"), None)
    if entry is None:
        return
    uses = ["calibration: a third of it fits, the others certify"]
    if entry.args.get("certify") is not None:
        uses = ["calibration: fits", "calibration: certifies"]
    uses += ["OOD score fitted on"] * (entry.args.get("fit_data") is not None)
    pseudo_labelled = ["answered, for words to learn"] * (entry.args.get("unlabelled") is not None)
    ood_sets = len(entry.data) - len(uses) - len(pseudo_labelled)
    uses += [*["OOD score chosen by"] * ood_sets, *pseudo_labelled]
    yield from zip(uses, entry.data, strict=False)
