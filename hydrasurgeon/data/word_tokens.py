"""Texts by their words, which a token classifier answers for.

A word is an entry of a table's `tokens`, or a run of letters and digits, or any other single
character; combining marks and joiners belong to the character before them. A text is tokenized as
it is; the first token that overlaps a word represents it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.labels import LabelColumn
from hydrasurgeon.data.samples import MAX_TEXT, Decoded, Samples
from hydrasurgeon.data.texts import IDS, Tokenize, blamed
from hydrasurgeon.errors import DataError
from hydrasurgeon.run.tokenizing import overlapping

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Span = tuple[int, int]
"""Position of the first character, and of the one behind the last."""
WORDS = "words"
"""Input that holds the positions of words."""
OVERLAP = 4
"""Divisor of a window's length that gives its overlap with the next window."""
JOINER = "\u200d"
"""Character between characters that are shown as one."""
TONES = "\U0001f3fb-\U0001f3ff"
"""Range of skin tones, which belong to the emoji before them."""
MARKS_END = 0x1F000
"""First code point behind all combining marks, apart from variation selectors."""


class SplitText(str):
    """Text with known word positions."""

    spans: tuple[Span, ...]

    def __new__(cls, text: str, spans: Sequence[Span]) -> SplitText:
        self = super().__new__(cls, text)
        self.spans = tuple(spans)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SplitText, (str(self), self.spans)


def words_of(text: str) -> tuple[Span, ...]:
    """Return the positions of a text's words."""
    if isinstance(text, SplitText):
        return text.spans
    return tuple(match.span() for match in _word().finditer(text))


@cache
def _word() -> re.Pattern[str]:
    """Return the pattern of a word in texts without listed words; \\w alone would end before the
    vowel signs of Hindi.
    """
    marks = "".join(chr(at) for at in range(MARKS_END) if unicodedata.category(chr(at))[0] == "M")
    behind = f"{re.escape(marks)}\u200c{JOINER}{TONES}\U000e0020-\U000e01ef"
    flag = "[\U0001f1e6-\U0001f1ff]{2}"
    single = rf"[^\w\s][{behind}]*"
    return re.compile(rf"\w[\w{behind}]*|{flag}|{single}(?:(?<={JOINER}){single})*")


def of_tokens(spec: str, row: int, tokens: Any) -> SplitText:
    """Join a table's words with spaces."""
    if not isinstance(tokens, list | tuple) or not all(isinstance(token, str) for token in tokens):
        raise DataError(f"{spec}: row {row} holds {str(tokens)[:60]}, which is not a list of words")
    spans, at = [], 0
    for token in tokens:
        spans.append((at, at + len(token)))
        at += len(token) + 1
    return SplitText(" ".join(tokens), spans)


class TokenSamples(Samples):
    """Texts with known words, and perhaps their tags."""

    kind, inputs = "text", "text"

    def __init__(
        self, spec: str, texts: Sequence[SplitText], written: LabelColumn | None = None
    ) -> None:
        super().__init__(spec, written)
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def read(self, i: int) -> Decoded:
        text = self.texts[i]
        if len(text) > MAX_TEXT:
            raise DataError(
                f"{self.spec}: row {i} holds {len(text):,} characters; at most {MAX_TEXT:,} are read"
            )
        return text

    def content(self, i: int) -> bytes:
        text = self.texts[i]
        return b"\x1f".join(text[start:end].encode() for start, end in text.spans)


class TokenizeWords(Tokenize):
    """Transform for models that answer for words: a batch also holds the place of each word's first
    token.

    A text that is too long becomes several windows, and a word is looked up in the window that
    shows most of the text on both sides of it.
    """

    @cached_property
    def windows(self) -> Tokenizer:
        """Tokenizer that cuts texts into windows."""
        return overlapping(self.backend, self.max_length // OVERLAP)

    def arrays(self, texts: Sequence[Any]) -> dict[str, NDArray[np.int64]]:
        windows = self.windows
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            encodings = windows.encode_batch([str(text) or " " for text in texts])
        spans = [np.array(words_of(text), dtype=np.int64).reshape(-1, 2) for text in texts]
        places = np.full((len(texts), max(1, *map(len, spans))), -1, dtype=np.int64)
        around = np.full(places.shape, -1.0)
        ids, masks = list[Any](), list[Any]()
        for text, encoding in enumerate(encodings):
            parts = [encoding, *encoding.overflowing]
            for number, part in enumerate(parts):
                real = np.flatnonzero(np.array(part.special_tokens_mask) == 0)
                offsets = np.array(part.offsets, dtype=np.int64).reshape(-1, 2)[real]
                words, tokens = _first_tokens(spans[text], offsets, goes_on=number > 0)
                before = tokens if number > 0 else np.inf
                behind = len(real) - 1 - tokens if number + 1 < len(parts) else np.inf
                context = np.minimum(before, behind) + np.zeros(len(tokens))
                more = context > around[text, words]
                at = words[more]
                around[text, at] = context[more]
                places[text, at] = len(ids) * len(part.ids) + real[tokens[more]]
                ids.append(part.ids)
                masks.append(part.attention_mask)
        batch = (np.array(rows, dtype=np.int64) for rows in (ids, masks))
        return {**dict(zip(IDS, batch, strict=True)), WORDS: places}


def _first_tokens(
    spans: NDArray[np.int64], offsets: NDArray[np.int64], *, goes_on: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the words whose first token is among these tokens, and that token; if the window
    `goes_on` from another, its first token may belong to a word that began there.
    """
    real = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
    if not len(real):
        return real, real
    # A long text has many windows: each looks at its own words alone.
    begin = np.searchsorted(spans[:, 1], offsets[real[0], 0], side="right")
    end = np.searchsorted(spans[:, 0], offsets[real[-1], 1], side="left")
    starts, ends = spans[begin:end].T
    tokens = real[np.searchsorted(offsets[real, 1], starts, side="right")]
    fits = offsets[tokens, 0] < ends
    if goes_on:
        fits &= (tokens > 0) | (offsets[tokens, 0] <= starts)
    return begin + np.flatnonzero(fits), tokens[fits]
