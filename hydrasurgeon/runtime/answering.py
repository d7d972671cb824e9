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
from hydrasurgeon.data.words import WORDS
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
from hydrasurgeon.problems import problem_of
from hydrasurgeon.problems.base import Outputs, Prediction, Problem, rows_of
from hydrasurgeon.problems.columns import CUT
from hydrasurgeon.run.shapes import Int
from hydrasurgeon.statistics.words import alike

if TYPE_CHECKING:
    from torch import nn

CALIBRATE = "Run `hydrasurgeon calibrate --cascade` on it first."
"""What to do without a cascade."""

FirstReader = Callable[[Any, bool], tuple[Said, Callable[[Any], Said]]]
"""What answers before the whole model: (inputs, whether features are wanted) → what it says of a
batch, logits [row, 1, class] (and features [row, 1, width] if its OOD score needs them); and what
gives the whole model's outputs for the rows that go on.
"""


class Engine(ABC):
    """What computes the answers of one model."""

    name: str
    state: State | None
    transform: Callable[[Any], Any]
    """What the model reads of a sample."""
    arrays: ClassVar[bool] = False
    """Whether it reads numpy's arrays, and torch's tensors else."""

    @property
    @abstractmethod
    def facts(self) -> Model:
        """What the model is: its problem, its classes and their names."""

    @property
    def problem(self) -> Problem:
        """What its outputs mean."""
        return problem_of(self.facts)

    @property
    @abstractmethod
    def members(self) -> int:
        """How many members answer."""

    @property
    def first(self) -> FirstReader | None:
        """What a cascade begins with; None where all that it has is the whole model."""
        record = None if self.state is None else self.state.record.words
        return None if record is None or record.mode != "first" else partial(first_words, self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of how it runs, once it has run."""
        return ()

    def collated(self, prepared: Sequence[Any]) -> Any:
        """A batch of what `transform` made of samples."""
        if self.arrays:
            return self.transform.arrays(prepared)  # type: ignore[attr-defined]
        from torch.utils.data import default_collate

        collate: Callable[[Any], Any] = getattr(self.transform, "collate", default_collate)
        return collate(prepared)

    def prepared(self, samples: Sequence[Any]) -> Any:
        """A batch of samples."""
        return self.collated([self.transform(sample) for sample in samples])

    def ask(self, inputs: Any, *, cascade: bool = False, features: bool = False) -> list[Said]:
        """What is said of a batch, as arrays in float32; all in one part, or with `cascade` in one
        for each stage.
        """
        parts = [part.arrays() for part in self.parts(inputs, cascade, features=features)]
        for part in parts:
            self.check(part.logits)
        return parts

    def parts(self, inputs: Any, cascade: bool, *, features: bool) -> list[Said]:
        """The same where the model is, unchecked."""
        if cascade:
            return said(self, inputs, features=features)
        return [self.whole(inputs, features=features)]

    def whole(self, inputs: Any, *, features: bool = False) -> Said:
        """What the model says of a batch, and what reads beside it."""
        plain, read = parted(inputs)
        if isinstance(plain, Mapping) and TEXTS in plain:
            plain = self.transform.inner.arrays(plain[TEXTS].tolist())  # type: ignore[attr-defined]
        whole = self.compute(plain, features=features)
        if read is None or self.state is None:
            return whole
        return whole.beside(self.state, read[:, :-1])

    @abstractmethod
    def compute(self, inputs: Any, *, features: bool) -> Said:
        """What the model alone says of a batch."""

    def check(self, logits: ndarray) -> None:
        """Refuse NaN and infinity: nothing of them means anything."""
        if not np.isfinite(logits).all():
            hint = "The model overflows: start from a sound one, or use --dtype float32 (export has none)."
            raise CheckpointError(f"{self.name}: its logits hold NaN or infinity", hint=hint)

    def in_stages(self, cascade: bool | None) -> bool:
        """Whether it answers by its cascade: where it has one, unless that is declined."""
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
        """Answers by the decision state, or by nothing but the mean of the members' probabilities."""
        cascade = self.in_stages(cascade)
        return self.prediction_of(self.ask(inputs, cascade=cascade, features=self.reads), cascade)

    @property
    def reads(self) -> bool:
        """Whether its decisions need features."""
        return self.state is not None and self.state.fitted is not None

    def prediction_of(self, parts: Sequence[Said], cascade: bool) -> Prediction:
        """What was said, as answers; CheckpointError where a number of them overflows."""
        state = self.state
        with np.errstate(all="ignore"):  # what overflows is refused below
            if cascade and state is not None:
                answers = decide_in_stages(state, parts)
            elif state is not None:
                (whole,) = parts
                answers = decide(state, whole.logits, whole.features)
            else:
                (whole,) = parts
                answers = self.problem.decide(whole.logits)
        if name := answers.overflow():
            raise CheckpointError(
                f"{self.name}: its answers hold NaN or infinity ({name})",
                hint="Calibrate it again; if that fails, its weights or features overflow.",
            )
        return answers

    def rows(
        self,
        answers: Prediction,
        begun: Sequence[dict[str, Any]],
        top: int,
        asked: Callable[[], Sequence[Any]] = tuple,
    ) -> list[dict[str, Any]]:
        """Answers as rows of `predict`, each continuing what is `begun`; `asked` gives the samples,
        where answers speak of places in them.
        """
        about = answers.about(asked)
        rows = rows_of(about, begun, names=self.facts.labels, top=top, where=self.name)
        texts = asked() if self.facts.max_tokens is not None else ()
        if texts:
            too_long = self.transform.too_long(texts)  # type: ignore[attr-defined]
            for row in (row for row, cut in zip(rows, too_long, strict=True) if cut):
                row[CUT] = True
        return rows


def first_words(engine: Engine, inputs: Any, features: bool) -> tuple[Said, Callable[[Any], Said]]:
    """A reader of words: what it says came with the inputs."""
    read = single(inputs[READ])

    def whole(rows: Any) -> Said:
        some = {name: values[rows] for name, values in inputs.items()}
        return replace(engine.whole(some, features=features), rows=rows)

    rows = np.arange(len(read))
    return Said(rows, read[:, None, :-1], read[:, None, -1:]), whole


def rows_in(inputs: Any) -> int:
    """Samples of a batch."""
    if isinstance(inputs, Mapping) and WORDS in inputs:
        return len(inputs[WORDS])
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(first)


def said(engine: Engine, inputs: Any, *, features: bool) -> list[Said]:
    """What the first reader says of the rows that it answers, and the whole model of the others."""
    state, reader = engine.state, engine.first
    assert state is not None
    assert reader is not None
    first, whole = reader(inputs, features)
    early = first.arrays()
    rule, threshold = state.stages[True], state.cascade.threshold
    going = going_on(rule, threshold, Outputs(early.logits, early.features))
    stopped, went = np.flatnonzero(~going), np.flatnonzero(going)
    parts = [replace(first.at(stopped), first=True)]
    if len(went):
        parts.append(whole(went))
    return parts


@dataclass(frozen=True)
class Piece:
    """What was said of one batch of samples."""

    index: Int[ndarray, " row"]
    """Where its rows stand among the samples."""
    parts: Sequence[Said]
    labels: ndarray | None

    @property
    def outputs(self) -> Outputs:
        """Of the whole model, where there is no cascade."""
        (whole,) = self.parts
        return Outputs(whole.logits, whole.features, self.labels)


class Apart:
    """A transform of which each model gets a batch of its own."""

    def __init__(self, models: Sequence[Engine]) -> None:
        self.models = models
        self.kind = getattr(models[0].transform, "kind", "image")
        self.inputs = getattr(models[0].transform, "inputs", None)

    def __call__(self, sample: Any) -> Any:
        return sample

    def collate(self, samples: Sequence[Any]) -> list[Any]:
        """A batch for each model."""
        return [model.prepared(samples) for model in self.models]

    arrays = collate


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
        """Features are those of the first model, and only one model has a cascade."""
        self.models, self.run = models, run
        # Models read alike, but that each reads with words of its own.
        self.apart = len(models) > 1 and any(isinstance(m.transform, Beside) for m in models)
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
        first, *others = self.models
        for batch in fed(self.batches, self.run):
            inputs = batch.inputs if self.apart else [batch.inputs] * len(self.models)
            parts = first.ask(inputs[0], cascade=self.cascade, features=self.features)
            for model, own in zip(others, inputs[1:], strict=True):
                (more,) = model.ask(own)
                parts = [beside(parts[0], more)]
            labels = None if batch.labels is None else np.asarray(batch.labels)
            yield Piece(np.asarray(batch.index), parts, labels)


def beside(first: Said, more: Said) -> Said:
    """What two models say of the same rows."""
    return replace(first, logits=np.concatenate([first.logits, more.logits], axis=1))


def gathered(
    samples: Samples, pieces: Iterable[tuple[ndarray, Mapping[str, ndarray | None]]]
) -> dict[str, ndarray]:
    """Values of all pieces by name, in the order of the samples, without those that could not be
    read.
    """
    whole: dict[str, ndarray] = {}
    read = np.zeros(len(samples), dtype=bool)
    for index, piece in pieces:
        read[index] = True
        for name, values in piece.items():
            if values is not None:
                # Each row goes to its place at once: pieces that wait to be joined would take the
                # memory twice.
                if name not in whole:
                    whole[name] = np.empty((len(samples), *values.shape[1:]), values.dtype)
                whole[name], values = alike(whole[name], values)
                whole[name][index] = values
    if not whole:
        raise unreadable(samples)
    if read.all():
        return whole
    return {name: values[read] for name, values in whole.items()}


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

    whole = gathered(samples, pieces())
    if skipped is not None:
        skipped += answering.batches.skipped
    fields: dict[str, Any] = {"features": None, **whole}
    return Outputs(**fields)


def numbered(groups: Sequence[str]) -> Int[ndarray, " sample"]:
    """The number of each sample's group, in the order in which they come."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[group] for group in groups], dtype=np.int64)


def fed(
    batches: Batches, run: Run, *, module: nn.Module | None = None, name: str | None = None
) -> Iterator[Batch]:
    """Batches, with progress; moved to where a module is, and to what it computes in."""
    for done, batch in enumerate(batches, 1):
        if module is not None:
            weight = next(module.parameters())
            batch = replace(batch, inputs=moved(batch.inputs, weight.device, weight.dtype))
        yield batch
        run.tick(name or batches.samples.spec, done, len(batches))
