"""A checkpoint's decision state at work: logits and features → an answer, a set, doubts, and
whether to trust them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.data.readers import reader_of
from hydrasurgeon.files import decided
from hydrasurgeon.files.decided import (
    FITTED,
    Conformal,
    Decision,
    Found,
    Ood,
    stored_name,
    words_name,
)
from hydrasurgeon.files.tensors import Tensors, as_float, spoiled
from hydrasurgeon.problems import SINGLE
from hydrasurgeon.problems.base import Constants, Prediction, Problem
from hydrasurgeon.run.pixels import Pixels
from hydrasurgeon.run.words import Words
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.probabilities import Logits, Scores
from hydrasurgeon.statistics.scores.fitted import (
    EnsembleScore,
    Given,
    OwnBoth,
    OwnLogits,
    scores_of,
)
from hydrasurgeon.statistics.scores.on_features import K

NOVELTY = "novelty"
"""The OOD score of a reader of words, which threshold and scale make like the model's."""


@dataclass(frozen=True)
class State:
    """The record that a manifest holds, and the fit that its tensors are."""

    record: Decision
    fitted: EnsembleScore | None = None
    """None for an OOD score of the logits alone."""
    problem: Problem = SINGLE
    words: Words | Pixels | None = None
    """What reads words or pixels beside the model."""
    is_fitted: bool = True
    """Whether `calibrate` made it."""

    @classmethod
    def unfitted(cls, problem: Problem = SINGLE, temperature: float = 1.0) -> State:
        """What answers where nothing was calibrated, but for a temperature."""
        flags: dict[str, Any] = {"score": "", "threshold": math.inf}
        fields: dict[str, Any] = {"temperature": temperature, "ood": Ood.model_construct(**flags)}
        return cls(Decision.model_construct(**fields), None, problem, is_fitted=False)

    @property
    def constants(self) -> Constants:
        """What calibrates."""
        if not self.is_fitted:
            return {"temperature": self.record.temperature}
        return self.problem.constants(self.record)

    @property
    def conformal(self) -> Conformal | None:
        """What makes prediction sets."""
        return self.record.conformal if self.is_fitted else None

    @property
    def found(self) -> Found | None:
        """When something was found for a group."""
        return self.record.group

    @cached_property
    def stages(self) -> tuple[State, State]:
        """Of a cascade, the states for what the whole model answers, and for what the first stage does."""
        return self._stage(first=False), self._stage(first=True)

    def _stage(self, *, first: bool) -> State:
        cascade = self.record.cascade
        assert cascade is not None
        names = ["conformal", "abstain", "limits", "group"]
        changes: dict[str, Any] = {"cascade": None}
        fitted = self.fitted
        if first:
            names += ["temperature", "bias", "labels"]
            fitted = None if fitted is None else fitted.among([0])
            if cascade.novelty is not None:  # a reader of words says itself what is novel to it
                shift = self.record.ood.threshold - cascade.novelty
                fitted = Given(NOVELTY, (), (), shift=shift)
                changes["ood"] = self.record.ood.model_copy(update={"score": NOVELTY})
        changes |= {name: getattr(cascade, name) for name in names}
        return State(self.record.model_copy(update=changes), fitted, self.problem)

    def apart(self, choices: ndarray) -> tuple[ndarray, ndarray]:
        """How far members are apart: mutual information, and whether they disagree."""
        return metrics.mutual_information(choices), metrics.disagreements(choices)

    def beside(self, record: decided.Words, words: Words | Pixels) -> State:
        """The state of a model that has a reader beside it: OOD scores see what the model itself
        says.
        """
        fitted, ood = self.fitted, self.record.ood
        if fitted is None:
            fitted = OwnLogits(ood.score, (), (), read=self.problem.read)
        elif ood.score == "vim":
            fitted = OwnBoth(**vars(fitted), width=ood.width or 0, read=self.problem.read)
        record_with = self.record.model_copy(update={"words": record})
        return State(record_with, fitted, self.problem, words)

    def answers(self, logits: ndarray) -> ndarray:
        """Calibrated probabilities of classes or labels; numbers with their deviations."""
        return self.problem.answers(logits, self.constants)

    def certainty(self, logits: ndarray) -> Scores:
        """How sure each sample's answer is, of many labels the least sure; a cascade goes on by it."""
        answers = self.answers(logits)
        most = self.problem.chances(answers).max(axis=-1)
        return most.reshape(len(answers), -1).min(axis=1)

    def ood_score(self, logits: ndarray, features: ndarray | None) -> Scores:
        """How likely samples are OOD: of the logits that the model gives, for temperature is about
        probabilities.
        """
        logits = self.problem.read(logits)
        return scores_of(self.record.ood.score, logits, features, self.fitted)

    def tensors(self) -> dict[str, ndarray]:
        """What a file stores of it, by name."""
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
    """What a state makes of logits and features."""
    return state.problem.decide(logits, state.record, state.ood_score(logits, features))


def state_of(record: Decision, tensors: Tensors, path: Path, problem: Problem = SINGLE) -> State:
    """The state that a record and its tensors in a file are; they are finite."""
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
    state = State(record, fitted, problem)
    if words is None:
        return state
    parts = {part: read(words_name(part)) for part in words.shapes}
    return state.beside(words, reader_of(words.reader, parts))
