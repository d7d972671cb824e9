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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.engines import (
    ENGINES,
    check_engine,
    chosen,
    engine_of,
    fitted_otherwise,
    open_any,
)
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.atomic import check_ending, output_file, replacing
from hydrasurgeon.files.history import installed
from hydrasurgeon.files.pieces import Pieces
from hydrasurgeon.files.rows import Write, line, writing, writing_parts
from hydrasurgeon.files.untrusted import portable
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.deciding import PredictOptions
from hydrasurgeon.tasks import task_of
from hydrasurgeon.tasks.base import abstained, need_feature, rows_of
from hydrasurgeon.tasks.printed import Answers
from hydrasurgeon.tasks.row_columns import CUT, columns_of, spread, with_cut, without_state

if TYPE_CHECKING:
    from numpy import ndarray

    from hydrasurgeon.checkpoints.checkpoint import Checkpoint
    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.standalone import Decision
    from hydrasurgeon.measuring.predictions import Predictions
    from hydrasurgeon.runtime.answering import Engine

# Batches of lines of stdin that are read at once.
AHEAD = 16
PIECE = 1 << 10
"""Rows that are kept together until the output is whole, at least: whole windows of them."""
AT_ONCE = 1 << 12
"""Rows of a table that are in memory at once, at least: whole pieces of them."""
ROWS = 1024
"""Rows of predictions that are decided at once."""
ENDINGS = (".jsonl", ".csv", ".parquet")
"""File formats of an output."""
ID = "id"
"""The column that names the rows, unless --id-column says otherwise."""
PACKAGES = (
    *("hydrasurgeon", "numpy", "tokenizers", "transformers", "timm"),
    *(package for kind in ENGINES for package in kind.packages),
)
"""Packages whose versions answers depend on."""
SHARD = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")
"""`--shard`, as it is given: which part of how many."""


@dataclass(frozen=True, repr=False)
class Predicted(Answers):
    """Counts of the answers, and the rows if they went neither into a file nor to `each`."""

    path: Path | None
    """None: no file was written."""
    rows: int
    answers: dict[str, int]
    """Number of rows by outcome: `answered`, `abstain`, `unfamiliar` or `error`."""
    cut: int = 0
    """Number of texts that were longer than the model's limit."""
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
    source = _opened(arguments, place) if arguments.predictions is None else _read(arguments)
    counts, ids, hashes, cut = Counter[str](), list[str](), array("q"), 0
    returned: list[dict[str, Any]] = []
    keep: Callable[[list[dict[str, Any]]], None] = returned.extend
    with ExitStack() as stack:
        if place is not None:
            top = min(arguments.top, source.classes) if place.suffix == ".csv" else None
            keep = stack.enter_context(_writing(place, source.columns(top=top), parts=in_parts))
        elif arguments.each is not None:
            keep = partial(_hand_on, arguments.each)
        for rows in source.rows:
            counts.update(_outcome(row) for row in rows)
            cut += sum(CUT in row for row in rows)
            if read is not None:
                ids += [str(row["id"]) for row in rows if "error" not in row]
            hashes.extend(hash(str(row["id"])) for row in rows)
            keep(rows)
    model = source.model
    if model is not None and model.pieces is not None:
        model.pieces.clear()
    if read is not None:
        embedded = [] if model is None else model.embedded
        rows_read = np.concatenate(embedded or [np.zeros((0, 0))])
        with replacing(read) as (part,), part.open("wb") as file:
            np.savez(file, embeddings=rows_read, ids=np.array(ids, dtype=str))
    notes = source.notes
    if not hashes:
        notes += ("the data have no rows: nothing was answered",)
    if model is not None and model.progress.kept:
        notes += (f"{model.progress.kept:,} rows were answered before, by an interrupted command",)
    if cut:
        texts, were = ("texts", "were") if cut > 1 else ("text", "was")
        limit = f"{source.max_tokens:,} tokens"
        notes += (f"{cut:,} {texts} {were} longer than {limit} and {were} cut",)
    ordered = np.sort(hashes)  # np.unique imports numpy.ma
    repeated = int((ordered[1:] == ordered[:-1]).sum())
    if repeated:
        notes += (f"{repeated:,} of {len(hashes):,} rows share an id with another row",)
    return Predicted(place, len(hashes), dict(sorted(counts.items())), cut, notes, returned)


