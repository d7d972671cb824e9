"""The bag-of-words model: one linear layer on counts of a tokenizer's ids.

    v_j = count_j · idf_j,    outputs = W v / |v| + b

Columns are the ids that occurred in the texts it was fitted on and, where they help, hashed pairs
of neighbouring ids. Its errors differ from a transformer's, it costs a gather and a sum, and it
reads a text to its end, however long it is.
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
"""All token ids of one text, without special tokens."""
Floats = NDArray[np.float64]

BUCKETS = 1 << 14
"""Number of columns that pairs of neighbouring ids share."""
FACTOR = 1_000_003
"""Prime factor of a pair's first id, in the hash modulo the number of buckets."""

AT_ONCE = 1 << 18
"""Texts × outputs that are read at once, so that memory is bounded."""

MOST = 1 << 24
"""Upper limit of ids, which float32 can represent."""


def hashed(text: str) -> Ids:
    """Return the ids of a text without a tokenizer: CRCs of its lower-case words and signs."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return np.array([zlib.crc32(word.encode()) % MOST for word in words], dtype=np.int64)


@dataclass(frozen=True)
class WordIds:
    """Word ids of texts, for a bag-of-words model beside any model."""

    made_of: Literal["texts", "tokens"]
    ids: list[Ids]

    @classmethod
    def of(cls, words: Any) -> WordIds:
        """Return the ids of texts, hashed, or the given rows of token ids without their negative
        padding.
        """
        if len(words) and isinstance(words[0], str):
            return cls("texts", [hashed(str(text)) for text in words])
        rows = [np.asarray(row, dtype=np.int64) for row in words]
        return cls("tokens", [row[row >= 0] for row in rows])

    def at(self, rows: Iterable[int]) -> WordIds:
        """Return the ids of some rows."""
        return WordIds(self.made_of, [self.ids[row] for row in rows])

    @property
    def tokenizer(self) -> str:
        """Substitute for the hash of a tokenizer."""
        return hashlib.sha256(self.made_of.encode()).hexdigest()


@dataclass(frozen=True)
class WordCounts:
    """Counts of some texts: a row, a column and a count for each distinct column of a text."""

    rows: Ids
    columns: Ids
    counts: Floats
    texts: int
    flat: tuple[Ids, Ids]
    """Text and column of each id, in order; the column is -1 for an unknown id."""


@dataclass(frozen=True)
class BagOfWords:
    """Fitted reader."""

    ids: Ids
    """Ids that have a column, ascending."""
    idf: Floats
    """Weight of a count in each column: first of ids, then of pairs, if there are any."""
    weight: Floats
    """[column, output]."""
    bias: Floats

    @property
    def pairs(self) -> bool:
        """True if pairs of neighbouring ids have columns."""
        return len(self.idf) > len(self.ids)

    def outputs(self, texts: Sequence[Ids]) -> Floats:
        """Return [text, output]; only the bias for a text without a known id."""
        return self.read(texts)[:, :-1]

    def read(self, texts: Sequence[Ids]) -> Floats:
        """Return outputs, and in the last column the novelty of each text: the fraction of its
        weight on ids without a column, 1 for a text without ids. An unknown id weighs as much as
        the rarest known one.
        """
        piece = 1 + AT_ONCE // len(self.bias)
        if len(texts) > piece:
            firsts = range(0, len(texts), piece)
            return np.concatenate([self.read(texts[at : at + piece]) for at in firsts])
        text_counts = counted(texts, self.ids, pairs=self.pairs)
        read = np.zeros((len(texts), len(self.bias) + 1))
        if len(text_counts.rows):
            starts = _starts(text_counts.rows)
            summands = unit(text_counts, self.idf)[:, None] * self.weight[text_counts.columns]
            read[text_counts.rows[starts], :-1] = np.add.reduceat(summands, starts)
        read[:, :-1] += self.bias
        rows, columns = text_counts.flat
        weights = np.append(self.idf, self.idf.max(initial=1.0))[columns]
        total = np.bincount(rows, weights, len(texts))
        unknown = np.bincount(rows, weights * (columns < 0), len(texts))
        read[:, -1] = np.where(total > 0, unknown / np.maximum(total, 1e-12), 1.0)
        return read


def counted(texts: Sequence[Ids], ids: Ids, *, pairs: bool) -> WordCounts:
    """Count the columns of each text; `ids` are those that have a column, ascending."""
    flat = np.concatenate([np.zeros(0, np.int64), *texts])
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    columns = np.full(len(flat), -1)
    if len(ids):
        nearest = np.minimum(np.searchsorted(ids, flat), len(ids) - 1)
        columns = np.where(ids[nearest] == flat, nearest, -1)
    has_column, width = columns >= 0, len(ids) + BUCKETS * pairs
    owners, places = [rows[has_column]], [columns[has_column]]
    if pairs:
        within = rows[:-1] == rows[1:]
        buckets = (flat[:-1] * FACTOR + flat[1:]) % BUCKETS
        owners.append(rows[:-1][within])
        places.append(len(ids) + buckets[within])
    keys = np.sort(np.concatenate(owners) * width + np.concatenate(places))
    starts = _starts(keys)
    counts = np.diff(starts, append=len(keys)).astype(np.float64)
    keys = keys[starts]
    return WordCounts(keys // width, keys % width, counts, len(texts), (rows, columns))


def _starts(ordered: Ids) -> Ids:
    """Return the position at which each distinct value begins."""
    changes = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=changes[1:])
    return np.flatnonzero(changes)


def unit(text_counts: WordCounts, idf: Floats) -> Floats:
    """Return counts × idf, with each text scaled to unit length."""
    values = text_counts.counts * idf[text_counts.columns]
    lengths = np.sqrt(np.bincount(text_counts.rows, values**2, text_counts.texts))
    result: Floats = values / np.maximum(lengths, 1e-12)[text_counts.rows]
    return result
