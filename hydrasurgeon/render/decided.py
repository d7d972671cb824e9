"""What `calibrate` found, and what `predict` answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.decided_words import decision_lines
from hydrasurgeon.render.console import as_json, say, show
from hydrasurgeon.render.pieces import notes

if TYPE_CHECKING:
    from hydrasurgeon.stages.calibrate import Calibrated
    from hydrasurgeon.stages.predict import Predicted


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
