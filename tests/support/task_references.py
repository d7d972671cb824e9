"""Every task by numpy and other people's libraries, and texts that teach it to a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import ANY

import numpy as np
import torch
from numpy.typing import NDArray
from row_files import write_lines
from scipy.special import entr, expit, logit, logsumexp, softmax
from scipy.stats import norm
from sklearn import metrics
from tiny_families import WORDS
from torch.nn import functional

Array = NDArray[Any]
Rows = list[dict[str, Any]]
NOISE = 0.1
"""Fraction of labels that are wrong."""


def write_table(place: Path, task: type[Reference], rows: int, seed: int) -> str:
    """Write texts in which some of three words stand at any place; no two texts are alike."""
    rng = np.random.default_rng(seed)
    lines = []
    for row in range(rows):
        words = [word for word in WORDS[:3] if rng.random() < 0.45]
        words += [*rng.choice(WORDS[3:], size=rng.integers(1, 4)), f"s{seed}r{row}"]
        words = [str(word) for word in rng.permutation(words)]
        label = task.label(words, rng.random() < NOISE)
        if task is TokenClassification:
            lines.append({"tokens": words, "tags": label})
        else:
            lines.append({"text": " ".join(words), task.column: label})
    return write_lines(place, lines)


def tempered(probs: Array, temperature: Any) -> Array:
    """Return p^(1/T), which sums to 1 along the last axis."""
    powers = probs ** (1 / temperature)
    return powers / powers.sum(axis=-1, keepdims=True)


def choices(yes: Array) -> Array:
    """Return the probabilities of no and yes, in a last axis."""
    return np.stack([1 - yes, yes], axis=-1)


def doubts(members: Array) -> dict[str, Any]:
    """Return the uncertainties [sample] of members' probabilities [sample, member, …, class]."""
    entropies = [entr(members.mean(axis=1)).sum(axis=-1), entr(members).sum(axis=-1).mean(axis=1)]
    total, aleatoric = (entropy.reshape(len(members), -1).sum(axis=1) for entropy in entropies)
    return {"total": total, "aleatoric": aleatoric, "epistemic": total - aleatoric}


def ece(probs: Array, labels: Array) -> float:
    """Return torchmetrics' ECE of classes [choice, class], or of the probability of yes [choice]."""
    from torchmetrics.functional import classification

    kind = "binary" if probs.ndim == 1 else "multiclass"
    more = {} if probs.ndim == 1 else {"num_classes": probs.shape[1]}
    error = getattr(classification, f"{kind}_calibration_error")
    return float(error(torch.tensor(probs), torch.tensor(labels).long(), n_bins=15, **more))


class Reference:
    """A task with class names, and a decision record if answers are calibrated.

    Subclasses have `label`, the label of words; `loss`, torch's of one model's logits; `pooled`,
    the logits of a model whose members have these; `answers`; `columns`, those of `predict`;
    `quality`, the metrics of answers; `kept`, those of promises, by the rows of `predict`; and
    `tally`, the number of the name under which `monitor` counts a row.
    """

    name: ClassVar[str]
    column = "label"
    options: ClassVar[dict[str, Any]]
    """Options of `calibrate`."""
    weight: ClassVar[Any] = None
    """Setting `pos_weight` of the loss."""
    learnt: ClassVar[tuple[str, float]]
    """A metric, and the value that training must reach."""
    uncalibrated: ClassVar[tuple[str, ...]] = ()
    """Metrics that calibration does not change."""

    def __init__(self, names: Any, record: Any = None) -> None:
        self.names, self.record = names, record
        self.temperature = 1.0 if record is None else record.temperature

    def ood(self, logits: Array) -> Array | None:
        """Return the OOD score that `options` name; None if it is fitted on features."""
        return 1 - softmax(logits, axis=-1).mean(axis=1).max(axis=-1)

    def misfit(self, answers: Array, labels: Array) -> Array | None:
        """Return the scores [sample] of which a quantile bounds the sets; None if none does."""
        return None


def answered(answers: list[Any], labels: Any) -> dict[str, float]:
    """Return how many answers were given, and how many of these are wrong."""
    pairs = [*zip(answers, labels, strict=True)]
    sure = [pair for pair in pairs if pair[0] not in ("abstain", "unfamiliar")]
    wrong = sum(answer != label for answer, label in sure)
    return {"answered": len(sure) / len(pairs), "wrong": wrong / len(sure)}