@contextmanager
def _writing(place: Path, columns: Mapping[str, str], *, parts: bool) -> Iterator[Write]:
    """Write rows into a file, or into a folder of parquet files, as its format has them."""
    lines = place.suffix == ".jsonl" and not parts
    with writing_parts(place, columns) if parts else writing(place, columns, spread) as write:
        yield write if lines or CUT not in columns else lambda rows: write([*map(with_cut, rows)])


def _hand_on(receive: Callable[[str], None], rows: list[dict[str, Any]]) -> None:
    for row in rows:
        receive(line(row))


def _outcome(row: dict[str, Any]) -> str:
    if "error" in row:
        return "error"
    if row["unfamiliar"]:
        return "unfamiliar"
    return "abstain" if abstained(row) else "answered"


def _check(arguments: PredictOptions) -> None:
    """Raise UsageError for options that do not go together."""
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
    """A stream of answers, with what describes them."""

    rows: Iterator[list[dict[str, Any]]]
    """Rows in their order, some at a time."""
    columns: Callable[..., dict[str, str]]
    """The columns of a table, and what they hold; with `top`, with so many labels side by side."""
    classes: int
    notes: tuple[str, ...] = ()
    max_tokens: int | None = None
    """Tokens of a text that the model reads."""
    model: _Model | None = None
    """The model that answers; None for predictions."""


@dataclass
class _Progress:
    """Progress of a job, in rows."""

    arguments: PredictOptions
    title: str
    total: int | None
    """None where it is not known."""
    done: int = 0
    kept: int = 0
    """Rows of these that an interrupted command left."""

    def add(self, rows: int) -> None:
        """Report that more rows are answered."""
        self.done += rows
        self.tell()

    def tell(self) -> None:
        """Report how many are answered."""
        self.arguments.tick_rows(self.title, self.done, self.total)


