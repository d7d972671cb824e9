"""A reader of words for a model: fitted on TRAIN, chosen and weighed on VAL."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from hydrasurgeon.data import Samples
from hydrasurgeon.data.readers import Tokens, reader_of
from hydrasurgeon.decision.beside import Beside, fit_beside, losses, means, scaled
from hydrasurgeon.decision.state import State, with_seen
from hydrasurgeon.decision.words import FEWEST, Kind, fit_words
from hydrasurgeon.errors import DataError
from hydrasurgeon.files import decided
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.run.words import Floats, Words


@dataclass(frozen=True)
class Reading:
    """A reader, what it is worth beside the model, and how it reads samples."""

    record: decided.Words
    reader: Words
    see: Callable[[Any], Any]
    taught: bool = False
    """Whether it learnt what the model says of unlabelled samples too."""

    def read(self, samples: Any) -> ndarray:
        """[sample, output], and in the last column how novel each sample is."""
        return self.reader.read(self.see(samples))

    def first(self, samples: Any, said: Outputs, problem: Problem) -> Outputs:
        """What it says of samples before the model has `said` anything."""
        read = self.read(samples).astype(np.float32)[:, None]
        return problem.outputs(replace(said, logits=read[..., :-1], features=read[..., -1:]))

    def scored(self, state: State, mixed: Outputs, said: Outputs) -> Outputs:
        """With what OOD scores see of what the model itself `said`."""
        assert state.fitted is not None
        return replace(mixed, features=state.fitted.own(said.features, said.logits))

    def joined(self, state: State, mixed: Outputs, said: Outputs) -> State:
        """The state of both, and what it makes of VAL."""
        state = state.beside(self.record, self.reader)
        val = self.scored(state, mixed, said)
        return with_seen(state, val.logits, val.features)

    def whole(self, state: State, samples: Any, said: Outputs) -> Outputs:
        """What both say of samples."""
        mixed = state.problem.outputs(self.beside(said, samples))
        return self.scored(state, mixed, said)

    def beside(self, outputs: Outputs, samples: Any) -> Outputs:
        """What a model said, with what the reader adds."""
        model, reader = self.record.weights
        read = self.read(samples)[:, None, :-1]
        mixed = model * outputs.logits.astype(np.float64) + reader * read
        return replace(outputs, logits=mixed.astype(outputs.logits.dtype))


def lacks(problem: Problem, outputs: int, train: Sized | None, *, first: bool) -> str | None:
    """Why there is no reader; None where there can be one."""
    if problem.link is None:
        return f"words: {problem.name} have none, for every word has an answer of its own"
    if problem.link == "square" and first:
        return "words: a number is not sure of itself, so nothing can come before the model"
    if problem.link == "square" and outputs != 1:
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

    def __len__(self) -> int:
        return len(self.labels)


def lesson(samples: Samples) -> Lesson:
    """Of a data set."""
    if samples.labels is None:
        raise DataError(f"{samples.spec}: has no labels")
    written = samples.written
    return Lesson(samples, samples.labels, None if written is None else written.chances)


@decided.storable()
def fit_reading(
    problem: Problem,
    see: Callable[[Any], Any],
    tokenizer: str | None,
    train: Lesson,
    val: Lesson,
    outputs: Outputs,
    halves: tuple[ndarray, ndarray],
    *,
    first: bool = False,
) -> tuple[Reading, Beside]:
    """The reader with the least loss on the half of VAL that fits, beside the model or alone where it
    comes `first`, and its weight; `tokenizer` is the hash of what makes ids of texts.
    """
    kind, logits = problem.link or "softmax", outputs.logits.astype(np.float64)
    fitting, certifying = halves
    known, targets = targets_of(train.labels, kind, logits.shape[-1])
    if kind == "softmax" and train.chances is not None:
        targets = train.chances.astype(np.float64)
    seen = see(train.samples)
    train_seen = [seen[row] for row in known]
    labelled, truth = targets_of(val.labels, kind, logits.shape[-1])
    val_seen = see(val.samples)
    fitting = np.intersect1d(fitting, labelled)
    certifying = np.intersect1d(certifying, labelled)

    def loss(read: Floats) -> float:
        alone = read[:, None]
        scale = scaled(kind, alone[fitting], truth[fitting])
        return float(losses(kind, scale * alone[fitting], truth[fitting]).mean())

    def made(seen: Any, targets: Floats) -> tuple[float, Words, Beside]:
        fitted = fit_words(seen, targets, kind, loss, val_seen)
        # As a file stores it: what is weighed is what will answer.
        parts = {name: part.astype(np.float32) for name, part in vars(fitted.reader).items()}
        reader = reader_of(parts)
        parts_of_val = (truth, fitting, certifying)
        worth = fit_beside(kind, logits, reader.outputs(val_seen), *parts_of_val)
        return fitted.loss if first else worth.fitted, reader, worth

    every = [made(train_seen, targets[known])]
    if train.more is not None:
        samples, said = train.more
        scale = scaled(kind, logits[fitting], truth[fitting])
        answers, unlabelled = means(kind, scale * said.astype(np.float64)), see(samples)
        every.append(made([*train_seen, *unlabelled], np.concatenate([targets[known], answers])))
    best = int(np.argmin([each[0] for each in every]))
    _, reader, worth = every[best]
    record = _record(reader, tokenizer, logits.shape[-1], worth)
    return Reading(record, reader, see, taught=best > 0), worth


@decided.storable()
def weigh(
    stored: State,
    see: Callable[[Any], Any],
    val: Lesson,
    outputs: Outputs,
    halves: tuple[ndarray, ndarray],
) -> tuple[Reading, Beside]:
    """The reader that a file has already, with weights by this VAL."""
    reader, before = stored.words, stored.record.words
    assert reader is not None
    assert before is not None
    kind, logits = stored.problem.link or "softmax", outputs.logits.astype(np.float64)
    labelled, truth = targets_of(val.labels, kind, logits.shape[-1])
    parts = (np.intersect1d(each, labelled) for each in halves)
    read = reader.outputs(see(val.samples))
    worth = fit_beside(kind, logits, read, truth, *parts)
    return Reading(_record(reader, before.tokenizer, before.outputs, worth), reader, see), worth


def _record(reader: Words, tokenizer: str | None, outputs: int, worth: Beside) -> decided.Words:
    return decided.Words(
        mode="beside",
        tokenizer=tokenizer,
        ids=len(reader.ids),
        columns=len(reader.weight),
        outputs=outputs,
        weights=worth.weights,
        alone=worth.alone,
        worth=decided.Worth(nll=(worth.without, worth.together), se=worth.error),
    )


def seer(transform: Any) -> Callable[[Samples], Any]:
    """What a reader sees of samples: ids of texts."""
    tokens = Tokens(transform.tokenizer)

    def see(samples: Samples) -> Any:
        texts: list[Any] = [samples.read(i) for i in range(len(samples))]
        return tokens(texts)

    return see


def targets_of(labels: Any, kind: Kind, outputs: int) -> tuple[NDArray[np.int64], Floats]:
    """Which samples have a label, and what the outputs of all should be."""
    labels = np.asarray(labels)
    known = np.flatnonzero((labels.reshape(len(labels), -1) != -1).all(axis=1))
    if kind == "softmax":
        targets = np.zeros((len(labels), outputs))
        targets[known, labels[known].astype(int)] = 1
        return known, targets
    return known, labels.reshape(len(labels), outputs).astype(np.float64)
