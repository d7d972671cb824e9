"""A checkpoint's decision state at work: logits and features → an answer, a set, doubts, and
whether to trust them.

In two stages a first reader answers where it is sure, the whole model what goes on: where the
first's calibrated answer is less certain than the threshold, or where the row is unfamiliar to it.
Each row gets the calibrated answer of its own stage, so that it does not matter which rows it came
with; what is promised (sets, abstention) has thresholds that were taken on such answers. What is
unfamiliar is said by the whole model alone, by the threshold that it has without a cascade: so no
more is flagged than was promised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.checkpoints.checkpoint import Checkpoint
from hydrasurgeon.data.readers import reader_of
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files import decided
from hydrasurgeon.files.decided import (
    FITTED,
    Cascade,
    Conformal,
    DecisionRecord,
    Ood,
    Seen,
    stored_name,
    words_name,
)
from hydrasurgeon.files.tensors import Tensors, as_float, spoiled
from hydrasurgeon.files.untrusted import must
from hydrasurgeon.run.bag_of_words import MOST, BagOfWords
from hydrasurgeon.run.shapes import Bool, Float
from hydrasurgeon.statistics import temperature
from hydrasurgeon.statistics.metrics import disagreements
from hydrasurgeon.statistics.probabilities import Logits, Scores
from hydrasurgeon.statistics.scores.fitted import (
    EnsembleScore,
    Given,
    OwnBoth,
    OwnLogits,
    scores_of,
)
from hydrasurgeon.statistics.scores.on_features import K
from hydrasurgeon.statistics.scores.on_logits import score_of
from hydrasurgeon.tasks import SINGLE, task_of
from hydrasurgeon.tasks.base import Constants, Outputs, Prediction, Task, joined

NOVELTY = "novelty"
"""The OOD score of a bag-of-words model: what it answers is more familiar than what the model does."""


@dataclass(frozen=True)
class State:
    """The record that a manifest holds, and the fit that its tensors are."""

    record: DecisionRecord
    fitted: EnsembleScore | None = None
    """None for an OOD score of the logits alone."""
    task: Task = SINGLE
    words: BagOfWords | None = None
    """Bag-of-words model beside the model."""
    is_fitted: bool = True
    """True if `calibrate` fitted the state."""

    @classmethod
    def unfitted(cls, task: Task = SINGLE, temperature: float = 1.0) -> State:
        """Return an uncalibrated state, apart from a temperature."""
        flags: dict[str, Any] = {"score": "", "threshold": math.inf}
        fields: dict[str, Any] = {"temperature": temperature, "ood": Ood.model_construct(**flags)}
        return cls(DecisionRecord.model_construct(**fields), None, task, is_fitted=False)

    @property
    def constants(self) -> Constants:
        """Calibration constants."""
        if not self.is_fitted:
            return {"temperature": self.record.temperature}
        return self.task.constants(self.record)

    @property
    def conformal(self) -> Conformal | None:
        """Rule for prediction sets."""
        return self.record.conformal if self.is_fitted else None

    @property
    def cascade(self) -> Cascade:
        """The cascade, which is there."""
        assert self.record.cascade is not None
        return self.record.cascade

    @cached_property
    def stages(self) -> tuple[State, State]:
        """States of a cascade: for the answers of the full model, and for those of the first stage."""
        return self._stage(first=False), self._stage(first=True)

    def _stage(self, *, first: bool) -> State:
        cascade = self.cascade
        names = ["conformal", "abstain", "limits"]
        changes: dict[str, Any] = {"cascade": None}
        fitted = self.fitted
        if first:
            names += ["temperature", "bias", "labels"]
            fitted = None if fitted is None else fitted.among([0])
            if cascade.novelty is not None:  # a bag-of-words model says itself what is novel to it
                floor = self.record.ood.threshold if cascade.floor is None else cascade.floor
                fitted = Given(NOVELTY, (), (), shift=floor - cascade.novelty)
                novelty = {"score": NOVELTY, "threshold": floor}
                changes["ood"] = self.record.ood.model_copy(update=novelty)
        changes |= {name: getattr(cascade, name) for name in names}
        return State(self.record.model_copy(update=changes), fitted, self.task)

    def apart(self, choices: ndarray) -> tuple[ndarray, ndarray]:
        """Measure how far members are apart: mutual information, and whether they disagree."""
        return score_of("mi", choices), disagreements(choices)

    def blended(self, record: decided.BagOfWordsRecord, words: BagOfWords) -> State:
        """Return the state with a bag-of-words model beside the model.

        OOD scores still read the outputs of the model alone.
        """
        fitted, ood = self.fitted, self.record.ood
        if fitted is None:
            fitted = OwnLogits(ood.score, (), (), read=self.task.read)
        elif ood.score == "vim":
            fitted = OwnBoth(**vars(fitted), width=fitted.sizes["width"], read=self.task.read)
        record_with = self.record.model_copy(update={"words": record})
        return State(record_with, fitted, self.task, words)

    def answers(self, logits: ndarray) -> ndarray:
        """Return calibrated probabilities of classes or labels; for numbers, with their deviations."""
        return self.task.answers(logits, self.constants)

    def certainty(self, logits: ndarray) -> Scores:
        """Return the certainty of each sample's answer.

        A cascade compares it with its threshold.

        With many labels it is that of the least certain one.
        """
        answers = self.answers(logits)
        most = self.task.chances(answers).max(axis=-1)
        return most.reshape(len(answers), -1).min(axis=1)

    def ood_score(self, logits: ndarray, features: ndarray | None) -> Scores:
        """Return the OOD score of each sample.

        It reads the raw logits: temperature concerns probabilities alone.
        """
        logits = self.task.read(logits)
        return scores_of(self.record.ood.score, logits, features, self.fitted)

    def tensors(self) -> dict[str, ndarray]:
        """Return the tensors that a file stores for this state, by name."""
        fits = () if self.fitted is None else self.fitted.fits
        fitted = {
            stored_name(member, part): np.asarray(values, np.float32, order="C")
            for member, fit in enumerate(fits)
            for part, values in fit.items()
        }
        parts = {} if self.words is None else vars(self.words)
        read = {words_name(part): values.astype(np.float32) for part, values in parts.items()}
        return fitted | read


def decide(state: State, logits: Logits, features: ndarray | None) -> Prediction:
    """Decide about logits and features by a decision state."""
    return state.task.decide(logits, state.record, state.ood_score(logits, features))


def state_of(record: DecisionRecord, tensors: Tensors, path: Path, task: Task = SINGLE) -> State:
    """Build the state from its record and its tensors in a file; the tensors must be finite."""
    ood, words = record.ood, record.words

    def read(name: str) -> ndarray:
        values = as_float(tensors.read(name), "F32")
        if not np.isfinite(values).all():
            raise spoiled(name, path)
        return values

    fitted = None
    if ood.score in FITTED:
        fits = tuple(
            {part: read(stored_name(member, part)) for part in FITTED[ood.score]}
            for member in range(len(ood.members))
        )
        fitted = EnsembleScore(ood.score, fits, ood.members, neighbours=ood.neighbours or K)
    state = State(record, fitted, task)
    if words is None:
        return state
    parts = {part: read(words_name(part)) for part in words.shapes}
    _check_columns(parts["ids"], parts["idf"], path)
    return state.blended(words, reader_of(parts))


def _check_columns(ids: ndarray, idf: ndarray, path: Path) -> None:
    """Refuse a bag-of-words model whose token ids cannot be looked up, or whose weights are no idf."""
    are_ids = ((ids >= 0) & (ids < MOST) & (ids == np.floor(ids))).all()
    must(
        (
            bool(are_ids and (np.diff(ids) > 0).all()),
            f"{path}: tensor {words_name('ids')} holds no token ids in rising order",
        ),
        (
            bool((idf > 0).all()),
            f"{path}: tensor {words_name('idf')} holds weights that are not positive",
        ),
        error=partial(CheckpointError, hint="The decision state is damaged: run calibrate again."),
    )


def state_in(checkpoint: Checkpoint) -> State | None:
    """Return the decision state of a checkpoint; None if it has none."""
    record, task = checkpoint.manifest.decision, task_of(checkpoint.manifest.model)
    if record is None:
        return None
    return state_of(record, checkpoint.tensors, checkpoint.path, task)


@dataclass(frozen=True)
class Said:
    """Outputs for the rows that one stage answers: arrays, or tensors while a model runs."""

    rows: Any
    """[row], whole numbers."""
    logits: Any
    """[row, member, class], of tokens [row, member, word, class]."""
    features: Any = None
    """[row, member, width], or None."""
    first: bool = False
    """True if the first stage answered."""

    def at(self, places: Any) -> Said:
        """Return a selection of the rows."""
        features = None if self.features is None else self.features[places]
        return replace(self, rows=self.rows[places], logits=self.logits[places], features=features)

    def blended(self, state: State, read: Any) -> Said:
        """Return these rows with the bag-of-words outputs added to every member's logits.

        Logits and `read` are both tensors or both arrays.
        """
        assert state.record.words is not None
        model, reader = state.record.words.weights
        assert state.fitted is not None
        features = state.fitted.score_inputs(self.features, self.logits)
        if isinstance(self.logits, ndarray):
            mixed = model * self.logits.astype(np.float64) + reader * np.asarray(read)[:, None]
            return replace(self, logits=mixed.astype(self.logits.dtype), features=features)
        logits, other = self.logits, read.to(self.logits.device).double()
        mixed = model * logits.double() + reader * other[:, None]
        return replace(self, logits=mixed.to(logits.dtype), features=features)

    def arrays(self) -> Said:
        """Return the outputs in float32 on the CPU, as decisions read them."""
        features = None if self.features is None else single(self.features)
        return Said(np.asarray(self.rows), single(self.logits), features, self.first)


def single(values: Any) -> Float[ndarray, "*any"]:
    """Return a tensor or an array as an array in float32."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float32)


