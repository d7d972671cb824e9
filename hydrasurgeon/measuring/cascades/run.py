"""Running a cascade on data sets: what the members that ran said, read as predictions are; NaN
stands for those that did not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.decision.cascaded import step_state
from hydrasurgeon.decision.state import State
from hydrasurgeon.files.decided import Cascade
from hydrasurgeon.measuring.answers import Reading
from hydrasurgeon.measuring.cost import SideBySide, step_macs
from hydrasurgeon.measuring.rows import Row, row_of
from hydrasurgeon.measuring.running import How, predicted
from hydrasurgeon.measuring.sets import DataSets
from hydrasurgeon.runtime.answering import Answering, Piece, gathered
from hydrasurgeon.runtime.cascaded import Cascading, cascade_in
from hydrasurgeon.statistics.metrics import DIGITS
from hydrasurgeon.statistics.scores.fitted import scores_of

FULL = " (full)"
"""What the name of the hydra's own row ends with, where its cascade has the name itself."""


@dataclass(frozen=True)
class InSteps(Reading):
    """A cascade's answers: rows that stopped early are calibrated, and told foreign, by the members
    that ran.
    """

    state: State | None = None

    def _steps(self) -> tuple[State, Cascade]:
        assert self.state is not None
        assert self.state.record.cascade is not None
        return self.state, self.state.record.cascade

    def answers(self, logits: Tensor) -> Tensor:
        state, cascade = self._steps()
        rows_of_steps, parts = list[Tensor](), list[Tensor]()
        for rows, members in _by_step(logits, cascade):
            rows_of_steps.append(rows)
            at = rows[:, None], torch.tensor(members)
            parts.append(step_state(state, cascade, members).answers(logits[at]))
        return torch.cat(parts)[torch.cat(rows_of_steps).argsort()]

    def apart(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Disagreement between the members that ran; zero for one alone."""
        information, disagreement = (
            torch.zeros(len(logits), dtype=torch.float64) for _ in range(2)
        )
        for rows, members in _by_step(logits, self._steps()[1]):
            each = super().apart(logits[rows][:, list(members)])
            information[rows], disagreement[rows] = (values.double() for values in each)
        return information, disagreement


def _by_step(logits: Tensor, cascade: Cascade) -> list[tuple[Tensor, tuple[int, ...]]]:
    """The rows that the first members answered, and the others; without a step that has none."""
    early = logits[:, cascade.followers[0]].isnan().any(dim=-1)
    steps = [
        (early.nonzero()[:, 0], cascade.starters),
        ((~early).nonzero()[:, 0], cascade.finishers),
    ]
    return [(rows, members) for rows, members in steps if len(rows)]


def cascaded(
    model: Any, samples: Any, *, how: How, kinds: Sequence[str]
) -> tuple[Any, Any, dict[str, Any]]:
    """Logits of the members that ran, labels, and these OOD scores, in one pass of the cascade."""
    state, cascade = cascade_in(model)
    classes = model.facts.num_classes

    def read(piece: Piece) -> dict[str, Tensor | None]:
        """What was said of a batch, by name: NaN for members that did not run."""
        logits = torch.full((len(piece.index), len(cascade.order), classes), torch.nan)
        scores = {kind: torch.empty(len(logits), dtype=torch.float64) for kind in kinds}
        for part in piece.parts:
            logits[part.rows[:, None], torch.tensor(part.members)] = part.logits
            if not len(part.rows):
                continue
            rule = step_state(state, cascade, part.members)
            choices = rule.problem.read(part.logits)
            for kind, values in scores.items():
                score = scores_of(kind, choices, part.features, rule.fitted)
                values[part.rows] = score.double().round(decimals=DIGITS)
        return {"logits": logits, "labels": piece.labels, **scores}

    pieces = Answering([model], samples, how.run, cascade=True, features=model.reads)
    whole = gathered(samples, ((piece.index, read(piece)) for piece in pieces))
    return whole.pop("logits"), whole.pop("labels", None), whole


def with_cascade(
    full: Row,
    checkpoint: Checkpoint,
    sets: DataSets,
    how: How,
    timed: SideBySide,
    *,
    reading: Reading,
) -> list[Row]:
    """The cascade's row, then the hydra's, read by `reading`."""
    # Another copy: parameters that lie side by side for all members cannot do so for some at the
    # same time.
    model = how.load(checkpoint)
    state, cascade = cascade_in(model)
    result, kinds = full.result, reading.ood_scores
    assert result.cost is not None

    def answer(samples: Any, scored: bool) -> tuple[Any, Any, dict[str, Any]]:
        return cascaded(model, samples, how=how, kinds=kinds if scored else ())

    provenance = full.answers.conditions.provenance
    about = {
        "name": result.name,
        "kind": result.kind,
        "provenance": provenance,
        "problem": reading.problem,
    }
    predictions = predicted(sets, answer, **about)
    going = ~predictions.logits[:, cascade.followers[0]].isnan().any(dim=-1)
    steps = step_macs(model, how.first(model, sets.id, 1), cascade.starters)
    expected = (
        result.cost.macs
        if cascade.gate.everything
        else round(steps.expected(float(going.double().mean())))
    )
    threshold = None if reading.threshold is None else cascade.ood_threshold
    sets_by = None if reading.conformal is None else cascade.conformal
    found = None if reading.found is None else cascade.group
    changes = {"threshold": threshold, "conformal": sets_by, "found": found, "state": state}
    in_steps = InSteps(**{**vars(reading), **changes})
    with torch.inference_mode():
        row = row_of(
            replace(predictions, cost=result.cost.model_copy(update={"expected_macs": expected})),
            in_steps,
        )
    timing = timed.add(Cascading(model), how.first(model, sets.id))
    return [replace(row, timing=timing), full.but(name=result.name + FULL)]
