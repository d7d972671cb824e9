"""The one loop in which models answer samples: each is decoded once and answered in its batch.

`predict`, `serve`, `eval`, `calibrate` and `hs.load` go through it. What computes is an `Engine`: a
batch of inputs goes in, logits (and features) of the members that ran come out, as arrays in
float32; what they mean follows from the decision state, whatever computed them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy import ndarray

from hydrasurgeon.data import Batch, Batches, Samples, by_length, moved
from hydrasurgeon.data.batches import unreadable
from hydrasurgeon.data.readers import READ, TEXTS, Beside, parted
from hydrasurgeon.data.word_tokens import WORDS
from hydrasurgeon.decision.state import (
    Said,
    State,
    decide,
    decide_in_stages,
    going_on,
    single,
)
from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.options.shared import Run
from hydrasurgeon.run.shapes import Int
from hydrasurgeon.statistics.padded_words import alike
from hydrasurgeon.tasks import task_of
from hydrasurgeon.tasks.base import Outputs, Prediction, Task, rows_of
from hydrasurgeon.tasks.row_columns import CUT

if TYPE_CHECKING:
    from torch import nn

CALIBRATE = "Run `hydrasurgeon calibrate --cascade` on it first."
"""Hint for a checkpoint without a cascade."""

FirstReader = Callable[[Any, bool], tuple[Said, Callable[[Any], Said]]]
"""The first stage of a cascade: (inputs, True if features are wanted) → its outputs, and a function
from row numbers to the outputs of the full model for the rows that go on.

Logits are [row, 1, class]; features [row, 1, width] come along if the OOD score needs them.
"""


class Engine(ABC):
    """A runtime that computes the outputs of one model."""

    name: str
    state: State | None
    transform: Callable[[Any], Any]
    """Function from a sample to the model's input."""
    arrays: ClassVar[bool] = False
    """True if inputs are numpy arrays, False if they are torch tensors."""

    @property
    @abstractmethod
    def facts(self) -> Model:
        """The model's record: its task, its classes and their names."""

    @property
    def task(self) -> Task:
        """The task that gives the outputs their meaning."""
        return task_of(self.facts)

    @property
    @abstractmethod
    def members(self) -> int:
        """Number of members that answer."""

    @property
    def first(self) -> FirstReader | None:
        """First stage of the cascade; None if there is only the full model."""
        record = None if self.state is None else self.state.record.words
        return None if record is None or record.mode != "cascade" else partial(first_words, self)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how the model runs, complete after its first run."""
        return ()

    def collated(self, prepared: Sequence[Any]) -> Any:
        """Collate inputs that `transform` returned into a batch."""
        if self.arrays:
            return self.transform.arrays(prepared)  # type: ignore[attr-defined]
        from torch.utils.data import default_collate

        collate: Callable[[Any], Any] = getattr(self.transform, "collate", default_collate)
        return collate(prepared)

    def prepared(self, samples: Sequence[Any]) -> Any:
        """Transform and collate samples into a batch."""
        return self.collated([self.transform(sample) for sample in samples])

    def ask(self, inputs: Any, *, cascade: bool = False, features: bool = False) -> list[Said]:
        """Return the outputs for a batch, as float32 arrays: one part, or with `cascade` one for
        each stage. Raise CheckpointError if logits are not finite.
        """
        parts = [part.arrays() for part in self.parts(inputs, cascade, features=features)]
        for part in parts:
            self.check(part.logits)
        return parts

    def parts(self, inputs: Any, cascade: bool, *, features: bool) -> list[Said]:
        """Return the outputs for a batch, unchecked and on the model's device."""
        if cascade:
            return outputs_in_stages(self, inputs, features=features)
        return [self.full(inputs, features=features)]

    def full(self, inputs: Any, *, features: bool = False) -> Said:
        """Return the full model's outputs for a batch, with those of the bag-of-words model beside
        it.
        """
        plain, read = parted(inputs)
        if isinstance(plain, Mapping) and TEXTS in plain:
            plain = self.transform.inner.arrays(plain[TEXTS].tolist())  # type: ignore[attr-defined]
        outputs = self.compute(plain, features=features)
        if read is None or self.state is None:
            return outputs
        return outputs.blended(self.state, read[:, :-1])

    @abstractmethod
    def compute(self, inputs: Any, *, features: bool) -> Said:
        """Return the neural model's outputs for a batch."""

    def check(self, logits: ndarray) -> None:
        """Refuse NaN and infinity: nothing of them means anything."""
        if not np.isfinite(logits).all():
            hint = "The model overflows: start from a sound one, or use --dtype float32 (export has none)."
            raise CheckpointError(f"{self.name}: its logits hold NaN or infinity", hint=hint)

    def in_stages(self, cascade: bool | None) -> bool:
        """Return True if the model answers by its cascade: it has one, and `cascade` is not False."""
        has = self.state is not None and self.state.record.cascade is not None
        if cascade and not has:
            raise CheckpointError(f"{self.name}: its decision state has no cascade", hint=CALIBRATE)
        if cascade and self.first is None:
            raise UsageError(
                f"--cascade: {self.name} has no cascade in this engine",
                hint="Leave out --engine, or --cascade.",
            )
        return has and self.first is not None and cascade is not False

    def answered(self, inputs: Any, *, cascade: bool | None = None) -> Prediction:
        """Answer a batch by the decision state; without one, by the mean of the members'
        probabilities.
        """
        cascade = self.in_stages(cascade)
        return self.prediction_of(self.ask(inputs, cascade=cascade, features=self.reads), cascade)

    @property
    def reads(self) -> bool:
        """True if decisions need features."""
        return self.state is not None and self.state.fitted is not None

    def prediction_of(self, parts: Sequence[Said], cascade: bool) -> Prediction:
        """Turn outputs into answers; raise CheckpointError if one of their numbers overflows."""
        state = self.state
        with np.errstate(all="ignore"):  # what overflows is refused below
            if cascade and state is not None:
                answers = decide_in_stages(state, parts)
            elif state is not None:
                (outputs,) = parts
                answers = decide(state, outputs.logits, outputs.features)
            else:
                (outputs,) = parts
                answers = self.task.decide(outputs.logits)
        if name := answers.overflow():
            raise CheckpointError(
                f"{self.name}: its answers hold NaN or infinity ({name})",
                hint="Calibrate it again; if that fails, its weights or features overflow.",
            )
        return answers

    def rows(
        self,
        answers: Prediction,
        row_prefixes: Sequence[dict[str, Any]],
        top: int,
        read_samples: Callable[[], Sequence[Any]] = tuple,
    ) -> list[dict[str, Any]]:
        """Return answers as rows of `predict`, each of which continues a row of `row_prefixes`.
        `read_samples` returns the samples, for answers that refer to places in a text.
        """
        about = answers.about(read_samples)
        rows = rows_of(about, row_prefixes, names=self.facts.labels, top=top, where=self.name)
        texts = read_samples() if self.facts.max_tokens is not None else ()
        if texts:
            too_long = self.transform.too_long(texts)  # type: ignore[attr-defined]
            for row in (row for row, cut in zip(rows, too_long, strict=True) if cut):
                row[CUT] = True
        return rows


