"""Samples: an indexed set of images or texts, with or without labels, and a fingerprint of its
content.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Union
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.images import MAX_BYTES, decode, is_picture, plain
from hydrasurgeon.data.labels import UNLABELLED, LabelColumn, Labels
from hydrasurgeon.data.matching import UnknownClass, matched
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.manifest import Inputs, Model
from hydrasurgeon.files.untrusted import portable, read_bytes
from hydrasurgeon.statistics import padded_words

if TYPE_CHECKING:
    from PIL import Image

# Of one text. No model here reads more than some thousand tokens of it.
MAX_TEXT = 1_000_000

READS: dict[Inputs, str] = {"text": "texts", "text_pair": "pairs of texts"}
"""Names of the inputs of a model of texts, for messages."""
MEND: dict[Inputs, str] = {
    "text": "Give single texts: of a table of pairs, --columns text=NAME reads one.",
    "text_pair": (
        "Give pairs: a column text_pair (--columns text_pair=NAME), `predict --text A --text-pair B`, "
        "or tuples."
    ),
}
"""Hint if a model of texts got the other kind."""
NOT_SHOWN = ("Cc", "Cf", "Zl", "Zp", "Zs")
"""Categories of invisible characters: control, zero-width and byte order marks, spaces."""
NO_TEXT = (
    "Give each row its text, or leave such rows out by --skip-bad (bench and export have none)."
)
FEW_NAMED = 3
"""Number of rows that a note names."""
EMPTY = np.void(hashlib.sha256().digest())
"""Digest of a sample that cannot be read."""

Decoded = Union["Image.Image", str, tuple[str, str]]
"""Decoded sample: an image, a text, or two texts that are read together."""


class Samples(ABC):
    """Indexed set of raw samples; picklable, so that worker processes can read from it."""

    spec: str
    """Spec as the user wrote it, without absolute paths."""
    kind: Literal["image", "text"] = "image"
    inputs: Inputs = "text"
    """Kind of texts: single texts, or pairs."""
    written: LabelColumn | None = None
    """Labels as the data hold them, or those of the model that they were fitted to."""
    refused: DataError | None = None
    """Error in the columns of labels; it is raised only if labels are needed."""
    columns: Mapping[str, Sequence[Any]] = MappingProxyType({})
    """Columns of the table that are carried along, on request."""
    table_columns: tuple[str, ...] = ()
    """All columns of the table that the samples come from."""
    used: tuple[str, ...] = ()
    """Columns of the table that hold texts, images and groups."""
    places: Sequence[int] | None = None
    """Row of the table of each sample; None if no rows were left out."""
    left_out: tuple[str, ...] = ()
    """Reasons why rows of the table were left out, with their places."""
    form: str = ""
    """Property of the samples that is not part of their contents: the shape of arrays."""
    grouping: Sequence[Any] | None = None
    """Column of the table that holds the query of each sample."""

    def __init__(self, spec: str, written: LabelColumn | None = None) -> None:
        self.spec, self.written = spec, written
        self.unread: dict[int, str] = {}
        """Reasons why samples could not be read, by position, once they were left out."""

    @property
    def labels(self) -> Labels | None:
        return None if self.written is None else self.written.labels

    @property
    def classes(self) -> tuple[str, ...] | None:
        return None if self.written is None else self.written.names

    @property
    def note(self) -> str | None:
        """Note on how the labels were interpreted, where that was not obvious."""
        return None if self.written is None else self.written.note

    @abstractmethod
    def __len__(self) -> int: ...

    def at(self, rows: NDArray[np.int64]) -> Samples:
        """Return some of the samples."""
        return Subset(self, None if self.written is None else self.written.at(rows), rows)

    def name(self, i: int) -> str | int:
        """Return a sample's name in a list of answers: its `id`, its file below the common folder,
        or its row.
        """
        return self.columns["id"][i] if "id" in self.columns else self.row(i)

    def row(self, i: int) -> int:
        """Return the number of a sample's row in its table."""
        return i if self.places is None else self.places[i]

    def carried(self, name: str, i: int) -> Any:
        """Return a sample's value in one of `columns`."""
        return self.columns[name][i]

    @property
    def contents(self) -> str:
        """Kind of the samples, in words."""
        if self.kind == "text":
            return READS[self.inputs]
        return f"{self.kind}s"

    @cached_property
    def groups(self) -> tuple[str, ...] | None:
        """The query that each sample belongs to; None where nothing says so, DataError where a row
        has none.
        """
        if self.grouping is None:
            return None
        named = [str(value) if isinstance(value, str | int) else "" for value in self.grouping]
        if "" in named:
            hint = (
                "Give each row the id of its query, or name another column: --columns group=NAME."
            )
            raise DataError(f"{self.spec}: row {named.index('')} has no group", hint=hint)
        return tuple(named)

    @abstractmethod
    def read(self, i: int) -> Decoded:
        """Return the decoded sample; DataError naming it if it cannot be read."""

    @abstractmethod
    def content(self, i: int) -> bytes:
        """Return the bytes of this sample that the fingerprint hashes."""

    def content_if_any(self, i: int) -> bytes:
        """Return `content`, or nothing for a sample that cannot be read; `read` raises its error,
        unless such samples are skipped.
        """
        try:
            return self.content(i)
        except DataError:
            return b""

    def depends_on(self, i: int) -> bytes:
        """Return all that an answer to a sample depends on; nothing of one that cannot be read."""
        if self.kind != "text":
            return self.content_if_any(i)
        try:
            text = self.read(i)
        except DataError:
            return b""
        return json.dumps([text, getattr(text, "spans", None)]).encode()

    @cached_property
    def digests(self) -> NDArray[np.void]:
        """Sha256 of each sample's content."""
        contents = (self.content_if_any(i) for i in range(len(self)))
        digests = (hashlib.sha256(content).digest() for content in contents)
        return np.fromiter(digests, np.dtype((np.void, 32)), len(self))

    def fingerprint(self) -> dict[str, Any]:
        """Return the spec, the number of rows, and a hash of exactly these samples, wherever they
        are stored.
        """
        total = hashlib.sha256(self.digests.view(np.uint8).data)
        if self.written is not None:
            labels = self.written.positions
            kind = "<i8" if labels.dtype.kind == "i" else "<f8"
            total.update(np.ascontiguousarray(labels, dtype=kind).tobytes())
            if self.written.chances is not None:
                total.update(np.ascontiguousarray(self.written.chances, dtype="<f4").tobytes())
        return {"spec": self.portable_spec, "rows": len(self), "sha256": total.hexdigest()}

    @property
    def portable_spec(self) -> str:
        """Spec without folders."""
        return portable(self.spec)

    def content_hash(self) -> str:
        """Return a hash of the samples that does not depend on order or labels."""
        return hashlib.sha256(np.sort(self.digests).view(np.uint8).data).hexdigest()

    def is_in(self, other: Samples) -> NDArray[np.bool_]:
        """Return True for each sample that is exactly one of another set's; unreadable samples
        match none.
        """
        shared: NDArray[np.bool_] = np.isin(self.digests, other.digests) & (self.digests != EMPTY)
        return shared

    def shared_with(self, other: Samples) -> int:
        """Count the samples that are exactly one of another set's."""
        return int(self.is_in(other).sum())


