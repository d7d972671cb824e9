"""The conditions that a fair comparison holds alike: training, calibration, and the OOD score in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.manifest import DataRecord

MOST_SHOWN = 3
"""Data sets that a difference names."""


@dataclass(frozen=True)
class Provenance:
    """How a model was made, as its history records it."""

    steps: int | None = 0
    """Optimizer steps from the first training to the last; None where the history does not tell."""
    trained_on: tuple[DataRecord, ...] = ()
    calibrated_on: DataRecord | None = None


@dataclass(frozen=True)
class Conditions:
    """What one row of the report rests on."""

    ood_score: str | None = None
    """None where no OOD data were measured."""
    calibrated: bool = False
    provenance: Provenance | None = None
    """None where only predictions are known."""


def unlike(model: Conditions, reference: Conditions) -> dict[str, str]:
    """What the two do not have in common: {"training": "trained 148 steps, the reference 111"}."""
    phrases = {}
    mine, theirs = model.provenance or Provenance(), reference.provenance or Provenance()
    both = model.provenance is not None and reference.provenance is not None
    if both and mine.steps != theirs.steps:
        phrases["training"] = f"trained {_steps(mine)}, the reference {_steps(theirs, short=bool(mine.steps))}"
    if both and {each.sha256 for each in mine.trained_on} != {each.sha256 for each in theirs.trained_on}:
        phrases["training data"] = f"trained on {_named(mine.trained_on)}, the reference on {_named(theirs.trained_on)}"
    if model.ood_score != reference.ood_score and None not in (model.ood_score, reference.ood_score):
        phrases["OOD score"] = f"OOD by {visible(model.ood_score)}, the reference by {visible(reference.ood_score)}"
    ours, others = mine.calibrated_on, theirs.calibrated_on
    if model.calibrated != reference.calibrated:
        phrases["calibration"] = (
            "calibrated, the reference not" if model.calibrated else "not calibrated, the reference is"
        )
    elif ours is not None and others is not None and ours.sha256 != others.sha256:
        phrases["calibration"] = f"calibrated on {_named([ours])}, the reference on {_named([others])}"
    return phrases


def _steps(provenance: Provenance, *, short: bool = False) -> str:
    if not provenance.steps:
        return "an unknown number of steps" if provenance.steps is None else "no steps on record"
    return f"{provenance.steps:,}" if short else f"{provenance.steps:,} step{'' if provenance.steps == 1 else 's'}"


def _named(data: Sequence[DataRecord]) -> str:
    """Data sets by name and size."""
    names = [f"{visible(each.spec)} ({each.rows:,} samples)" for each in data]
    more = [f"{len(names) - MOST_SHOWN} more"] if len(names) > MOST_SHOWN else []
    return " and ".join([*names[:MOST_SHOWN], *more]) or "no data on record"