def first_words(engine: Engine, inputs: Any, features: bool) -> tuple[Said, Callable[[Any], Said]]:
    """Return the outputs of the bag-of-words model, which came with the inputs, as the first stage."""
    read = single(inputs[READ])

    def finish(rows: Any) -> Said:
        some = {name: values[rows] for name, values in inputs.items()}
        return replace(engine.full(some, features=features), rows=rows)

    rows = np.arange(len(read))
    return Said(rows, read[:, None, :-1], read[:, None, -1:]), finish


def rows_in(inputs: Any) -> int:
    """Return the number of samples in a batch."""
    if isinstance(inputs, Mapping) and WORDS in inputs:
        return len(inputs[WORDS])
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(first)


def outputs_in_stages(engine: Engine, inputs: Any, *, features: bool) -> list[Said]:
    """Return the outputs of the first stage for the rows that stop there, and of the full model for
    the rest.
    """
    state, reader = engine.state, engine.first
    assert state is not None
    assert reader is not None
    first, finish = reader(inputs, features)
    early = first.arrays()
    rule, threshold = state.stages[True], state.cascade.threshold
    going = going_on(rule, threshold, Outputs(early.logits, early.features))
    stopped, went = np.flatnonzero(~going), np.flatnonzero(going)
    parts = [replace(first.at(stopped), first=True)]
    if len(went):
        parts.append(finish(went))
    return parts


@dataclass(frozen=True)
class Piece:
    """Outputs for one batch of samples."""

    index: Int[ndarray, " row"]
    """Positions of the rows among the samples."""
    parts: Sequence[Said]
    labels: ndarray | None

    @property
    def outputs(self) -> Outputs:
        """Outputs of the full model, where there is no cascade."""
        (part,) = self.parts
        return Outputs(part.logits, part.features, self.labels)


class Apart:
    """A transform of which each model gets a batch of its own."""

    def __init__(self, models: Sequence[Engine]) -> None:
        self.models = models
        self.kind = getattr(models[0].transform, "kind", "image")
        self.inputs = getattr(models[0].transform, "inputs", None)

    def __call__(self, sample: Any) -> Any:
        return sample

    def collate(self, samples: Sequence[Any]) -> list[Any]:
        """Return a batch for each model."""
        return [model.prepared(samples) for model in self.models]

    arrays = collate


