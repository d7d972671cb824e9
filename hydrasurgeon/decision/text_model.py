"""A bag-of-words model beside a model: fitted on TRAIN, chosen and weighed on VAL."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from hydrasurgeon.data import Samples
from hydrasurgeon.data.readers import TokenIds, reader_of
from hydrasurgeon.decision.bag_of_words_fit import FEWEST, Kind, fit_words, fit_words_in_folds
from hydrasurgeon.decision.blend import Blend, fit_blend, losses, means, scaled
from hydrasurgeon.decision.state import State, with_seen
from hydrasurgeon.errors import DataError
from hydrasurgeon.files import decided
from hydrasurgeon.memo import digest_of, shared
from hydrasurgeon.run.bag_of_words import BagOfWords, Floats
from hydrasurgeon.tasks.base import Outputs, Task

MANY_TEXTS = 20_000
"""Texts from which on their token ids are kept for the next file that build writes."""


@dataclass(frozen=True)
class Reading:
    """A reader, what it is worth beside the model, and how it reads samples."""

    record: decided.BagOfWordsRecord
    reader: BagOfWords
    see: Callable[[Any], Any]
    pseudo_labelled: bool = False
    """True if pseudo-labelled samples were used for training."""
    out_of_fold: tuple[Any, ndarray] | None = None
    """Samples that it was fitted to, and what readers of the other folds say of them."""

    def read(self, samples: Any) -> ndarray:
        """[sample, output], and in the last column how novel each sample is."""
        if self.out_of_fold is not None and samples is self.out_of_fold[0]:
            return self.out_of_fold[1]
        return self.reader.read(self.see(samples))

    def first(self, samples: Any, outputs: Outputs, task: Task) -> Outputs:
        """Return the bag-of-words model's outputs, in the form of the model's outputs."""
        read = self.read(samples).astype(np.float32)[:, None]
        return task.outputs(replace(outputs, logits=read[..., :-1], features=read[..., -1:]))

    def scored(self, state: State, mixed: Outputs, outputs: Outputs) -> Outputs:
        """Return blended outputs with the features that OOD scores read: those of the model alone."""
        assert state.fitted is not None
        return replace(mixed, features=state.fitted.score_inputs(outputs.features, outputs.logits))

    def joined(self, state: State, mixed: Outputs, outputs: Outputs) -> State:
        """Return the state with the bag-of-words model beside it, and its summary of VAL."""
        state = state.blended(self.record, self.reader)
        val = self.scored(state, mixed, outputs)
        return with_seen(state, val.logits, val.features)

    def blended(self, state: State, samples: Any, outputs: Outputs) -> Outputs:
        """Return the blended outputs with the features that OOD scores read."""
        mixed = state.task.outputs(self.blend(outputs, samples))
        return self.scored(state, mixed, outputs)

    def blend(self, outputs: Outputs, samples: Any) -> Outputs:
        """Return the model's outputs with the weighted bag-of-words outputs added."""
        model, reader = self.record.weights
        read = self.read(samples)[:, None, :-1]
        mixed = model * outputs.logits.astype(np.float64) + reader * read
        return replace(outputs, logits=mixed.astype(outputs.logits.dtype))


def lacks(task: Task, outputs: int, train: Sized | None, *, first: bool) -> str | None:
    """Return why there is no bag-of-words model; None where there can be one."""
    if task.link is None:
        return f"words: {task.name} have none, for every word has an answer of its own"
    if task.link == "square" and first:
        return "words: a number is not sure of itself, so nothing can come before the model"
    if task.link == "square" and outputs != 1:
        return "words: a model that says how certain each number is has none"
    if train is None:
        return "words: are fitted on --fit-data (or --fit-predictions), and none is given"
    if len(train) < FEWEST:
        return f"words: left out, for {len(train)} samples to learn from are fewer than {FEWEST}"
    return None


@dataclass(frozen=True)
class Lesson:
    """Samples that a reader learns from, or is weighed on."""

    samples: Any
    labels: Any
    chances: ndarray | None = None
    """Probabilities of classes, where labels are such."""
    more: tuple[Any, ndarray] | None = None
    """Samples without labels, and what the model says of them, [sample, member, output]."""
    folds: NDArray[np.int64] | None = None
    """The fold of each sample, where those that have one are VAL too."""

    def __len__(self) -> int:
        return len(self.labels)


def lesson(samples: Samples) -> Lesson:
    """Return a data set as a lesson; refuse one without labels."""
    if samples.labels is None:
        raise DataError(f"{samples.spec}: has no labels")
    written = samples.written
    return Lesson(samples, samples.labels, None if written is None else written.chances)


