"""The reader of words: one linear layer on counts of a tokenizer's ids.

    v_j = count_j · idf_j,    outputs = W v / |v| + b

Columns are the ids that occurred in the texts it was fitted on and, where they help, hashed pairs of
neighbouring ids. It errs elsewhere than a transformer does, costs a gather and a sum, and reads a
text to its end, however long it is.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""Token ids of one text: all of them, and no special tokens."""
Floats = NDArray[np.float64]

BUCKETS = 1 << 14
"""Columns that pairs of neighbouring ids share."""
FACTOR = 1_000_003
"""Prime by which a pair's first id is multiplied before the remainder by the buckets is taken."""

MOST = 1 << 24
"""Ids lie below: float32 holds them."""


def hashed(text: str) -> Ids:
    """Ids of a text without a tokenizer: of its words and signs, in small letters, by their CRC."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return np.array([zlib.crc32(word.encode()) % MOST for word in words], dtype=np.int64)


@dataclass(frozen=True)
class WordIds:
    """What any model's texts are to a reader of words."""

    made_of: Literal["texts", "tokens"]
    ids: list[Ids]

    @classmethod
    def of(cls, words: Any) -> WordIds:
        """Of texts, without a tokenizer, or of the ids that one made; negative ones fill rows up."""
        if len(words) and isinstance(words[0], str):
            return cls("texts", [hashed(str(text)) for text in words])
        rows = [np.asarray(row, dtype=np.int64) for row in words]
        return cls("tokens", [row[row >= 0] for row in rows])

    def at(self, rows: Iterable[int]) -> WordIds:
        """Of some rows."""
        return WordIds(self.made_of, [self.ids[row] for row in rows])

    @property
    def tokenizer(self) -> str:
        """What stands for the hash of a tokenizer."""
        return hashlib.sha256(self.made_of.encode()).hexdigest()


@dataclass(frozen=True)
class Counts:
    """What some texts hold: a row, a column and a count for each distinct column of a text."""

    rows: Ids
    columns: Ids
    counts: Floats
    texts: int
    flat: tuple[Ids, Ids]
    """The text of each id, one after another, and its column; -1 where it has none."""


@dataclass(frozen=True)
class Words:
    """A fitted reader."""

    ids: Ids
    """The ids that have a column, ascending."""
    idf: Floats
    """What a count in each column weighs: first of ids, then of pairs, where there are any."""
    weight: Floats
    """[column, output]."""
    bias: Floats

    @property
    def pairs(self) -> bool:
        """Whether pairs of neighbouring ids have columns."""
        return len(self.idf) > len(self.ids)

    def outputs(self, texts: Sequence[Ids]) -> Floats:
        """[text, output]; the bias alone for a text without a known id."""
        return self.read(texts)[:, :-1]

    def read(self, texts: Sequence[Ids]) -> Floats:
        """Outputs, and in the last column how novel each text is: the fraction of its weight that lies
        on ids without a column; 1 for a text without ids. An unknown id weighs as much as the rarest
        known one.
        """
        found = counted(texts, self.ids, pairs=self.pairs)
        read = np.zeros((len(texts), len(self.bias) + 1))
        if len(found.rows):
            starts = _starts(found.rows)
            summands = unit(found, self.idf)[:, None] * self.weight[found.columns]
            read[found.rows[starts], :-1] = np.add.reduceat(summands, starts)
        read[:, :-1] += self.bias
        rows, columns = found.flat
        weights = np.append(self.idf, self.idf.max(initial=1.0))[columns]
        total = np.bincount(rows, weights, len(texts))
        unknown = np.bincount(rows, weights * (columns < 0), len(texts))
        read[:, -1] = np.where(total > 0, unknown / np.maximum(total, 1e-12), 1.0)
        return read


def counted(texts: Sequence[Ids], ids: Ids, *, pairs: bool) -> Counts:
    """How often each column occurs in each text; `ids` are those that have one, ascending."""
    flat = np.concatenate([np.zeros(0, np.int64), *texts])
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    columns = np.full(len(flat), -1)
    if len(ids):
        nearest = np.minimum(np.searchsorted(ids, flat), len(ids) - 1)
        columns = np.where(ids[nearest] == flat, nearest, -1)
    known, width = columns >= 0, len(ids) + BUCKETS * pairs
    owners, places = [rows[known]], [columns[known]]
    if pairs:
        within = rows[:-1] == rows[1:]
        buckets = (flat[:-1] * FACTOR + flat[1:]) % BUCKETS
        owners.append(rows[:-1][within])
        places.append(len(ids) + buckets[within])
    keys = np.sort(np.concatenate(owners) * width + np.concatenate(places))
    starts = _starts(keys)
    counts = np.diff(starts, append=len(keys)).astype(np.float64)
    keys = keys[starts]
    return Counts(keys // width, keys % width, counts, len(texts), (rows, columns))


def _starts(ordered: Ids) -> Ids:
    """Where each distinct value begins."""
    changes = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=changes[1:])
    return np.flatnonzero(changes)


def unit(found: Counts, idf: Floats) -> Floats:
    """Counts × idf, each text of unit length."""
    values = found.counts * idf[found.columns]
    lengths = np.sqrt(np.bincount(found.rows, values**2, found.texts))
    result: Floats = values / np.maximum(lengths, 1e-12)[found.rows]
    return result