class Arrays(Samples):
    """Images in one array, N×H×W or N×H×W×C."""

    def __init__(
        self, spec: str, images: NDArray[np.uint8], written: LabelColumn | None = None
    ) -> None:
        super().__init__(spec, written)
        self.images, self.form = images, str(images.shape[1:])

    def __len__(self) -> int:
        return len(self.images)

    def read(self, i: int) -> Image.Image:
        from PIL import Image

        image = self.images[i]
        if image.ndim == 3 and image.shape[-1] == 1:
            image = image[..., 0]
        return Image.fromarray(image)

    def content(self, i: int) -> bytes:
        return np.ascontiguousarray(self.images[i]).tobytes()


class Files(Samples):
    """Image files."""

    def __init__(
        self, spec: str, paths: Sequence[Path], written: LabelColumn | None = None
    ) -> None:
        super().__init__(spec, written)
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, i: int) -> str:
        return self.paths[i].absolute().relative_to(self._folder).as_posix()

    @cached_property
    def _folder(self) -> Path:
        """Deepest folder that contains all files."""
        return Path(os.path.commonpath([path.absolute().parent for path in self.paths]))

    def read(self, i: int) -> Image.Image:
        return decode(self.content(i), str(self.paths[i]))

    def content(self, i: int) -> bytes:
        return read_bytes(self.paths[i], most=MAX_BYTES, error=DataError)