def read_alike(models: Sequence[Engine]) -> bool:
    """Return True if one batch of inputs serves all models."""
    first = models[0].facts.preprocess
    return all(
        model.facts.preprocess == first and not isinstance(model.transform, Beside)
        for model in models
    )


class Answering:
    """One pass of a model, or of several side by side, over samples."""

    def __init__(
        self,
        models: Sequence[Engine],
        samples: Samples,
        run: Run,
        *,
        order: Sequence[int] | None = None,
        features: bool = False,
        cascade: bool = False,
    ) -> None:
        """Prepare the pass. Features are those of the first model, and only one model has a
        cascade.
        """
        self.models, self.run = models, run
        self.apart = len(models) > 1 and not read_alike(models)
        self.features, self.cascade = features, cascade
        self.batches = Batches(
            samples,
            Apart(models) if self.apart else models[0].transform,
            batch_size=run.batch_size,
            order=by_length(samples) if order is None else order,
            workers=0 if self.apart else None,
            arrays=all(model.arrays for model in models),
            skip_bad=run.skip_bad,
        )

    def __iter__(self) -> Iterator[Piece]:
        first, *rest = self.models
        for batch in fed(self.batches, self.run):
            inputs = batch.inputs if self.apart else [batch.inputs] * len(self.models)
            parts = first.ask(inputs[0], cascade=self.cascade, features=self.features)
            for model, model_inputs in zip(rest, inputs[1:], strict=True):
                (more,) = model.ask(model_inputs)
                parts = [beside(parts[0], more)]
            labels = None if batch.labels is None else np.asarray(batch.labels)
            yield Piece(np.asarray(batch.index), parts, labels)


def beside(first: Said, more: Said) -> Said:
    """Concatenate the members of two outputs for the same rows."""
    return replace(first, logits=np.concatenate([first.logits, more.logits], axis=1))


def gathered(
    samples: Samples, pieces: Iterable[tuple[ndarray, Mapping[str, ndarray | None]]]
) -> dict[str, ndarray]:
    """Join the values of all pieces by name, in the order of the samples. Unreadable samples are
    left out.
    """
    joined: dict[str, ndarray] = {}
    read = np.zeros(len(samples), dtype=bool)
    for index, piece in pieces:
        read[index] = True
        for name, values in piece.items():
            if values is not None:
                # Each row goes to its place at once: pieces that wait to be joined would take the
                # memory twice.
                if name not in joined:
                    joined[name] = np.empty((len(samples), *values.shape[1:]), values.dtype)
                joined[name], values = alike(joined[name], values)
                joined[name][index] = values
    if not joined:
        raise unreadable(samples)
    if read.all():
        return joined
    return {name: values[read] for name, values in joined.items()}


def collected(
    models: Sequence[Engine],
    samples: Samples,
    run: Run,
    *,
    features: bool = False,
    grouped: bool = False,
    certifies: ndarray | None = None,
    inputs: ndarray | None = None,
    skipped: list[str] | None = None,
) -> Outputs:
    """Collect all that models say of samples side by side (a hydra contributes all its members), with
    their groups if asked for, whether each `certifies`, and the numbers of their `inputs`; `skipped`
    gets the reasons why some could not be read.
    """
    answering = Answering(models, samples, run, features=features)
    given_numbers = {"certifies": certifies, "inputs": inputs}
    numbers = {name: values for name, values in given_numbers.items() if values is not None}
    if grouped and samples.groups is not None:
        numbers["groups"] = numbered(samples.groups)

    def pieces() -> Iterator[tuple[ndarray, Mapping[str, ndarray | None]]]:
        for piece in answering:
            more = {name: values[piece.index] for name, values in numbers.items()}
            yield piece.index, {**vars(piece.outputs), **more}

    values_of = gathered(samples, pieces())
    if skipped is not None:
        skipped += answering.batches.skipped
    fields: dict[str, Any] = {"features": None, **values_of}
    return Outputs(**fields)


def numbered(groups: Sequence[str]) -> Int[ndarray, " sample"]:
    """Number the groups in order of appearance; return each sample's number."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[group] for group in groups], dtype=np.int64)


def fed(
    batches: Batches, run: Run, *, module: nn.Module | None = None, name: str | None = None
) -> Iterator[Batch]:
    """Yield batches and report progress. With a module, inputs move to its device and dtype."""
    for done, batch in enumerate(batches, 1):
        if module is not None:
            weight = next(module.parameters())
            batch = replace(batch, inputs=moved(batch.inputs, weight.device, weight.dtype))
        yield batch
        run.tick(name or f"batches of {batches.samples.spec}", done, len(batches))
