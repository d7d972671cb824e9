"""What a model's answers cost: right, wrong, none, or that a row is unfamiliar."""

from __future__ import annotations

import torch
from torch import Tensor

from hydrasurgeon.measuring.answers import Answered, Reading, in_pieces
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.measuring.results import Scod
from hydrasurgeon.statistics.costs import losses, together


def scod_of(predictions: Predictions, row: Answered, reading: Reading) -> Scod | None:
    """The mean over ID and OOD rows; None where nothing says what answers cost."""
    costs = reading.costs
    if costs is None:
        return None
    scores = row.scores.get(row.used)
    inside = _mean(predictions.logits, predictions.labels, scores, reading)
    outside = {
        given.name: _mean(given.logits, None, read.scores[row.used], reading)
        for given, read in zip(predictions.ood, row.foreign, strict=True)
    }
    loss = together(costs, inside, [*outside.values()])
    return Scod(loss=loss, id=inside, ood=outside, costs=costs.model_dump())


def _mean(
    logits: Tensor | None, labels: Tensor | None, scores: Tensor | None, reading: Reading
) -> float:
    """The mean loss; without labels rows are OOD, and without logits nobody abstains."""
    assert reading.costs is not None
    given = scores if logits is None else logits
    assert given is not None
    unfamiliar = torch.zeros(len(given), dtype=torch.bool)
    if scores is not None and reading.threshold is not None:
        unfamiliar = scores > reading.threshold
    abstain, wrong = torch.zeros_like(unfamiliar), torch.ones_like(unfamiliar)
    if logits is not None:
        said = [_said(rows, reading) for (rows,) in in_pieces(logits)]
        answers, abstain = (torch.cat(each) for each in zip(*said, strict=True))
        if labels is not None:
            wrong = answers != reading.problem.truth(labels)
    return float(losses(reading.costs, unfamiliar, abstain, wrong, ood=labels is None).mean())


def _said(logits: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
    """Classes, and where to abstain."""
    problem = reading.problem
    prediction = problem.predicted(logits, reading.constants)
    if reading.record is not None:
        nothing = torch.zeros(len(logits), dtype=torch.float64)
        prediction = problem.decided(prediction, reading.record, nothing)
    return prediction.labels, prediction.abstain