def going_on(rule: State, threshold: float, first: Outputs) -> Bool[ndarray, " sample"]:
    """Return the rows that go on to the full model, by the first stage's decision state."""
    certainty = rule.certainty(first.logits)
    unfamiliar = rule.ood_score(first.logits, first.features) > rule.record.ood.threshold
    return (certainty < threshold) | unfamiliar


def in_stages(state: State, first: Outputs, full: Outputs) -> list[Said]:
    """Return the outputs by stage for rows that both stages have read."""
    going = going_on(state.stages[True], state.cascade.threshold, first)
    parts = []
    for which, outputs, early in ((~going, first, True), (going, full, False)):
        rows = np.flatnonzero(which)
        some = outputs.at(rows)
        parts.append(Said(rows, some.logits, some.features, early))
    return parts


def answers_in_stages(state: State, parts: Sequence[Said]) -> ndarray:
    """Return the calibrated probabilities of all rows, in their order."""
    answers = [state.stages[part.first].answers(part.logits) for part in parts]
    return np.concatenate(answers)[np.concatenate([part.rows for part in parts]).argsort()]


def decide_in_stages(state: State, parts: Sequence[Said]) -> Prediction:
    """Decide about each row by the state of its stage; return all rows in their order."""
    some = [part for part in parts if len(part.rows)] or parts[-1:]
    decisions = []
    for part in some:
        answers = decide(state.stages[part.first], part.logits, part.features)
        if part.first and state.cascade.novelty is not None:  # words are no member
            answers = replace(answers, members_run=0 * answers.members_run)
        decisions.append(answers)
    if len(decisions) == 1:
        return decisions[0]
    return joined(decisions, np.concatenate([part.rows for part in some]).argsort())


def with_seen(
    state: State, logits: ndarray, features: ndarray | None, first: Outputs | None = None
) -> State:
    """Return the state with a summary of its decisions on these samples in the record.

    For a cascade, `first` are the outputs of its first stage.
    """
    unfamiliar, abstain, uncertainty, predicted = 0, 0, 0.0, []
    for start in range(0, len(logits), temperature.CALIBRATED):
        rows = slice(start, start + temperature.CALIBRATED)
        full = Outputs(logits, features).at(rows)
        if first is None:
            decided = decide(state, full.logits, full.features)
        else:
            decided = decide_in_stages(state, in_stages(state, first.at(rows), full))
        unfamiliar += int(decided.unfamiliar.sum())
        abstain += int((decided.abstain & ~decided.unfamiliar).sum())
        uncertainty += float(decided.uncertainty.astype(np.float64).sum())
        predicted.append(decided.tally)
    seen = Seen(
        rows=len(logits),
        unfamiliar=unfamiliar,
        abstain=abstain,
        uncertainty=round(uncertainty / len(logits), 9),
        predicted=tuple(np.stack(predicted).sum(axis=0).tolist()),
    )
    return replace(state, record=state.record.model_copy(update={"seen": seen}))
