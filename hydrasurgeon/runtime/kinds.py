"""Tasks in torch, for graphs and for tensors. Decisions are numpy's (`tasks`), and a test
compares the two.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from hydrasurgeon.anatomy.word_logits import NOTHING, are_there
from hydrasurgeon.files.decided import DecisionRecord
from hydrasurgeon.lookup import imported
from hydrasurgeon.statistics.probabilities import TINY
from hydrasurgeon.tasks.base import Task


def entropy(probs: Tensor) -> Tensor:
    """Return the entropy over the classes, in nats."""
    return torch.special.entr(probs).sum(dim=-1)


def tempered(probs: Tensor, temperature: Any) -> Tensor:
    """Return softmax(ln p / T)."""
    if isinstance(temperature, float) and temperature == 1.0:
        return probs
    return (probs.clamp_min(TINY).log() / temperature).softmax(dim=-1)


def yes_or_no(logits: Tensor) -> Tensor:
    """Turn one logit z into those of two classes, 0 and z; return other logits unchanged."""
    return (
        torch.cat([torch.zeros_like(logits), logits], dim=-1) if logits.shape[-1] == 1 else logits
    )


class TorchSingleLabel:
    """One of several classes."""

    def read(self, logits: Tensor) -> Tensor:
        """Return logits in the form that decisions take."""
        return logits

    def probs(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        """Return each member's probabilities, for plain exports and for `predict` of tensors."""
        return logits.softmax(dim=-1)

    def merged(self, logits: Float[Tensor, "sample member klass"]) -> Float[Tensor, "sample klass"]:
        """Return logits of one model that answers with the members' mean: ln of their mean
        probability.
        """
        mean = logits.float().softmax(dim=-1).mean(dim=1)
        return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()

    def answers(self, logits: Tensor, record: DecisionRecord | None) -> Tensor:
        """Return calibrated probabilities."""
        if record is None:
            return self.read(logits).double().softmax(dim=-1).mean(dim=1)
        mean = self._moved(logits, record).softmax(dim=-1).mean(dim=1)
        return tempered(mean, self._temperature(record))

    def uncertainty(self, logits: Tensor, record: DecisionRecord) -> Tensor:
        """Return the total uncertainty of each answer, in nats."""
        probs = (self._moved(logits, record) / self._temperature(record)).softmax(dim=-1)
        return entropy(probs.mean(dim=1))

    def _temperature(self, record: DecisionRecord) -> Any:
        return record.temperature

    def _moved(self, logits: Tensor, record: DecisionRecord) -> Tensor:
        choices = self.read(logits).double()
        if not record.bias:
            return choices
        yes = choices[..., 1:] + record.bias * record.temperature
        return torch.cat([choices[..., :1], yes], dim=-1)

    def logits_of(self, answers: Tensor) -> Float[Tensor, "sample klass"]:
        """Return logits of a single model that gives these answers."""
        return answers.clamp_min(TINY).log()


class TorchBinary(TorchSingleLabel):
    """Yes or no, by one logit."""

    def read(self, logits: Tensor) -> Tensor:
        return yes_or_no(logits)

    def probs(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        return yes_or_no(logits[..., None]).softmax(dim=-1)[..., 1]

    def merged(self, logits: Float[Tensor, "sample member klass"]) -> Float[Tensor, "sample klass"]:
        """Return the log-odds of the members' mean probability."""
        z = logits.float()
        return logsigmoid(z).logsumexp(dim=1) - logsigmoid(-z).logsumexp(dim=1)

    def logits_of(self, answers: Tensor) -> Float[Tensor, "sample klass"]:
        no, yes = super().logits_of(answers).split(1, dim=-1)
        return yes - no


class TorchMultiLabel(TorchBinary):
    """For each label a choice of its own."""

    def read(self, logits: Tensor) -> Tensor:
        return logits if logits.dim() == 4 else yes_or_no(logits[..., None])

    def answers(self, logits: Tensor, record: DecisionRecord | None) -> Tensor:
        return super().answers(logits, record)[..., 1]

    def uncertainty(self, logits: Tensor, record: DecisionRecord) -> Tensor:
        return super().uncertainty(logits, record).sum(dim=-1)

    def _temperature(self, record: DecisionRecord) -> Any:
        labels = record.labels
        values = (record.temperature,) if labels is None else labels.temperatures
        return torch.tensor(values, dtype=torch.float64)[:, None]

    def logits_of(self, answers: Tensor) -> Float[Tensor, "sample label"]:
        return answers.clamp_min(TINY).log() - (1 - answers).clamp_min(TINY).log()


class TorchRegression(TorchSingleLabel):
    """A number; no graph decides it."""

    def probs(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        return logits[..., :1]

    def merged(self, logits: Float[Tensor, "sample member klass"]) -> Float[Tensor, "sample klass"]:
        return logits.float().mean(dim=1)


class TorchTokenClassification(TorchSingleLabel):
    """A tag for each word; a place without a word is no text's."""

    def probs(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        return logits.softmax(dim=-1) * are_there(logits)[..., None]

    def merged(
        self, logits: Float[Tensor, "text member word klass"]
    ) -> Float[Tensor, "text word klass"]:
        return torch.where(are_there(logits[:, 0])[..., None], super().merged(logits), NOTHING)

    def answers(self, logits: Tensor, record: DecisionRecord | None) -> Tensor:
        return super().answers(logits, record) * are_there(logits[:, 0])[..., None]

    def logits_of(self, answers: Tensor) -> Tensor:
        return torch.where(
            (answers > 0).any(dim=-1, keepdim=True), super().logits_of(answers), NOTHING
        )


@cache
def kind_of(task: Task) -> TorchSingleLabel:
    """Return the torch side of a task."""
    kind: TorchSingleLabel = imported(task.in_torch)()
    return kind