class SingleLabel(Reference):
    """One of three classes."""

    name = "single_label"
    options: ClassVar = {"ood_score": "energy", "risk": 0.4, "coverage": 0.8}
    learnt = "accuracy", 0.8
    uncalibrated = ("accuracy",)

    @staticmethod
    def label(words: list[str], wrong: bool) -> str:
        number = 0 if WORDS[0] in words else 1 + (WORDS[1] not in words)
        return ("good", "fair", "bad")[(number + wrong) % 3]

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, weight: Any = None) -> torch.Tensor:
        return functional.cross_entropy(logits, labels)

    def pooled(self, logits: Array) -> Array:
        return np.log(softmax(logits, axis=-1).mean(axis=1))

    def answers(self, logits: Array) -> Array:
        return tempered(softmax(logits, axis=-1).mean(axis=1), self.temperature)

    def ood(self, logits: Array) -> Array:
        return -logsumexp(logits, axis=-1).mean(axis=1)

    def columns(self, logits: Array, unfamiliar: Array) -> dict[str, Any]:
        probs = self.answers(logits)
        top = [[[self.names[at], row[at]] for at in np.argsort(-row)] for row in probs]
        most = 1 - self.record.conformal.threshold
        held = [[name for name, p in pairs if p >= most] for pairs in top]
        tied = (np.abs(probs - most) < 1e-6).any(axis=1)
        labels = [pairs[0][0] for pairs in top]
        sure = probs.max(axis=1) >= self.record.abstain.threshold
        return {
            "label": labels,
            "probability": probs.max(axis=1),
            "top": top,
            "set": [
                # Rounding decides on a class whose probability is the threshold.
                ANY if tied[at] else held[at] or ([] if odd else [labels[at]])
                for at, odd in enumerate(unfamiliar)
            ],
            **doubts(softmax(logits / self.temperature, axis=-1)),
            "answer": np.where(sure, labels, "abstain"),
        }

    def quality(self, answers: Array, labels: Array) -> dict[str, float]:
        truth = np.eye(answers.shape[1])[labels]
        return {
            "accuracy": metrics.accuracy_score(labels, answers.argmax(axis=1)),
            "nll": metrics.log_loss(labels, answers),
            "brier": float(np.square(answers - truth).sum(axis=1).mean()),
            "ece": ece(answers, labels),
        }

    def kept(self, rows: Rows, labels: list[Any]) -> dict[str, float]:
        held = [label in row["set"] for row, label in zip(rows, labels, strict=True)]
        sizes = [len(row["set"]) for row in rows]
        sets = {"coverage": float(np.mean(held)), "set_size": float(np.mean(sizes))}
        return answered([row["answer"] for row in rows], labels) | sets

    def misfit(self, answers: Array, labels: Array) -> Array:
        return 1 - answers[np.arange(len(labels)), labels]

    def tally(self, row: dict[str, Any]) -> int:
        return int(self.names.index(row["label"]))


class Binary(Reference):
    """Yes or no, by one logit."""

    name = "binary"
    options: ClassVar = {"ood_score": "msp", "risk": 0.4}
    weight: ClassVar = 3.0
    learnt = "accuracy", 0.8

    def __init__(self, names: Any, record: Any = None) -> None:
        super().__init__(names, record)
        self.bias = 0.0 if record is None else record.bias

    @staticmethod
    def label(words: list[str], wrong: bool) -> int:
        return int((WORDS[0] in words) ^ wrong)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, weight: Any = None) -> torch.Tensor:
        factor = None if weight is None else torch.tensor(weight)
        loss = functional.binary_cross_entropy_with_logits
        return loss(logits, labels.float().reshape(logits.shape), pos_weight=factor)

    def pooled(self, logits: Array) -> Array:
        return np.asarray(logit(expit(logits).mean(axis=1)))

    def answers(self, logits: Array) -> Array:
        shifted = logits[:, :, 0] + self.bias * self.temperature
        return np.asarray(expit(self.pooled(shifted) / self.temperature))

    def ood(self, logits: Array) -> Array:
        yes = expit(logits[:, :, 0]).mean(axis=1)
        return np.asarray(1 - np.maximum(yes, 1 - yes))

    def columns(self, logits: Array, unfamiliar: Array) -> dict[str, Any]:
        yes, limits = self.answers(logits), self.record.limits
        sure = np.where(yes < limits.no, "no", "abstain")
        return {
            "probability": yes,
            "logit": logit(yes),
            **doubts(choices(expit(logits[:, :, 0] / self.temperature + self.bias))),
            "answer": np.where(yes >= limits.yes, "yes", sure),
        }

    def quality(self, answers: Array, labels: Array) -> dict[str, float]:
        return {
            "accuracy": metrics.accuracy_score(labels, answers >= 0.5),
            "nll": metrics.log_loss(labels, answers),
            "brier": metrics.brier_score_loss(labels, answers),
            "ece": ece(answers, labels),
            "auroc": metrics.roc_auc_score(labels, answers),
            "ap": metrics.average_precision_score(labels, answers),
        }

    def kept(self, rows: Rows, labels: list[Any]) -> dict[str, float]:
        return answered([row["answer"] for row in rows], [("no", "yes")[y] for y in labels])

    def tally(self, row: dict[str, Any]) -> int:
        return int(row["probability"] > 0.5)


