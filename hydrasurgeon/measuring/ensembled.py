"""A Deep Ensemble of models that were run one by one: their predictions files, member beside member."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.mixture import joined
from hydrasurgeon.measuring.predictions import OodSet, Predictions, ShiftSet
from hydrasurgeon.measuring.report import Cost
from hydrasurgeon.visible import visible


def ensembled(files: Sequence[tuple[Path, Predictions]]) -> Predictions:
    """All their members as one model's; DataError where they did not answer for the same samples."""
    (first_path, first), *others = files
    for path, other in others:
        _alike(first_path, first, path, other)
    every = [predictions for _, predictions in files]
    costs = [predictions.cost for predictions in every]
    ood = [{each.name: each for each in predictions.ood} for predictions in every]
    shift = [{(each.name, each.severity): each for each in p.shift} for p in every]
    return Predictions(
        name=" + ".join(predictions.name for predictions in every),
        kind="ensemble",
        logits=_joined([predictions.logits for predictions in every]),
        labels=first.labels,
        ood=tuple(
            OodSet(s.name, s.group, _joined([logits for sets in ood if (logits := sets[s.name].logits) is not None]))
            for s in first.ood
        ),
        shift=tuple(
            ShiftSet(s.name, s.severity, _joined([sets[s.name, s.severity].logits for sets in shift]), s.labels)
            for s in first.shift
        ),
        cost=_in_turn([cost for cost in costs if cost is not None]) if all(costs) else None,
        mixture=joined([(each.members, each.mixture) for each in every]),
        notes=tuple(note for each in every for note in each.notes),
    )


def _joined(logits: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.to(logits[0].dtype) for each in logits], dim=1)


def _in_turn(costs: Sequence[Cost]) -> Cost:
    """What it costs to run them one after another."""
    return Cost(
        params=sum(cost.params for cost in costs),
        macs=sum(cost.macs for cost in costs),
        latency_ms=None,
        tokens=costs[0].tokens,
    )


def _alike(first_path: Path, first: Predictions, path: Path, other: Predictions) -> None:
    """Refuse what cannot be members of one ensemble."""

    def refuse(what: str) -> None:
        raise DataError(
            f"--ensemble: {first_path} and {path} {what}",
            hint=(
                "Write both with eval --predictions on the same data, in the same order and with the same --limit and"
                " --seed."
            ),
        )

    if first.logits.shape[2] != other.logits.shape[2]:
        refuse(f"have {first.logits.shape[2]} and {other.logits.shape[2]} classes")
    if not torch.equal(first.labels, other.labels):
        refuse("have other labels")
    bare = [s.name for p in (first, other) for s in p.ood if s.logits is None]
    if bare:
        refuse(f"hold scores of {visible(bare[0])} without logits, of which no ensemble can be made")
    foreign, theirs = ({s.name: (s.group, len(s)) for s in p.ood} for p in (first, other))
    if foreign != theirs:
        refuse("hold other OOD sets")
    shifted, their = ({(s.name, s.severity): s.labels.tolist() for s in p.shift} for p in (first, other))
    if shifted != their:
        refuse("hold other shifted sets")
