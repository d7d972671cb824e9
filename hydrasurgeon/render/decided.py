"""What `calibrate` found, and what `predict` answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydrasurgeon.render.console import as_json, say, show
from hydrasurgeon.render.pieces import notes

if TYPE_CHECKING:
    from hydrasurgeon.files.decided import Decision
    from hydrasurgeon.stages.calibrate import Calibrated
    from hydrasurgeon.stages.predict import Predicted

__all__ = ["calibrated", "decision_lines", "predicted"]

CHOSEN = {"option": "", "ood": ", the best on foreign and perturbed data", "perturbed": ", the best on perturbed data"}  # fmt: skip
"""How a report says what chose the OOD score."""


def calibrated(result: Calibrated, *, json: bool, quiet: bool) -> None:
    for name in result.skipped:
        if not quiet:
            say(f"skipped: {name}")
    if json:
        about = {"path": str(result.path), "decision": result.decision.model_dump(mode="json")}
        return as_json(about | {"notes": list(result.notes), "hub": result.hub})
    if quiet:
        return None
    notes(result.notes)
    show((str(result.path), "bold"), ": calibrated")
    for line in decision_lines(result.decision):
        show(f"  {line}")
    if result.decision.ood.auroc:
        ranked = sorted(result.decision.ood.auroc.items(), key=lambda pair: -pair[1])
        show("  AUROC: " + ", ".join(f"{name} {value:.3f}" for name, value in ranked))
    if result.hub is not None:
        show("uploaded to ", (result.hub, "bold"))
    return None


def decision_lines(decision: Decision) -> list[str]:
    """The state in words."""
    joint, ood, sets, abstain = decision.joint, decision.ood, decision.conformal, decision.abstain
    used = "temperature" if joint is None else "joint"
    constants = (
        f"temperature {decision.temperature:.3f}"
        if joint is None
        else f"joint calibration, aleatoric {joint.aleatoric:.3f}, epistemic {joint.epistemic:.3f}"
    )
    nll = decision.nll
    change = f" (NLL {nll['before']:.4f} → {nll[used]:.4f}, cross-fitted)" if {"before", used} <= set(nll) else ""  # fmt: skip
    lines = [
        f"{constants}{change}",
        f"OOD score {ood.score}{CHOSEN[ood.chosen_by]}; unfamiliar above {ood.threshold:.4g}, where {100 * ood.id_flagged:g} % of familiar samples lie",
        f"{sets.method} prediction sets that hold the true label in {100 * sets.coverage:g} % of cases",
    ]
    if abstain is not None:
        lines.append(
            f"answers from a probability of {abstain.threshold:.3f} on, {100 * abstain.coverage:.1f} % of samples: "
            f"at most {100 * abstain.risk:g} % of them wrong, with confidence {100 * (1 - abstain.delta):g} %"
        )
    return [
        *lines,
        f"fitted on {decision.fitted} samples, certified on {decision.certified} others",
    ]


def predicted(result: Predicted, *, json: bool, quiet: bool) -> None:
    """How many answers there are; rows that went to stdout have been there."""
    if json:
        about = {"path": str(result.path), "rows": result.rows, "answers": result.answers}
        return as_json(about | {"resumed": result.resumed, "notes": list(result.notes)})
    if quiet:
        return None
    for note in result.notes:
        say(note)
    if result.path is None:
        return None
    if result.resumed:
        show(f"{result.resumed} rows were there already")
    counts = ", ".join(f"{count} {what}" for what, count in result.answers.items())
    show((str(result.path), "bold"), f": {result.rows} rows ({counts})")
    return None
