"""predict: one row for each sample, in their order: label, set, doubts, and whether to answer at
all.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.engines import check_engine, chosen, engine_of, fitted_otherwise, open_any
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.atomic import check_ending, output_file, replacing
from hydrasurgeon.files.rows import line, writing, writing_parts
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.deciding import PredictOptions
from hydrasurgeon.problems.base import abstained, need_feature, rows_of
from hydrasurgeon.problems.columns import columns_of, spread, without_state
from hydrasurgeon.problems.printed import Answers

if TYPE_CHECKING:
    from numpy import ndarray

    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.file import Decision
    from hydrasurgeon.measuring.predictions import Predictions
    from hydrasurgeon.runtime.answering import Engine

# Batches of lines of stdin that are read at once.
AHEAD = 16
AT_ONCE = 1 << 16
"""Rows of a table that are in memory at once, about: whole batches of them."""
ROWS = 1024
"""Rows of predictions that are decided at once."""
ENDINGS = (".jsonl", ".csv", ".parquet")
"""What an output may end in."""
ID = "id"
"""The column that names the rows, unless --id-column says otherwise."""
SHARD = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")
"""`--shard`, as it is given: which part of how many."""


@dataclass(frozen=True, repr=False)
class Predicted(Answers):
    """What came out, in numbers; and the rows, where they went neither into a file nor to `each`."""

    path: Path | None
    """None: no file was written."""
    rows: int
    answers: dict[str, int]
    """How many were `answered`, `abstain`, `unfamiliar`, and could not be read (`error`)."""
    notes: tuple[str, ...] = ()
    _rows: Sequence[dict[str, Any]] = ()

    def __repr__(self) -> str:
        return super().__repr__() if self.path is None else f"{self.path}: {self.rows} rows"


@stage(PredictOptions)
def predict(arguments: PredictOptions) -> Predicted:
    """Answer for every sample of a data set; rows are written into `out`, handed to `each` in JSON,
    or returned.

    Examples:
        >>> answers = hs.predict("backbone", data="demo:test", limit=3)
        >>> answers
          id  label  probability  total  answer
        1236      6        0.996  0.036       6
        1380      6        0.887  0.543       6
        1946      6        0.992  0.054       6
        not calibrated: no decision state was used
        >>> answers.to_pandas()["label"].tolist()
        [6, 6, 6]
    """
    _check(arguments)
    place = read = None
    in_parts = str(arguments.out).endswith("/")
    claim: dict[str, Any] = {"force": arguments.force, "inputs": arguments.sources}
    if arguments.out is not None:
        place = output_file(arguments.out, folder=in_parts, option="-o", **claim)
    if arguments.embeddings is not None:
        check_ending(arguments.embeddings, ".npz", option="--embeddings")
        read = output_file(arguments.embeddings, option="--embeddings", **claim)
    source = _opened(arguments) if arguments.predictions is None else _read(arguments)
    counts, ids, hashes = Counter[str](), list[str](), array("q")
    returned: list[dict[str, Any]] = []
    keep: Callable[[list[dict[str, Any]]], None] = returned.extend
    with ExitStack() as stack:
        if place is not None and in_parts:
            keep = stack.enter_context(writing_parts(place, source.columns()))
        elif place is not None:
            top = min(arguments.top, source.classes) if place.suffix == ".csv" else None
            keep = stack.enter_context(writing(place, source.columns(top=top), spread))
        elif arguments.each is not None:
            keep = partial(_hand_on, arguments.each)
        for rows in source.rows:
            counts.update(_outcome(row) for row in rows)
            if read is not None:
                ids += [str(row["id"]) for row in rows if "error" not in row]
            hashes.extend(hash(str(row["id"])) for row in rows)
            keep(rows)
    if read is not None:
        rows_read = np.concatenate([*source.embedded] or [np.zeros((0, 0))])
        with replacing(read) as (part,), part.open("wb") as file:
            np.savez(file, embeddings=rows_read, ids=np.array(ids, dtype=str))
    notes = source.notes
    ordered = np.sort(hashes)  # np.unique imports numpy.ma
    repeated = int((ordered[1:] == ordered[:-1]).sum())
    if repeated:
        notes += (f"{repeated:,} of {len(hashes):,} rows have the id of another row",)
    return Predicted(place, len(hashes), dict(sorted(counts.items())), notes, returned)


def _hand_on(each: Callable[[str], None], rows: list[dict[str, Any]]) -> None:
    for row in rows:
        each(line(row))


def _outcome(row: dict[str, Any]) -> str:
    if "error" in row:
        return "error"
    if row["unfamiliar"]:
        return "unfamiliar"
    return "abstain" if abstained(row) else "answered"


def _check(arguments: PredictOptions) -> None:
    """Options that go together."""
    if arguments.out is not None and not str(arguments.out).endswith("/"):
        hint = "The ending says the format; DIR/ is a folder of .parquet files."
        check_ending(arguments.out, *ENDINGS, option="-o", hint=hint)
    if arguments.shard is not None:
        match = SHARD.fullmatch(arguments.shard)
        if match is None or int(match[1]) > int(match[2]):
            raise UsageError(
                f"--shard {arguments.shard}: not I/N with I from 1 to N",
                hint="Such as --shard 1/4.",
            )
    of_files = ("shard", "limit", "id_column", "keep_columns")
    wrong = [arguments.flag(name) for name in of_files if getattr(arguments, name) is not None]
    if arguments.data == "-" and wrong:
        raise UsageError(
            f"--data - conflicts with {wrong[0]}", hint="Leave it out, or give a file as --data."
        )


@dataclass(frozen=True)
class _Source:
    """What answers come from."""

    rows: Iterator[list[dict[str, Any]]]
    """Rows in their order, some at a time."""
    columns: Callable[..., dict[str, str]]
    """The columns of a table, and what they hold; with `top`, with so many labels side by side."""
    classes: int
    notes: tuple[str, ...] = ()
    embedded: Sequence[ndarray] = ()
    """What the classifier read, where that is wanted: complete behind the last row."""


@dataclass(frozen=True)
class _Model:
    """A model and its data: rows, batch by batch."""

    arguments: PredictOptions
    model: Engine
    pieces: Iterator[Samples]
    """The data, all at once or some rows after others."""
    batch: int
    kept: Mapping[str, str]
    """What a row calls the columns of the data that it keeps."""
    embedded: list[ndarray] = field(default_factory=list)

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """Rows in the order of the samples."""
        at, batch = 0, self.batch
        shard, shards = map(int, (self.arguments.shard or "1/1").split("/"))
        for samples in self.pieces:
            # A shard is cut where batches are.
            count = len(samples)
            ends = (-(-count // batch) * part // shards for part in (shard - 1, shard))
            places = range(*(min(count, batch * end) for end in ends))
            yield from self._over(samples, places, at)
            at += len(samples)

    def _over(
        self, samples: Samples, places: range, before: int = 0
    ) -> Iterator[list[dict[str, Any]]]:
        """Rows of some samples, `before` which others were answered."""
        from hydrasurgeon.runtime.answering import Answering

        model, cascade = self.model, self.model.in_stages(self.arguments.cascade)
        answering = Answering(
            [model],
            samples,
            self.arguments,
            order=self._order(samples, places),
            features=model.reads or self.arguments.embeddings is not None,
            cascade=cascade,
        )
        at = places.start
        failed = answering.batches.failed
        answers: dict[int, dict[str, Any]] = {}

        def given(i: int) -> dict[str, Any]:
            """The answer to a sample, or why it could not be read."""
            if i in answers:
                return answers.pop(i)
            return {**self._named(samples, i, before), "error": failed[i]}

        for piece in answering:
            index = piece.index.tolist()
            begun = [self._named(samples, i, before) for i in index]
            if self.arguments.embeddings is not None:
                features = piece.outputs.features
                assert features is not None
                self.embedded.append(features.mean(axis=1))
            asked: Any = partial(list, map(samples.read, index))
            decided = model.prediction_of(piece.parts, cascade)
            rows = model.rows(decided, begun, self.arguments.top, asked)
            answers |= zip(index, rows, strict=True)
            # All windows before that of this batch are answered.
            end = max(index) + 1
            if self._sorts(samples):
                end = places.start + (min(index) - places.start) // self.window * self.window
            if end > at:
                yield [given(i) for i in range(at, end)]
                at = end
        if at < places.stop:
            yield [given(i) for i in range(at, places.stop)]

    @property
    def id_column(self) -> str:
        """The column of the data that names the rows."""
        return self.arguments.id_column or ID

    @property
    def window(self) -> int:
        """Texts among which those of like length are answered together."""
        return self.batch * AHEAD

    def _sorts(self, samples: Samples) -> bool:
        """Whether texts change places, so that a batch of a graph holds little padding; shards are cut
        where batches are.
        """
        whole = self.arguments.shard is None
        return self.model.arrays and samples.kind == "text" and whole

    def _order(self, samples: Samples, places: range) -> Sequence[int]:
        """The order in which samples are answered."""
        if not self._sorts(samples):
            return places
        order: list[int] = []
        for start in range(places.start, places.stop, self.window):
            some = range(start, min(places.stop, start + self.window))
            order += sorted(some, key=lambda i: -len(samples.content_if_any(i)))
        return order

    def _named(self, samples: Samples, i: int, before: int) -> dict[str, Any]:
        """What a row begins with: which sample it is of, and what is kept of the data."""
        name = samples.name(i)
        if self.id_column in samples.columns:
            name = plain(samples.carried(self.id_column, i))
        elif isinstance(name, int):
            name += before
        return {
            "id": name,
            **{key: plain(samples.carried(name, i)) for key, name in self.kept.items()},
        }


def _opened(arguments: PredictOptions) -> _Source:
    """A checkpoint and its data, once both are known to be sound."""
    from hydrasurgeon.data.batches import batch_size_of

    checkpoint, data = arguments.needed()
    check_engine(arguments, arguments.dtype)
    opened = open_any(checkpoint, arch=arguments.arch, engine=arguments.engine)
    keep = [name.strip() for name in (arguments.keep_columns or "").split(",") if name.strip()]
    batch = batch_size_of(arguments.batch_size)
    first = None
    if data != "-":
        # All must be known before the first is answered where a part of them is wanted, or their
        # labels name the classes.
        known = opened.manifest.model
        named = known.labels is None and arguments.classes is None and known.num_classes == 0
        whole = arguments.limit or arguments.shard or named
        at_once = None if whole else batch * -(-AT_ONCE // batch)
        others = _samples(data, arguments, keep, at_once)
        first = next(others)
        pieces: Iterator[Samples] = chain([first], others)
    opened = classifying(opened, arguments, first)
    need_classes(opened.manifest, opened.path)
    opened.check_weights()
    engine = chosen(
        opened,
        arguments.engine if arguments.embeddings is None else "torch",
        device=arguments.device,
        dtype=arguments.dtype,
        rows=0 if first is None else len(first),
    )
    model = engine_of(opened, engine=engine, device=arguments.device, dtype=arguments.dtype)
    if arguments.embeddings is not None:
        need_feature(model.problem, "--embeddings", opened.name, UsageError)
        if arguments.engine not in ("auto", "torch") or model.in_stages(arguments.cascade):
            what = "--embeddings: all members are read, by PyTorch"
            raise UsageError(what, hint="Leave --engine out, and give --no-cascade.")
    # The name of an answer's own field is taken: what the data calls so is told apart.
    own = ("id", *model.problem.columns)
    kept = {f"data_{name}" if name in own else name: name for name in keep}
    said = [opened.note, fitted_otherwise(opened, engine), *model.notes]
    if model.state is None:
        said.append(without_state(opened.name))
    if first is None:
        arguments = arguments.but(progress=None)
        pieces = _typed(model.facts.inputs == "text_pair", batch * AHEAD)
    answering = _Model(arguments, model, pieces, batch, kept)
    columns = partial(columns_of, model.problem, kept=kept, errors=arguments.skip_bad)
    notes = tuple(filter(None, said))
    return _Source(answering.rows(), columns, model.facts.num_classes, notes, answering.embedded)


def _typed(pairs: bool, at_once: int) -> Iterator[Samples]:
    """The lines that come on stdin."""
    from hydrasurgeon.data.samples import Rows
    from hydrasurgeon.data.sources import text_pairs

    at = 0
    while texts := [line.rstrip("\n") for line in islice(sys.stdin, at_once)]:
        where = "stdin" if at == 0 else f"stdin from row {at} on"
        if pairs:
            yield text_pairs(where, [line.partition("\t")[::2] for line in texts])
        else:
            yield Rows(where, texts, "text")
        at += len(texts)
    if not at:
        raise DataError("stdin: holds no samples")


def _decided(decision: Decision, given: Predictions, top: int) -> Iterator[list[dict[str, Any]]]:
    """Rows in the order of the predictions."""
    outputs, read = given.outputs, given.read
    ids, names = given.ids or range(len(outputs.logits)), decision.names or given.names
    for start in range(0, len(outputs.logits), ROWS):
        some = outputs.at(slice(start, start + ROWS))
        begun = [{"id": name} for name in ids[start : start + ROWS]]
        words = read and read.at(range(start, start + len(some.logits)))
        decided = decision.decide(some.logits, some.features, words)
        yield rows_of(decided, begun, names=names, top=top)


def _read(arguments: PredictOptions) -> _Source:
    """A decision and predictions, once they are known to belong together."""
    from hydrasurgeon.decision.file import Decision
    from hydrasurgeon.measuring.predictions import read_outputs

    assert arguments.decision is not None
    assert arguments.predictions is not None
    decision, given = Decision.load(arguments.decision), read_outputs(Path(arguments.predictions))
    if given.names not in (None, decision.names or given.names):
        raise DataError(
            f"{arguments.predictions}: its classes are other ones than those of "
            f"{arguments.decision}",
            hint="Give predictions whose names stand in the same order.",
        )
    none = given.outputs.at(slice(0))
    decision.decide(none.logits, none.features)
    columns = partial(columns_of, decision.state.problem)
    return _Source(_decided(decision, given, arguments.top), columns, decision.classes)


def _samples(
    data: str, arguments: PredictOptions, keep: list[str], at_once: int | None
) -> Iterator[Samples]:
    """The data, with the columns that are carried over; at most so many rows of a table at once."""
    from hydrasurgeon.data.sources import in_memory, in_pieces, open_data

    texts: Sequence[Any] = arguments.text
    if arguments.text_pair:
        texts = [*zip_longest(texts, arguments.text_pair)]
    carried = (arguments.id_column or ID, *keep)
    if texts:
        pieces = iter([in_memory(texts, "text")])
    elif at_once is None:
        limit, seed = arguments.limit, arguments.seed
        pieces = iter([open_data(data, limit=limit, seed=seed, carried=carried, labelled=False)])
    else:
        pieces = in_pieces(data, at_once=at_once, carried=carried)
    for samples in pieces:
        _check_columns(samples, arguments, keep)
        yield samples


def _check_columns(samples: Samples, arguments: PredictOptions, keep: list[str]) -> None:
    """Refuse names of columns that are not there."""
    wanted = [("--id-column", arguments.id_column), *(("--keep-columns", name) for name in keep)]
    for option, name in wanted:
        if name and name not in samples.columns:
            hint = (
                "Columns are those of a .csv, .jsonl, .parquet or hf: table; names are "
                "case-sensitive."
            )
            raise DataError(f"{option} {name}: {samples.spec} has no such column", hint=hint)


def plain(value: Any) -> Any:
    """A value of a table as JSON has it; what JSON has no word for as text."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=str))
    except (TypeError, ValueError):
        return str(value)
