"""A decision state in words: what `calibrate` and `inspect` print, and model cards tell, of it and
of its data.
"""

from __future__ import annotations

from collections.abc import Iterator

from hydrasurgeon.files.decided import Decision
from hydrasurgeon.files.manifest import DataRecord, Manifest
from hydrasurgeon.lookup import format_number

CHOSEN = {
    "option": "",
    "ood": ", the best on OOD data",
    "perturbed": ", the best on perturbed data",
    "default": "",
}
"""How a report says what chose the OOD score."""


def decision_lines(decision: Decision) -> list[str]:
    """The state in words."""
    joint, ood, abstain, limits = decision.joint, decision.ood, decision.abstain, decision.limits
    used = "temperature" if joint is None else "joint"
    nll = decision.nll
    how = "cross-fitted" if decision.labels is None else "on samples that fitted nothing"
    change = (
        f" (NLL {nll['before']:.4f} → {nll[used]:.4f}, {how})"
        if {"before", used} <= set(nll)
        else ""
    )
    lines = [f"{_constants(decision)}{change}"]
    if decision.accuracy is not None:
        of_what = "" if decision.labels is None else " of each yes or no"
        if decision.entities is not None:
            of_what = " of words"
        lines.append(f"accuracy{of_what} {decision.accuracy:.3f} on the validation data")
    lines += [
        f"OOD score {ood.score}{CHOSEN[ood.chosen_by]}; unfamiliar above {format_number(ood.threshold, 4)}, where {100 * ood.id_flagged:.3g} % of in-distribution samples lie",
        _sets(decision),
    ]
    if limits is not None:
        most, sure = (
            f"at most {100 * limits.risk:g} %",
            f"each with confidence {100 * (1 - limits.delta):g} %",
        )
        surely = f"never yes, for no threshold keeps {most} of these wrong"
        if limits.yes is not None:
            surely = f"yes from a probability of {limits.yes:.3f} on, {most} of them wrong"
        lines.append(
            f"{surely}; no below {limits.no:.3f}, {most} of what is yes missed; {sure}; answers {100 * limits.answered:.1f} % of samples"
        )
    if abstain is not None:
        lines.append(
            f"answers from a probability of {abstain.threshold:.3f} on, {100 * abstain.coverage:.1f} % of {'entities' if decision.entities else 'samples'}: at most {100 * abstain.risk:g} % of them wrong, with confidence {100 * (1 - abstain.delta):g} %"
        )
    if decision.cover is not None:
        cover = decision.cover
        lines.append(
            f"words belong to entities from a probability of {cover.threshold:.3g} on, {100 * cover.words:.1f} % of them: at most {100 * cover.risk:g} % of true entities missed, with confidence {100 * (1 - cover.delta):g} %"
        )
    if decision.words is not None:
        worth = decision.words.worth
        lines.append(
            f"words beside the model: NLL {worth.nll[0]:.4f} → {worth.nll[1]:.4f} on samples that fitted none of it (standard error of the difference {worth.se:.4f})"
        )
    if decision.cascade is not None:
        who = "words answer" if decision.cascade.novelty is not None else "the first member answers"
        lines.append(
            f"cascade: {who} from a probability of {decision.cascade.threshold:.3f} on; {100 * decision.cascade.share_on:.1f} % of samples go on to the whole model"
        )
    rows = f"{decision.fitted:,} validation rows fit, certified on {decision.certified:,} others"
    if decision.estimated:
        rows = f"estimated on {decision.fitted:,} training rows by classifiers of five folds: no promise"
    return [*lines, rows]


def _constants(decision: Decision) -> str:
    """What calibrates."""
    joint = decision.joint
    if decision.labels is not None:
        return f"a temperature and a threshold for each of {len(decision.labels.thresholds)} labels"
    if joint is not None:
        return (
            f"joint calibration, aleatoric {joint.aleatoric:.3f}, epistemic {joint.epistemic:.3f}"
        )
    return f"temperature {decision.temperature:.3f}" + (
        "" if decision.bias is None else f", bias {decision.bias:.3f}"
    )


def _sets(decision: Decision) -> str:
    """What prediction sets promise."""
    sets = decision.conformal
    if decision.entities is not None:
        how = {"product": "the product", "least": "the least"}[decision.entities.probability]
        return f"an entity is as probable as {how} of its words' probabilities"
    if decision.labels is not None:
        return f"sets that miss at most {100 * (1 - sets.coverage):.3g} % of the labels, on average over samples that have one"
    if decision.joint is not None:  # of numbers
        return f"intervals that hold the truth in {100 * sets.coverage:g} % of cases"
    return f"{sets.method} prediction sets that hold the true label in {100 * sets.coverage:g} % of cases"


def data_lines(manifest: Manifest) -> Iterator[tuple[str, DataRecord]]:
    """What the state was fitted on, and what for: first validation, then training, then OOD data."""
    entry = next((step for step in reversed(manifest.history) if step.command == "calibrate"), None)
    if entry is None:
        return
    uses = ["calibration: a third of it fits, the others certify"]
    if entry.args.get("certify") is not None:
        uses = ["calibration: fits", "calibration: certifies"]
    uses += ["OOD score fitted on"] * (entry.args.get("fit_data") is not None)
    taught = ["answered, for words to learn"] * (entry.args.get("unlabelled") is not None)
    others = len(entry.data) - len(uses) - len(taught)
    uses += [*["OOD score chosen by"] * others, *taught]
    yield from zip(uses, entry.data, strict=False)