class MultiLabel(Reference):
    """Any of three labels."""

    name = "multi_label"
    column = "labels"
    options: ClassVar = {"ood_score": "msp", "coverage": 0.8}
    weight: ClassVar = [1.0, 2.0, 3.5]
    learnt = "exact_match", 0.6

    def __init__(self, names: Any, record: Any = None) -> None:
        super().__init__(names, record)
        constants = record and record.labels
        self.temperature = np.array(constants.temperatures) if constants else 1.0
        self.thresholds = np.array(constants.thresholds) if constants else 0.5

    @staticmethod
    def label(words: list[str], wrong: bool) -> list[str]:
        held = [name for name, word in zip("xyz", WORDS, strict=False) if word in words]
        return ["x"] if wrong else held

    loss, pooled = Binary.loss, Binary.pooled

    def answers(self, logits: Array) -> Array:
        return np.asarray(expit(self.pooled(logits) / self.temperature))

    def ood(self, logits: Array) -> Array:
        return np.asarray(1 - expit(logits).mean(axis=1).max(axis=1))

    def columns(self, logits: Array, unfamiliar: Array) -> dict[str, Any]:
        probs, most = self.answers(logits), 1 - self.record.conformal.threshold
        order = np.argsort(-probs)
        chosen = probs >= self.thresholds

        def ranked(held: Array) -> list[Any]:
            rows = zip(order, probs, held, strict=True)
            return [
                [[self.names[at], p[at]] for at in first if some[at]] for first, p, some in rows
            ]

        labels = ranked(chosen)
        return {
            "labels": labels,
            "top": ranked(probs >= 0),
            "set": [[name for name, _ in pairs] for pairs in ranked(probs >= most)],
            **doubts(choices(expit(logits / self.temperature))),
            "answer": [[name for name, _ in pairs] for pairs in labels],
        }

    def quality(self, answers: Array, labels: Array) -> dict[str, float]:
        chosen = answers >= self.thresholds
        return {
            "accuracy": float((chosen == labels).mean()),
            "nll": metrics.log_loss(labels.flatten(), answers.flatten()),
            "brier": float(np.square(answers - labels).mean()),
            "ece": ece(answers.flatten(), labels.flatten()),
            "micro_f1": metrics.f1_score(labels, chosen, average="micro"),
            "macro_f1": metrics.f1_score(labels, chosen, average="macro"),
            "map": metrics.average_precision_score(labels, answers, average="macro"),
            "exact_match": metrics.accuracy_score(labels, chosen),
        }

    def kept(self, rows: Rows, labels: list[Any]) -> dict[str, float]:
        return {}

    def tally(self, row: dict[str, Any]) -> int:
        return int(self.names.index(row["top"][0][0]))


class Regression(Reference):
    """A number, which may be negative."""

    name = "regression"
    options: ClassVar = {"ood_score": "knn", "coverage": 0.8}
    learnt = "r2", 0.6
    uncalibrated = ("rmse", "mae")

    @staticmethod
    def label(words: list[str], wrong: bool) -> float:
        return 2.0 * (WORDS[0] in words) - (WORDS[1] in words) + 0.5 * wrong + 0.01 * len(words)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, weight: Any = None) -> torch.Tensor:
        return functional.mse_loss(logits[:, 0], labels.float())

    def pooled(self, logits: Array) -> Array:
        return np.asarray(logits.mean(axis=1))

    def answers(self, logits: Array) -> Array:
        values = logits[:, :, 0]
        deviation = np.full(len(values), np.nan)
        if self.record:
            joint = self.record.joint
            variance = joint.aleatoric**2 + joint.epistemic**2 * values.var(axis=1)
            deviation = np.sqrt(variance)
        return np.stack([values.mean(axis=1), deviation], axis=1)

    def ood(self, logits: Array) -> None:
        return None

    def columns(self, logits: Array, unfamiliar: Array) -> dict[str, Any]:
        value, deviation = self.answers(logits).T
        half = self.record.conformal.threshold * deviation
        ends = {"low": value - half, "high": value + half}
        return {"value": value, **ends, "spread": logits[:, :, 0].std(axis=1), "answer": value}

    def quality(self, answers: Array, labels: Array) -> dict[str, float]:
        value, deviation = answers.T
        quality = {
            "rmse": metrics.mean_squared_error(labels, value) ** 0.5,
            "mae": metrics.mean_absolute_error(labels, value),
            "r2": metrics.r2_score(labels, value),
        }
        if self.record:
            quality["nll"] = -float(norm.logpdf(labels, value, deviation).mean())
            quality["width"] = float(2 * self.record.conformal.threshold * deviation.mean())
        return quality

    def kept(self, rows: Rows, labels: list[Any]) -> dict[str, float]:
        held = [row["low"] <= y <= row["high"] for row, y in zip(rows, labels, strict=True)]
        return {"coverage": float(np.mean(held))}

    def misfit(self, answers: Array, labels: Array) -> Array:
        return np.abs(labels - answers[:, 0]) / answers[:, 1]

    def tally(self, row: dict[str, Any]) -> int:
        return int(np.searchsorted(self.record.levels, row["value"]))