@dataclass(frozen=True)
class _Model:
    """A model and its data: rows, batch by batch."""

    arguments: PredictOptions
    model: Engine
    samples: Iterator[Samples]
    """The data, all at once or some rows after others."""
    batch: int
    kept: Mapping[str, str]
    """The name in a row of each column of the data that is carried over."""
    progress: _Progress
    pieces: Pieces | None = None
    """Store of finished rows until the output is complete."""
    embedded: list[ndarray] = field(default_factory=list)
    """Inputs of the classifier, if wanted: complete behind the last row."""

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows in the order of the samples."""
        at, batch = 0, self.batch
        shard, shards = map(int, (self.arguments.shard or "1/1").split("/"))
        for samples in self.samples:
            # A shard is cut where batches are.
            count = len(samples)
            ends = (-(-count // batch) * part // shards for part in (shard - 1, shard))
            places = range(*(min(count, batch * end) for end in ends))
            if shards > 1:
                self.progress.total = len(places)
            yield from self._kept(samples, places, at)
            at += len(samples)

    def _kept(self, samples: Samples, places: range, before: int) -> Iterator[list[dict[str, Any]]]:
        """Yield rows of some samples: first those that an interrupted command left, then the rest,
        which are stored until the output is complete.
        """
        pieces = self.pieces
        if pieces is None:
            yield from self._over(samples, places, before)
            return
        while pieces.are_there and places:
            rows = pieces.read(self._path(pieces, samples, places[: self.piece], before))
            if rows is None or (not self.arguments.skip_bad and any("error" in r for r in rows)):
                break
            self.progress.kept += len(rows)
            self.progress.done += len(rows)
            yield rows
            places = places[self.piece :]
        begins = before == 0 and places.start == 0
        waiting: list[dict[str, Any]] = []
        for rows in self._over(samples, places, before):
            waiting += rows
            while len(waiting) >= self.piece:
                done, waiting = waiting[: self.piece], waiting[self.piece :]
                pieces.write(self._path(pieces, samples, places[: self.piece], before), done)
                places, begins = places[self.piece :], False
                yield done
        if waiting:
            if not begins:  # of a few rows nothing need be kept
                pieces.write(self._path(pieces, samples, places, before), waiting)
            yield waiting

    def _path(self, pieces: Pieces, samples: Samples, places: range, before: int) -> Path:
        """Return where the rows of some samples are kept."""
        names = (json.dumps(self._named(samples, i, before)).encode() for i in places)
        head = json.dumps([samples.spec, samples.form]).encode()
        return pieces.path(chain([head], names, map(samples.depends_on, places)))

    @property
    def piece(self) -> int:
        """Rows that are kept together."""
        return _piece(self.batch)

    def _over(
        self, samples: Samples, places: range, before: int = 0
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield rows of some samples, `before` of which were answered in earlier calls."""
        from hydrasurgeon.runtime.answering import Answering

        model, cascade = self.model, self.model.in_stages(self.arguments.cascade)
        answering = Answering(
            [model],
            samples,
            self.arguments.but(progress=None),
            order=self._order(samples, places),
            features=model.reads or self.arguments.embeddings is not None,
            cascade=cascade,
        )
        at = places.start
        failed = answering.batches.failed
        answers: dict[int, dict[str, Any]] = {}

        def row_of(i: int) -> dict[str, Any]:
            """Return the answer to a sample, or the reason why it could not be read."""
            if i in answers:
                return answers.pop(i)
            return {**self._named(samples, i, before), "error": failed[i]}

        self.progress.tell()
        for piece in answering:
            index = piece.index.tolist()
            row_prefixes = [self._named(samples, i, before) for i in index]
            if self.arguments.embeddings is not None:
                features = piece.outputs.features
                assert features is not None
                self.embedded.append(features.mean(axis=1))
            read_texts: Any = partial(list, map(samples.read, index))
            decided = model.prediction_of(piece.parts, cascade)
            rows = model.rows(decided, row_prefixes, self.arguments.top, read_texts)
            answers |= zip(index, rows, strict=True)
            self.progress.add(len(index))
            # All windows before that of this batch are answered.
            end = max(index) + 1
            if self._sorts(samples):
                end = places.start + (min(index) - places.start) // self.window * self.window
            if end > at:
                yield [row_of(i) for i in range(at, end)]
                at = end
        self.progress.add(len(failed))
        if at < places.stop:
            yield [row_of(i) for i in range(at, places.stop)]

    @property
    def id_column(self) -> str:
        """The column of the data that names the rows."""
        return self.arguments.id_column or ID

    @property
    def window(self) -> int:
        """Texts among which those of like length are answered together."""
        return self.batch * AHEAD

    def _sorts(self, samples: Samples) -> bool:
        """Return True if texts are sorted by length, which saves padding in a graph's batches.
        Shards are cut at batches, so they keep their order.
        """
        unsharded = self.arguments.shard is None
        return self.model.arrays and samples.kind == "text" and unsharded

    def _order(self, samples: Samples, places: range) -> Sequence[int]:
        """Return the order in which samples are answered."""
        if not self._sorts(samples):
            return places
        order: list[int] = []
        for start in range(places.start, places.stop, self.window):
            some = range(start, min(places.stop, start + self.window))
            order += sorted(some, key=lambda i: -len(samples.content_if_any(i)))
        return order

    def _named(self, samples: Samples, i: int, before: int) -> dict[str, Any]:
        """Return the first fields of a row: the sample's id, and the columns that are carried over."""
        name = samples.name(i)
        if self.id_column in samples.columns:
            name = plain(samples.carried(self.id_column, i))
        elif isinstance(name, int):
            name += before
        return {
            "id": name,
            **{key: plain(samples.carried(name, i)) for key, name in self.kept.items()},
        }