class Rows(Samples):
    """Rows of a table (an HF dataset): a text, or an image as bytes, picture or path."""

    called = "text"
    """Name of a row's content in messages."""

    def __init__(
        self,
        spec: str,
        column: Any,
        kind: Literal["image", "text"],
        root: Path | None = None,
    ) -> None:
        super().__init__(spec)
        self.column, self.kind, self.root = column, kind, root

    def __len__(self) -> int:
        return len(self.column)

    def read(self, i: int) -> Decoded:
        if self.kind == "text":
            return self._text(i)
        value = self.column[i]
        if is_picture(value):
            return plain(value)
        return decode(self.content(i), f"{self.spec}, row {i}")

    def content(self, i: int) -> bytes:
        if self.kind == "text":
            return self._text(i).encode()
        value = self.column[i]
        if isinstance(value, Mapping):
            content = value.get("bytes")
            value = value.get("path") if content is None else content
        if isinstance(value, str | Path) and str(value):
            return read_bytes((self.root or Path()) / value, most=MAX_BYTES, error=DataError)
        if isinstance(value, bytes):
            return value
        if is_picture(value):
            return value.mode.encode() + value.tobytes()
        raise DataError(f"{self.spec}, row {i}: holds {type(value).__name__}, not an image")

    def _text(self, i: int) -> str:
        value: str = self.column[i]
        why = why_unreadable(value, self.called)
        if why is not None:
            hint = NO_TEXT if is_missing(value) else None
            raise DataError(f"{self.spec}: row {self.row(i)} {why}", hint=hint)
        return value


def why_unreadable(value: Any, called: str) -> str | None:
    """Return what is wrong with a cell that should hold a text, or None."""
    if is_missing(value):
        return f"has no {called}"
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):  # bytes of a pipe may be neither
        return f"holds {type(value).__name__}, not text in UTF-8"
    if len(value) > MAX_TEXT:
        return f"holds {len(value):,} characters; at most {MAX_TEXT:,} are read"
    return None


def is_missing(value: Any) -> bool:
    """Return True if a cell holds no text: it is empty, NaN, or has only invisible characters."""
    if isinstance(value, str):
        return all(category(letter) in NOT_SHOWN for letter in value)
    return value is None or (isinstance(value, float) and value != value)


class TextPairs(Samples):
    """Pairs of texts that a model reads together."""

    kind, inputs = "text", "text_pair"

    def __init__(self, first: Samples, second: Rows, column: str = "text_pair") -> None:
        super().__init__(first.spec, first.written)
        self.first, self.second = first, second
        second.called = f"second text ({column})"

    def __len__(self) -> int:
        return len(self.first)

    def read(self, i: int) -> tuple[str, str]:
        first, second = self.first.read(i), self.second.read(i)
        assert isinstance(first, str)
        assert isinstance(second, str)
        return first, second

    def content(self, i: int) -> bytes:
        return self.first.content(i) + b"\0" + self.second.content(i)


