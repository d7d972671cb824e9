"""A decision state in words: what `calibrate` and `inspect` print, and model cards tell, of it and of its data."""

from __future__ import annotations

from collections.abc import Iterator

from hydrasurgeon.files.decided import Decision
from hydrasurgeon.files.manifest import DataRecord, Manifest, Step

__all__ = ["data_lines", "decision_lines"]

CHOSEN = {"option": "", "ood": ", the best on foreign and perturbed data", "perturbed": ", the best on perturbed data"}  # fmt: skip
"""How a report says what chose the OOD score."""


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


def data_lines(manifest: Manifest) -> Iterator[tuple[str, DataRecord]]:
    """What the state was fitted on, and what for."""
    entry = next((step for step in reversed(manifest.history) if step.command == "calibrate"), None)
    return iter(()) if entry is None else zip(_uses(entry), entry.data, strict=True)


def _uses(entry: Step) -> list[str]:
    """What each data record of a calibration was for: first validation, then training, then foreign data."""
    uses = ["calibration: half of it fits, half certifies"]
    uses += ["OOD score fitted on"] * (entry.args.get("fit_data") is not None)
    others = len(entry.data) - len(uses)
    return [*uses, *["OOD score chosen by"] * others][: len(entry.data)]