@decided.storable()
def fit_reading(
    task: Task,
    see: Callable[[Any], Any],
    tokenizer: str | None,
    train: Lesson,
    val: Lesson,
    outputs: Outputs,
    halves: tuple[ndarray, ndarray],
    *,
    first: bool = False,
) -> tuple[Reading, Blend]:
    """Fit the bag-of-words model with the least loss on the fitting half of VAL, and its weights.

    The loss is that of the blend, or of the bag-of-words model alone if it is the `first` stage.
    `tokenizer` is the hash of the tokenizer that makes ids of texts.
    """
    kind, logits = task.link or "softmax", outputs.logits.astype(np.float64)
    fitting, certifying = halves
    labelled_train, targets = targets_of(train.labels, kind, logits.shape[-1])
    if kind == "softmax" and train.chances is not None:
        targets = train.chances.astype(np.float64)
    seen = see(train.samples)
    train_seen, learnt = seen, targets
    if len(labelled_train) < len(targets):
        train_seen, learnt = [seen[row] for row in labelled_train], targets[labelled_train]
    labelled, truth = targets_of(val.labels, kind, logits.shape[-1])
    val_seen = see(val.samples)
    fitting = np.intersect1d(fitting, labelled)
    certifying = np.intersect1d(certifying, labelled)

    def loss(read: Floats) -> float:
        alone = read[:, None]
        scale = scaled(kind, alone[fitting], truth[fitting])
        return float(losses(kind, scale * alone[fitting], truth[fitting]).mean())

    def fit_candidate(seen: Any, targets: Floats) -> tuple[float, BagOfWords, Blend]:
        fitted = fit_words(seen, targets, kind, loss, val_seen)
        # As a file stores it: what is weighed is what will answer.
        parts = {name: part.astype(np.float32) for name, part in vars(fitted.reader).items()}
        reader = reader_of(parts)
        parts_of_val = (truth, fitting, certifying)
        worth = fit_blend(kind, logits, reader.outputs(val_seen), *parts_of_val)
        return fitted.loss if first else worth.fitted, reader, worth

    if train.folds is not None:
        folds = train.folds[labelled_train]
        fitted, read = fit_words_in_folds(train_seen, learnt, kind, loss, folds)
        parts = {name: part.astype(np.float32) for name, part in vars(fitted.reader).items()}
        worth = fit_blend(kind, logits, read[:, :-1], truth, fitting, certifying)
        record = _record(reader_of(parts), tokenizer, logits.shape[-1], worth)
        return Reading(record, reader_of(parts), see, out_of_fold=(val.samples, read)), worth
    candidates = [fit_candidate(train_seen, learnt)]
    if train.more is not None:
        samples, model_outputs = train.more
        scale = scaled(kind, logits[fitting], truth[fitting])
        answers, unlabelled = means(kind, scale * model_outputs.astype(np.float64)), see(samples)
        candidates.append(
            fit_candidate([*train_seen, *unlabelled], np.concatenate([learnt, answers]))
        )
    best = int(np.argmin([candidate[0] for candidate in candidates]))
    _, reader, worth = candidates[best]
    record = _record(reader, tokenizer, logits.shape[-1], worth)
    return Reading(record, reader, see, pseudo_labelled=best > 0), worth


@decided.storable()
def weigh(
    stored: State,
    see: Callable[[Any], Any],
    val: Lesson,
    outputs: Outputs,
    halves: tuple[ndarray, ndarray],
) -> tuple[Reading, Blend]:
    """Weigh the bag-of-words model of a stored state anew on this VAL."""
    reader, before = stored.words, stored.record.words
    assert reader is not None
    assert before is not None
    kind, logits = stored.task.link or "softmax", outputs.logits.astype(np.float64)
    labelled, truth = targets_of(val.labels, kind, logits.shape[-1])
    parts = (np.intersect1d(half, labelled) for half in halves)
    read = reader.outputs(see(val.samples))
    worth = fit_blend(kind, logits, read, truth, *parts)
    return Reading(_record(reader, before.tokenizer, before.outputs, worth), reader, see), worth


def _record(
    reader: BagOfWords, tokenizer: str | None, outputs: int, worth: Blend
) -> decided.BagOfWordsRecord:
    return decided.BagOfWordsRecord(
        mode="blend",
        tokenizer=tokenizer,
        ids=len(reader.ids),
        columns=len(reader.weight),
        outputs=outputs,
        weights=worth.weights,
        alone=worth.alone,
        worth=decided.Worth(nll=(worth.without, worth.together), se=worth.error),
    )


def seer(transform: Any) -> Callable[[Samples], Any]:
    """Return a function that turns samples into the token ids of their texts; those of a large table
    are shared.
    """
    tokens = TokenIds(transform.tokenizer)
    tokenizer = hashlib.sha256(tokens.inner.to_str().encode()).hexdigest()

    def see(samples: Samples) -> Any:
        texts: list[Any] = [samples.read(i) for i in range(len(samples))]
        return tokens(texts)

    def remembered(samples: Samples) -> Any:
        if len(samples) < MANY_TEXTS:
            return see(samples)
        return shared(
            "token ids", lambda: (tokenizer, digest_of([samples.digests])), lambda: see(samples)
        )

    return remembered


def targets_of(labels: Any, kind: Kind, outputs: int) -> tuple[NDArray[np.int64], Floats]:
    """Return the rows that have a label, and the targets of all rows, [row, output]."""
    labels = np.asarray(labels)
    labelled = np.flatnonzero((labels.reshape(len(labels), -1) != -1).all(axis=1))
    if kind == "softmax":
        # Zeros and ones are exact in float32, and a table of many classes is large.
        targets: NDArray[Any] = np.zeros((len(labels), outputs), np.float32)
        targets[labelled, labels[labelled].astype(int)] = 1
        return labelled, targets
    return labelled, labels.reshape(len(labels), outputs).astype(np.float64)