def _piece(batch: int) -> int:
    """Return how many rows are kept together: whole windows, as that many are answered in one."""
    window = batch * AHEAD
    return window * -(-PIECE // window)


def _opened(arguments: PredictOptions, place: Path | None) -> _Source:
    """Open a checkpoint and its data, and check that both are sound."""
    from hydrasurgeon.data.batches import batch_size_of

    checkpoint, data = arguments.needed()
    check_engine(arguments, arguments.dtype)
    opened = open_any(checkpoint, arch=arguments.arch, engine=arguments.engine)
    keep = [name.strip() for name in (arguments.keep_columns or "").split(",") if name.strip()]
    batch, facts_of_model, total = batch_size_of(arguments.batch_size), opened.manifest.model, None
    if data == "-":
        samples = _typed(facts_of_model.inputs == "text_pair", batch * AHEAD)
    else:
        # All must be known before the first is answered where a part of them is wanted, or their
        # labels name the classes.
        named = (
            facts_of_model.labels is None
            and arguments.classes is None
            and facts_of_model.num_classes == 0
        )
        at_once_only = arguments.limit or arguments.shard or named
        piece = _piece(batch)
        at_once = None if at_once_only else piece * -(-AT_ONCE // piece)
        total, samples = _samples(data, arguments, keep, at_once)
    first = next(samples)
    opened = classifying(opened, arguments, None if data == "-" else first)
    need_classes(opened.manifest, opened.path)
    facts_of_model = opened.manifest.model
    # The name of an answer's own field is taken: what the data calls so is told apart.
    reserved = ("id", CUT, *task_of(facts_of_model).columns)
    kept = {f"data_{name}" if name in reserved else name: name for name in keep}
    is_cut = facts_of_model.max_tokens is not None
    columns = partial(
        columns_of, task_of(facts_of_model), kept=kept, errors=arguments.skip_bad, cut=is_cut
    )
    if not len(first):
        note = () if opened.note is None else (opened.note,)
        return _Source(iter(()), columns, facts_of_model.num_classes, note)
    digests = opened.digests()
    engine = chosen(
        opened,
        arguments.engine if arguments.embeddings is None else "torch",
        device=arguments.device,
        dtype=arguments.dtype,
        rows=len(first),
    )
    model = engine_of(opened, engine=engine, device=arguments.device, dtype=arguments.dtype)
    if arguments.embeddings is not None:
        need_feature(model.task, "--embeddings", opened.name, UsageError)
        if arguments.engine not in ("auto", "torch") or model.in_stages(arguments.cascade):
            message = "--embeddings requires PyTorch and all members"
            raise UsageError(message, hint="Leave --engine out, and give --no-cascade.")
    notes_of_model = [opened.note, fitted_otherwise(opened, engine), *model.notes]
    if model.state is None:
        notes_of_model.append(without_state(opened.name))
    pieces = None
    if place is not None and data != "-" and arguments.embeddings is None:
        facts = {
            **_identity(opened, digests, arguments),
            "engine": engine,
            "batch": batch,
            "cascade": model.in_stages(arguments.cascade),
            "columns": [arguments.id_column, kept],
        }
        pieces = Pieces(place, "predict", facts)
    if data == "-" and place is None:  # answers come as lines do
        arguments = arguments.but(progress=None)
    progress = _Progress(arguments, portable(data), total)
    samples = chain([first], samples)
    answering = _Model(arguments, model, samples, batch, kept, progress, pieces)
    notes = tuple(filter(None, notes_of_model))
    rows = answering.rows()
    return _Source(
        rows, columns, facts_of_model.num_classes, notes, facts_of_model.max_tokens, answering
    )


def _identity(
    opened: Checkpoint, digests: Mapping[str, str], arguments: PredictOptions
) -> dict[str, Any]:
    """Return what the rows of a model depend on, besides the data and how they are batched."""
    from hydrasurgeon.data.batches import has_gpu

    return {
        "weights": opened.record(digests).sha256,
        "manifest": opened.manifest.model_dump(mode="json"),
        "graph": opened.graph_sha256(),
        "device": [arguments.device, arguments.device == "auto" and has_gpu()],
        "dtype": arguments.dtype,
        "top": arguments.top,
        "versions": [installed(package) for package in PACKAGES],
    }


def _typed(pairs: bool, at_once: int) -> Iterator[Samples]:
    """Read lines from stdin, some at a time; yield an empty set if there are none."""
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
        yield Rows("stdin", [], "text")


def _decided(
    decision: Decision, predictions: Predictions, top: int, where: str
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in the order of the predictions."""
    outputs, read = predictions.outputs, predictions.read
    ids, names = predictions.ids or range(len(outputs.logits)), decision.names or predictions.names
    for start in range(0, len(outputs.logits), ROWS):
        some = outputs.at(slice(start, start + ROWS))
        row_prefixes = [{"id": name} for name in ids[start : start + ROWS]]
        words = read and read.at(range(start, start + len(some.logits)))
        decided = decision.decide(some.logits, some.features, words)
        yield rows_of(decided, row_prefixes, names=names, top=top, where=where)


def _read(arguments: PredictOptions) -> _Source:
    """Open a decision and predictions, and check that they belong together."""
    from hydrasurgeon.decision.standalone import Decision
    from hydrasurgeon.measuring.predictions import read_outputs

    assert arguments.decision is not None
    assert arguments.predictions is not None
    decision, predictions = (
        Decision.load(arguments.decision),
        read_outputs(Path(arguments.predictions)),
    )
    if predictions.names not in (None, decision.names or predictions.names):
        raise DataError(
            f"{arguments.predictions}: its classes are other ones than those of "
            f"{arguments.decision}",
            hint="Give predictions whose names stand in the same order.",
        )
    none = predictions.outputs.at(slice(0))
    decision.decide(none.logits, none.features)
    columns = partial(columns_of, decision.state.task)
    rows = _decided(decision, predictions, arguments.top, str(arguments.decision))
    return _Source(rows, columns, decision.classes)


def _samples(
    data: str, arguments: PredictOptions, keep: list[str], at_once: int | None
) -> tuple[int | None, Iterator[Samples]]:
    """Return how many samples there are, None where that is not known, and the data with the columns
    that are carried over; at most so many rows of a table at once.
    """
    from hydrasurgeon.data.sources import in_memory, in_pieces, open_data

    texts: Sequence[Any] = arguments.text
    if arguments.text_pair:
        texts = [*zip_longest(texts, arguments.text_pair)]
    carried = (arguments.id_column or ID, *keep)
    total: int | None
    if texts or at_once is None:
        limit, seed = arguments.limit, arguments.seed
        if texts:
            samples = in_memory(texts, "text")
        else:
            samples = open_data(
                data, limit=limit, seed=seed, carried=carried, labelled=False, empty=True
            )
        total, pieces = len(samples), iter([samples])
    else:
        counts = arguments.progress is not None
        total, pieces = in_pieces(data, at_once=at_once, carried=carried, count=counts)
    return total, (_with_columns(samples, arguments, keep) for samples in pieces)


def _with_columns(samples: Samples, arguments: PredictOptions, keep: list[str]) -> Samples:
    """Return the samples; DataError where a column that was asked for is not there."""
    column_options = [
        ("--id-column", arguments.id_column),
        *(("--keep-columns", name) for name in keep),
    ]
    named = len(samples) or samples.table_columns  # an empty .jsonl file names no columns
    for option, name in column_options if named else ():
        if name and name not in samples.columns:
            hint = (
                "Columns are those of a .csv, .jsonl, .parquet or hf: table; names are "
                "case-sensitive."
            )
            raise DataError(f"{option} {name}: {samples.spec} has no such column", hint=hint)
    return samples


def plain(value: Any) -> Any:
    """Convert a value of a table to JSON's types; what JSON cannot hold becomes text."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=str))
    except (TypeError, ValueError):
        return str(value)
