"""A tag for each word of a text, and the entities that tags make.

Logits are [text, member, word, class], labels [text, word]; `anatomy.words` says how places without
a word look. Probabilities of such a place are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from hydrasurgeon.anatomy.words import NOTHING, are_there, widened
from hydrasurgeon.data.samples import UNLABELLED
from hydrasurgeon.files.decided import LOGITS, Decision, Penalty
from hydrasurgeon.files.manifest import ProblemName
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.problems.base import (
    Calibration,
    Columns,
    Constants,
    Judged,
    Outputs,
    Prediction,
    Problem,
    Reads,
    digits,
)
from hydrasurgeon.statistics.bootstrap import Rows, Values
from hydrasurgeon.statistics.entities import Entities, entities_of, joint_chances
from hydrasurgeon.statistics.probabilities import TINY, Scores, tempered
from hydrasurgeon.statistics.temperature import temperature_of

Chances = Float[Tensor, "text word klass"]


@dataclass(frozen=True, kw_only=True, repr=False)
class TokensPrediction(Prediction):
    """Tags of words, and their probabilities."""

    tags: Int[Tensor, "text word"]
    chances: Float[Tensor, "text word"]
    """The probability of each tag."""
    how: str = "product"
    """How those of an entity's words make its own."""

    @property
    def entities(self) -> Entities:
        return entities_of(self.tags)

    @property
    def given(self) -> Sequence[Any]:
        return self.columns(self.names, 0)["entities"]  # type: ignore[return-value]

    @property
    def uncertainty(self) -> Float[Tensor, " text"]:
        """How many of a text's entities are wrong, as far as their probabilities tell."""
        entities = self.entities
        doubt = 1 - joint_chances(entities, self.chances, self.how)
        return doubt.new_zeros(len(self.tags)).index_add(0, entities.text, doubt)

    @property
    def tally(self) -> Int[Tensor, " kind"]:
        raise NotImplementedError

    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        entities = self.entities
        chances = digits(joint_chances(entities, self.chances, self.how))
        rows: list[list[dict[str, Any]]] = [[] for _ in self.tags]
        parts = (each.tolist() for each in (entities.text, entities.first, entities.last))
        for text, first, last, kind, chance in zip(
            *parts, entities.kind.tolist(), chances, strict=True
        ):
            label = kind if names is None else names[2 * kind + 1].removeprefix("B-")
            rows[text].append(
                {
                    "start": first,
                    "end": last + 1,
                    "label": label,
                    "probability": chance,
                    "answer": label,
                }
            )
        return {"entities": rows, **self.verdict()}


@dataclass(frozen=True, kw_only=True)
class JudgedTokens(Judged):
    """Tags of words against the truth."""

    tags: Int[Tensor, "text word"]
    nll: Float[Tensor, "text word"]

    def quality(self, rows: Rows) -> dict[str, Values]:
        there = self.labels != UNLABELLED
        count = there.sum(dim=1).double()[rows].sum(dim=1)
        right = ((self.tags == self.labels) & there).sum(dim=1).double()
        return {
            "token_accuracy": right[rows].sum(dim=1) / count,
            "nll": self.nll.sum(dim=1)[rows].sum(dim=1) / count,
        }

    def measures(self) -> Callable[[Rows], dict[str, Values]]:
        return self.quality