class Subset(Samples):
    """Some samples of another set, possibly with other labels; base of sets that change samples
    when they are read.
    """

    def __init__(
        self,
        parent: Samples,
        written: LabelColumn | None,
        index: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(parent.spec, written)
        self.parent, self.index = parent, range(len(parent)) if index is None else index
        self.kind, self.inputs = parent.kind, parent.inputs
        self.columns, self.table_columns, self.used = (
            parent.columns,
            parent.table_columns,
            parent.used,
        )
        self.refused, self.left_out = parent.refused, parent.left_out
        self.form = parent.form

    def __len__(self) -> int:
        return len(self.index)

    def name(self, i: int) -> str | int:
        return self.parent.name(int(self.index[i]))

    def row(self, i: int) -> int:
        return self.parent.row(int(self.index[i]))

    def carried(self, name: str, i: int) -> Any:
        return self.parent.carried(name, int(self.index[i]))

    @cached_property
    def groups(self) -> tuple[str, ...] | None:
        groups = self.parent.groups
        if groups is None:
            return None
        return tuple(groups[i] for i in self.index)

    @cached_property
    def digests(self) -> NDArray[np.void]:
        """Sha256 of each sample's content: the parent's, unless samples are changed."""
        if type(self).content is not Subset.content:
            return Samples.digests.func(self)  # type: ignore[attr-defined,no-any-return]
        return self.parent.digests[np.asarray(self.index, dtype=np.int64)]

    def read(self, i: int) -> Decoded:
        return self.parent.read(int(self.index[i]))

    def content(self, i: int) -> bytes:
        return self.parent.content(int(self.index[i]))


class Joined(Samples):
    """Samples of one set followed by those of another, which may have no labels."""

    def __init__(self, first: Samples, second: Samples) -> None:
        if (first.kind, first.inputs) != (second.kind, second.inputs):
            raise DataError(
                f"{second.spec}: holds {second.contents}, {first.spec} {first.contents}"
            )
        column = first.written or LabelColumn(np.full(len(first), UNLABELLED, dtype=np.int64))
        shape = (len(second), *column.labels.shape[1:])
        more = np.full(shape, UNLABELLED, dtype=column.labels.dtype)
        if second.labels is not None:
            more = second.labels
        labels, chances = padded_words.joined([column.labels, more]), column.chances
        if chances is not None:
            none = np.full((len(second), chances.shape[1]), UNLABELLED, dtype=chances.dtype)
            behind = none if second.written is None else second.written.chances
            chances = None if behind is None else np.concatenate([chances, behind])
        column = replace(column, labels=labels, chances=chances, has_label=None)
        super().__init__(f"{first.spec} and {second.spec}", column)
        self.first, self.second, self.kind, self.inputs = first, second, first.kind, first.inputs

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    @property
    def portable_spec(self) -> str:
        return f"{self.first.portable_spec} and {self.second.portable_spec}"

    def _at(self, i: int) -> tuple[Samples, int]:
        if i < len(self.first):
            return self.first, i
        return self.second, i - len(self.first)

    def read(self, i: int) -> Decoded:
        samples, at = self._at(i)
        return samples.read(at)

    def content(self, i: int) -> bytes:
        samples, at = self._at(i)
        return samples.content(at)


def left_out_of(*sets: Samples | None) -> list[str]:
    """Return the reasons why rows of some sets were left out, with the set and the place of each
    row.
    """
    return [
        f"{samples.spec}, {why}"
        for samples in sets
        if samples is not None
        for why in samples.left_out
    ]


def left_out_note(samples: Samples) -> str | None:
    """Return a note on the rows of a set that were left out, which names the first of them."""
    if not samples.left_out:
        return None
    some = "; ".join(samples.left_out[:FEW_NAMED])
    more = "; …" * (len(samples.left_out) > FEW_NAMED)
    count = len(samples.left_out)
    return f"{samples.spec}: {count:,} row{'s' * (count > 1)} left out: {some}{more}"


def limited(samples: Samples, limit: int | None, seed: int) -> Samples:
    """Return a seeded random subset in its original order; the first rows would not do, because
    those of a sorted folder are all of one class.
    """
    if limit is None or limit >= len(samples):
        return samples
    if limit < 1:
        raise DataError(f"--limit {limit}: must be at least 1")
    return samples.at(np.sort(np.random.default_rng(seed).permutation(len(samples))[:limit]))


def part_of(samples: Samples, part: str) -> Samples:
    """Return the rows between two percentages of a random order that depends only on their number,
    in their original order; `50-100+0-33` is a part of a part.
    """
    for percents in part.split("+"):
        first, last = (int(percent) * len(samples) // 100 for percent in percents.split("-"))
        samples = samples.at(
            np.sort(np.random.default_rng(0).permutation(len(samples))[first:last])
        )
    return samples


def fit_classes(samples: Samples, model: Model) -> Samples:
    """Return labelled samples whose labels are the model's: class numbers, fractions, or a 1 for
    each label that holds; DataError if they do not match.

    Their `classes` are the model's, or the data's if the model has no names; their `note` describes
    the order that was assumed if names could not be matched.
    """
    column = samples.written
    if column is None and samples.refused is not None:
        raise samples.refused
    if column is None:
        table_columns = [name[:40] for name in samples.table_columns]
        columns = f" (columns: {', '.join(table_columns[:20])})" if table_columns else ""
        unused = [name for name in table_columns if name not in samples.used]
        hint = (
            "Give class folders, an array called labels, or a column called label(s), or "
            "name it by --columns label=NAME; a label of -1 stands for none."
        )
        if len(unused) == 1:
            hint = f"Is it --columns label={unused[0]}?"
        raise DataError(f"{samples.spec}: has no labels{columns}", hint=hint)
    return Subset(samples, matched(samples.spec, column, model))


def fit_held_out(samples: Samples, model: Model) -> Samples:
    """Return --val of a new classifier, whose classes are those of --data."""
    try:
        return fit_classes(samples, model)
    except UnknownClass as error:
        problem = f"--val {samples.spec}: {error.row}, which --data lacks"
        if error.near:
            raise DataError(f"{problem}; it {error.near}", hint="Spell them alike.") from error
        hint = "Delete such rows, or move some of them to --data."
        raise DataError(problem, hint=hint) from error


def reading(model: Model, samples: Samples) -> Model:
    """Return the model with the samples' kind of texts, if its kind is unknown."""
    if samples.kind != "text" or model.inputs is not None:
        return model
    return model.model_copy(update={"inputs": samples.inputs})