class TokenClassification(Reference):
    """A tag for every word: two words begin entities, and a third one continues them."""

    name = "token_classification"
    options: ClassVar = {"ood_score": "msp", "risk": 0.5, "coverage": 0.8}
    learnt = "f1", 0.6
    uncalibrated = ("f1", "token_accuracy")

    @staticmethod
    def label(words: list[str], wrong: bool) -> list[str]:
        tags, kind = [], ""
        for word in words:
            begins = {WORDS[0]: "X", WORDS[1]: "Y"}.get(word, "")
            kind = begins or kind * (word == WORDS[2])
            tags.append(f"{'B' if begins else 'I'}-{kind}" if kind and not wrong else "O")
        return tags

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, weight: Any = None) -> torch.Tensor:
        losses = [
            functional.cross_entropy(words[tags >= 0], tags[tags >= 0])
            for words, tags in zip(logits, labels[:, : logits.shape[1]].long(), strict=True)
        ]
        return torch.stack(losses).mean()

    def answers(self, logits: Array) -> Array:
        return tempered(softmax(logits, axis=-1).mean(axis=1), self.temperature)

    def ood(self, logits: Array) -> Array:
        words = (logits[:, 0] != logits[:, 0, :, :1]).any(axis=-1)
        unsure = 1 - softmax(logits, axis=-1).mean(axis=1).max(axis=-1)
        return (unsure * words).sum(axis=1) / words.sum(axis=1)

    def columns(self, logits: Array, unfamiliar: Array) -> dict[str, Any]:
        counts = (logits[:, 0] != logits[:, 0, :, :1]).any(axis=-1).sum(axis=1)
        combine = {"product": np.prod, "least": np.min}[self.record.entities.probability]
        texts = []
        for probs, count in zip(self.answers(logits), counts, strict=True):
            entities: Rows = []
            before = ""
            for chances in probs[:count]:
                tag = self.names[chances.argmax()]
                if tag[:1] == "B" or (tag != "O" and tag[2:] != before):
                    entities.append({"label": tag[2:], "chances": []})
                if tag != "O":
                    entities[-1]["chances"].append(chances.max())
                before = tag[2:]
            for entity in entities:
                entity["probability"] = combine(entity.pop("chances"))
                sure = entity["probability"] >= self.record.abstain.threshold
                entity["answer"] = entity["label"] if sure else "abstain"
            texts.append(entities)
        return {"entities": texts}

    def quality(self, answers: Array, labels: Array) -> dict[str, float]:
        from seqeval.metrics import f1_score, precision_score, recall_score

        labels = labels[:, : answers.shape[1]].astype(int)
        words = labels >= 0
        tags = [
            [[self.names[tag] for tag in row[kept]] for row, kept in zip(side, words, strict=True)]
            for side in (labels, answers.argmax(axis=-1))
        ]
        by_word = SingleLabel.quality(self, answers[words], labels[words])  # type: ignore[arg-type]
        return {
            "token_accuracy": by_word["accuracy"],
            "nll": by_word["nll"],
            "ece": by_word["ece"],
            "f1": f1_score(*tags),
            "precision": precision_score(*tags),
            "recall": recall_score(*tags),
        }

    def kept(self, rows: Rows, labels: list[Any]) -> dict[str, float]:
        answers = [entity["answer"] for row in rows for entity in row["entities"]]
        return {"answered": float(np.mean([answer != "abstain" for answer in answers]))}

    def misfit(self, answers: Array, labels: Array) -> Array:
        labels = labels[:, : answers.shape[1]].astype(int)
        probs = np.take_along_axis(answers, np.maximum(labels, 0)[..., None], 2)[..., 0]
        return np.where(labels >= 0, 1 - probs, 0).max(axis=1)

    def tally(self, row: dict[str, Any]) -> int:
        kinds = [name[2:] for name in self.names[1::2]]
        return 1 + kinds.index(row["entities"][0]["label"]) if row["entities"] else 0


REFERENCES: tuple[type[Reference], ...] = (
    SingleLabel,
    Binary,
    MultiLabel,
    Regression,
    TokenClassification,
)
"""All tasks of the package."""
