"""A checkpoint's decision state at work: logits and features → an answer, a set, doubts, and
whether to trust them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hydrasurgeon.files.decided import Decision, stored_name, words_name
from hydrasurgeon.problems import SINGLE
from hydrasurgeon.problems.base import Prediction, Problem
from hydrasurgeon.run.pixels import Pixels
from hydrasurgeon.run.words import Words
from hydrasurgeon.statistics.probabilities import Logits, Scores
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, scores_of


@dataclass(frozen=True)
class State:
    """The record that a manifest holds, and the fit that its tensors are."""

    record: Decision
    fitted: EnsembleScore | None = None
    """None for an OOD score of the logits alone."""
    problem: Problem = SINGLE
    words: Words | Pixels | None = None
    """What reads words or pixels beside the model."""

    def beside(self, logits: Tensor, read: Tensor) -> Tensor:
        """A model's outputs, and a reader's added to those of every member."""
        assert self.record.words is not None
        model, reader = self.record.words.weights
        return (model * logits.double() + reader * read.double()[:, None]).to(logits.dtype)

    def answers(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities of classes or labels; numbers with their deviations."""
        return self.problem.answers(logits, self.problem.constants(self.record))

    def ood_score(self, logits: Tensor, features: Tensor | None) -> Scores:
        """How likely samples are OOD: of the logits that the model gives, for temperature is about
        probabilities.
        """
        logits = self.problem.read(logits)
        return scores_of(self.record.ood.score, logits, features, self.fitted)

    def tensors(self) -> dict[str, Tensor]:
        """What a file stores of it, by name."""
        fits = () if self.fitted is None else self.fitted.fits
        fitted = {
            stored_name(member, part): tensor.float().contiguous()
            for member, fit in enumerate(fits)
            for part, tensor in fit.items()
        }
        parts = {} if self.words is None else vars(self.words)
        read = {
            words_name(part): torch.from_numpy(values).float().contiguous()
            for part, values in parts.items()
        }
        return fitted | read


def decide(state: State, logits: Logits, features: Tensor | None) -> Prediction:
    """What a state makes of logits and features."""
    problem, record = state.problem, state.record
    plain = problem.predicted(logits, problem.constants(record))
    return problem.decided(plain, record, state.ood_score(logits, features))