class Tokens(Problem):
    """A tag for each word."""

    name: ClassVar[ProblemName] = "tokens"
    scores = LOGITS.keys()
    features = ("mds", "maha++", "residual", "knn")
    several = True
    by_word = True
    columns: ClassVar = {
        "entities": "json",
        "ood_score": "number",
        "unfamiliar": "flag",
        "error": "text",
    }
    lacks: ClassVar = {
        "--method cahp": "It compares samples of one class with those of others.",
        "--method circuit": "It keeps what is right or wrong; give --method taylor.",
        "--cost": "A text has several answers; see calibrate --risk.",
        "--check": "What it compares, accuracy and ECE, are those of classes; export without it.",
        "--shift": "What is measured under shifts is accuracy; give the data as another --data.",
        "--corrupt": "What is measured under corruptions is accuracy; see --shift.",
    }

    def known(self, labels: Tensor) -> Bool[Tensor, " text"]:
        """Those with a word that has a label."""
        return (labels != UNLABELLED).reshape(len(labels), -1).any(dim=1)

    def label_shape(self, logits: Tensor) -> tuple[int, ...] | None:
        return len(logits), logits.shape[-2]

    def losses(
        self,
        logits: Float[Tensor, "text word klass"],
        labels: Tensor,
        smoothing: float = 0.0,
        weight: Tensor | None = None,
    ) -> Scores:
        """The mean over the labelled words of each text."""
        truth = _beside(labels, logits)
        each = cross_entropy(
            logits.movedim(-1, 1),
            truth,
            ignore_index=UNLABELLED,
            label_smoothing=smoothing,
            reduction="none",
        )
        return each.sum(dim=1) / (truth != UNLABELLED).sum(dim=1).clamp_min(1)

    def distilled(
        self,
        logits: Float[Tensor, "text word klass"],
        teachers: Sequence[Tensor],
        temperature: float,
    ) -> Tensor:
        """T²·KL(mean of the teachers' members ‖ model), a mean over the words of each text."""
        words = logits.shape[-2]
        warmed = [
            (widened(each[..., :words, :].to(logits), words, 2) / temperature).softmax(dim=-1)
            for each in teachers
        ]
        mean = torch.cat(warmed, dim=1).mean(dim=1)
        logs = (logits / temperature).log_softmax(dim=-1)
        there = are_there(logits)
        each = kl_div(logs, mean, reduction="none").sum(dim=-1) * there
        return temperature**2 * (each.sum(dim=1) / there.sum(dim=1).clamp_min(1)).mean()

    def validated(
        self, logits: Float[Tensor, "text *member word klass"], labels: Tensor
    ) -> dict[str, Scores]:
        """The share of a text's words with the right tag, and their mean loss."""
        logs = logits.log_softmax(dim=-1)
        if logits.dim() == 4:
            logs = self.merged(logits).log_softmax(dim=-1)
        truth = _beside(labels, logs)
        there = truth != UNLABELLED
        count = there.sum(dim=1).clamp_min(1).double()
        of_truth = logs.gather(-1, truth.clamp_min(0)[..., None])[..., 0]
        right = ((logs.argmax(dim=-1) == truth) & there).sum(dim=1)
        return {
            "token_accuracy": right.double() / count,
            "nll": -torch.where(there, of_truth, 0.0).sum(dim=1).double() / count,
        }

    def probs(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        return logits.softmax(dim=-1) * are_there(logits)[..., None]

    def merged(
        self, logits: Float[Tensor, "text member word klass"]
    ) -> Float[Tensor, "text word klass"]:
        return torch.where(are_there(logits[:, 0])[..., None], super().merged(logits), NOTHING)

    def read(self, logits: Float[Tensor, "text member word klass"]) -> Tensor:
        return logits

    def outputs(self, outputs: Outputs) -> Outputs:
        """OOD scores see one class; the tags are the shares."""
        labels = None
        if outputs.labels is not None:
            labels = torch.zeros(len(outputs.labels), dtype=torch.int64)
        return Outputs(outputs.logits, outputs.features, labels, outputs.labels)

    def classifier(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return weight[:1], bias[:1]

    def rows(self, logits: Float[Tensor, "text member word klass"]) -> Tensor:
        """[word, member, class] of the words that are there."""
        return logits.movedim(2, 1)[are_there(logits[:, 0])]

    def truth(self, labels: Tensor) -> Int[Tensor, " word"]:
        return labels[labels != UNLABELLED]

    def labelled(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Int[Tensor, " word"]]:
        """The words that have both."""
        truth = _beside(labels, logits)
        known = (truth != UNLABELLED) & are_there(logits[:, 0])
        return logits.movedim(2, 1)[known], truth[known]

    def temperature(self, logits: Float[Tensor, "text member word klass"], labels: Tensor) -> float:
        return temperature_of(*self.labelled(logits, labels))

    def constants(self, record: Decision) -> Constants:
        return {"temperature": record.temperature}

    def answers(self, logits: Tensor, constants: Constants) -> Chances:
        """Probabilities; 0 where there is no word."""
        there = are_there(logits[:, 0])[..., None]
        mean = logits.double().softmax(dim=-1).mean(dim=1)
        return tempered(mean, constants.get("temperature", 1.0)) * there

    def said(self, answers: Chances) -> Chances:
        logs = answers.clamp_min(TINY).log()
        return torch.where((answers > 0).any(dim=-1, keepdim=True), logs, NOTHING)

    def uncertainty(self, logits: Tensor, constants: Constants) -> Scores:
        return self.predicted(logits, constants).uncertainty

    def predicted(self, logits: Tensor, constants: Constants | None) -> TokensPrediction:
        probs = self.answers(logits, constants or {})
        chances, tags = probs.max(dim=-1)
        never = torch.zeros(len(logits), dtype=torch.bool)
        return TokensPrediction(
            members_run=torch.full((len(logits),), logits.shape[1]),
            tags=torch.where(chances > 0, tags, UNLABELLED),
            chances=chances,
            ood_score=torch.full((len(logits),), torch.nan, dtype=torch.float64),
            unfamiliar=never,
            abstain=never,
        )

    def decided(self, prediction: Prediction, record: Decision, score: Scores) -> Prediction:
        raise NotImplementedError

    def counted(self, decision: Decision, row: Mapping[str, Any]) -> tuple[str, float]:
        raise NotImplementedError

    def calibrated(self, fitting: Outputs, certifying: Outputs) -> Calibration:
        raise NotImplementedError

    def promised(
        self,
        answers: Tensor,
        outputs: Outputs,
        promise: CalibrateOptions,
        penalty: Penalty | None = None,
    ) -> dict[str, Any]:
        raise NotImplementedError

    def judged(self, logits: Tensor, labels: Tensor, reading: Reads) -> dict[str, Tensor]:
        probs = self.answers(widened(logits, labels.shape[1], 2), reading.constants)
        of_truth = probs.gather(-1, labels.clamp_min(0)[..., None])[..., 0]
        nll = -of_truth.clamp_min(TINY).log()
        fields = {
            "labels": labels,
            "tags": probs.argmax(dim=-1),
            "nll": torch.where(labels == UNLABELLED, 0.0, nll),
        }
        return {name: values.flatten() for name, values in fields.items()}

    def together(
        self, fields: Mapping[str, Tensor], labels: Tensor, groups: Tensor | None
    ) -> JudgedTokens:
        by_text = {name: values.reshape(labels.shape) for name, values in fields.items()}
        return JudgedTokens(**by_text, groups=groups)


def _beside(labels: Int[Tensor, "text any"], logits: Tensor) -> Int[Tensor, "text word"]:
    """Labels of as many words as the logits have."""
    words = logits.shape[-2]
    return widened(labels[:, :words], words, 1)
