"""Texts by their words: what a token classifier answers for, and the tags that data give them.

A word is what a table lists under `tokens`, or a run of letters and digits, or any other single
character; combining marks and joiners belong to what they follow. A text is tokenized as it stands;
the first token that overlaps a word speaks for it.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.labels import UNLABELLED, Column, class_names
from hydrasurgeon.data.samples import MAX_TEXT, Decoded, Samples
from hydrasurgeon.data.texts import IDS, Tokenize, blamed
from hydrasurgeon.errors import CheckpointError, DataError

if TYPE_CHECKING:
    from torch import Tensor

Span = tuple[int, int]
"""First character, and the one behind the last."""
OVERLAP = 4
"""A part of so many of a window it shares with the next one."""
OUTSIDE = "O"
"""The tag of words in no entity."""
TAG = re.compile(r"O|[BI]-.+")
"""A tag as IOB2 has it."""
ENTITIES = (
    'An entity is {"start": 0, "end": 5, "label": "PER"}, by characters, and overlaps no other.'
)
JOINER = "\u200d"
"""Between characters that are shown as one."""
TONES = "\U0001f3fb-\U0001f3ff"
"""Colours of skin, which belong to the emoji before them."""
MARKS_END = 0x1F000
"""Behind the last combining mark, apart from variation selectors."""


class Words(str):
    """A text whose words are known."""

    spans: tuple[Span, ...]

    def __new__(cls, text: str, spans: Sequence[Span]) -> Words:
        made = super().__new__(cls, text)
        made.spans = tuple(spans)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Words, (str(self), self.spans)


def words_of(text: str) -> tuple[Span, ...]:
    """Where its words stand."""
    if isinstance(text, Words):
        return text.spans
    return tuple(match.span() for match in _word().finditer(text))


@cache
def _word() -> re.Pattern[str]:
    """What is a word where nobody says it: \\w alone ends before the vowel signs of Hindi."""
    marks = "".join(chr(at) for at in range(MARKS_END) if unicodedata.category(chr(at))[0] == "M")
    behind = f"{re.escape(marks)}\u200c{JOINER}{TONES}\U000e0020-\U000e01ef"
    flag = "[\U0001f1e6-\U0001f1ff]{2}"
    single = rf"[^\w\s][{behind}]*"
    return re.compile(rf"\w[\w{behind}]*|{flag}|{single}(?:(?<={JOINER}){single})*")


def of_tokens(spec: str, row: int, tokens: Any) -> Words:
    """A table's words, with a space between them."""
    if not isinstance(tokens, list | tuple) or not all(isinstance(each, str) for each in tokens):
        raise DataError(f"{spec}: row {row} holds {str(tokens)[:60]}, no list of words")
    spans, at = [], 0
    for token in tokens:
        spans.append((at, at + len(token)))
        at += len(token) + 1
    return Words(" ".join(tokens), spans)


class Tokens(Samples):
    """Texts of which the words are known, and perhaps their tags."""

    kind, inputs = "text", "text"

    def __init__(self, spec: str, texts: Sequence[Words], written: Column | None = None) -> None:
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
    """The same for models that answer for words: also where each word's first token stands. A text
    that is too long becomes several windows, and a word is looked up in the one that shows most of
    the text on both sides of it.
    """

    def collate(self, texts: Sequence[Any]) -> dict[str, Tensor]:
        import torch

        tokenizer = self.tokenizer
        if not getattr(tokenizer, "is_fast", False):
            raise CheckpointError(
                "the checkpoint's tokenizer does not say where its tokens stand in a text",
                hint="Bring its tokenizer.json, as transformers' fast tokenizers write it.",
            )
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            made = tokenizer(
                [str(text) or " " for text in texts],
                padding=True,
                truncation=True,
                max_length=self.max_length,
                stride=self.max_length // OVERLAP,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                return_attention_mask=True,
                return_tensors="np",
            )
        text_of = made["overflow_to_sample_mapping"]
        spans = [words_of(text) for text in texts]
        places = np.full((len(texts), max(1, *map(len, spans))), -1, dtype=np.int64)
        around = np.full(places.shape, -1.0)
        length = made["input_ids"].shape[1]
        for window, text in enumerate(text_of):
            real = np.flatnonzero(made["special_tokens_mask"][window] == 0)
            offsets = made["offset_mapping"][window][real]
            goes_on = window > 0 and text_of[window - 1] == text
            found, tokens = _first_tokens(spans[text], offsets, goes_on=goes_on)
            before = tokens if goes_on else np.inf
            cut = window + 1 < len(text_of) and text_of[window + 1] == text
            behind = len(real) - 1 - tokens if cut else np.inf
            context = np.minimum(before, behind) + np.zeros(len(tokens))
            more = context > around[text, found]
            at = found[more]
            around[text, at] = context[more]
            places[text, at] = window * length + real[tokens[more]]
        batch = {name: torch.from_numpy(np.asarray(made[name])) for name in IDS}
        return {**batch, "words": torch.from_numpy(places)}


def _first_tokens(
    spans: Sequence[Span], offsets: NDArray[np.int64], *, goes_on: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Words that have their first token among these, and which it is; where the window `goes_on`
    from another, the first token may belong to a word that began there.
    """
    starts, ends = (np.array([span[i] for span in spans], dtype=np.int64) for i in (0, 1))
    real = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
    first = np.searchsorted(offsets[real, 1], starts, side="right")
    words = np.flatnonzero(first < len(real))
    tokens = real[first[words]]
    fits = offsets[tokens, 0] < ends[words]
    if goes_on:
        fits &= (tokens > 0) | (offsets[tokens, 0] <= starts[words])
    return words[fits], tokens[fits]


# --- tags ---


def tagged(
    spec: str, texts: Sequence[Words], tags: Sequence[Any], names: Sequence[str] | None
) -> Column | None:
    """The tags of a table's words: IOB2 names, or numbers of `names`; None where there are none."""
    if all(row is None for row in tags):
        return None
    rows = [list(row) if isinstance(row, list | tuple) else None for row in tags]
    for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
        if row is None or len(row) != len(text.spans):
            found = "no list of tags" if row is None else f"{len(row)} tags"
            raise DataError(f"{spec}: row {number} has {len(text.spans)} tokens and {found}")
    if names is not None:
        rows = [
            [_named(spec, number, tag, names) for tag in row or ()]
            for number, row in enumerate(rows)
        ]
    kinds = {type(tag) for row in rows for tag in row or ()}
    if kinds <= {int}:
        return Column(_padded(rows))
    for number, row in enumerate(rows):
        wrong = next(
            (tag for tag in row or () if not isinstance(tag, str) or not TAG.fullmatch(tag)), None
        )
        if wrong is not None:
            raise DataError(
                f"{spec}: row {number} has the tag {str(wrong)[:60]!r}",
                hint="Tags are O, B-X for the first word of an X, and I-X for its others.",
            )
    return _iob(spec, rows)


def _named(spec: str, row: int, tag: Any, names: Sequence[str]) -> Any:
    if type(tag) is int and 0 <= tag < len(names):
        return names[tag]
    raise DataError(f"{spec}: row {row} has the tag {str(tag)[:60]}, of {len(names)} there are")


def _iob(spec: str, rows: Sequence[Any]) -> Column:
    """Tags by name; an I- that continues nothing begins an entity."""
    mended = 0
    for row in rows:
        before = OUTSIDE
        for at, tag in enumerate(row):
            if tag.startswith("I-") and before[2:] != tag[2:]:
                row[at], mended = f"B-{tag[2:]}", mended + 1
            before = row[at]
    types = sorted({tag[2:] for row in rows for tag in row} - {""})
    names = class_names(spec, [OUTSIDE, *(f"{b}-{each}" for each in types for b in "BI")])
    position = {name: at for at, name in enumerate(names)}
    note = None
    if mended:
        note = f"{spec}: {mended:,} I- tags continue nothing and are taken as B-"
    return Column(_padded([[position[tag] for tag in row] for row in rows]), names, note=note)


def _padded(rows: Sequence[Any]) -> NDArray[np.int64]:
    """Rows of numbers as one array, with `UNLABELLED` behind the shorter ones."""
    most = max((len(row) for row in rows), default=0)
    made = np.full((len(rows), max(1, most)), UNLABELLED, dtype=np.int64)
    for row, values in zip(made, rows, strict=True):
        row[: len(values)] = values
    return made


def with_entities(
    spec: str, texts: Sequence[str], entities: Sequence[Any]
) -> tuple[list[Words], Column]:
    """Texts by their words, of which those that an entity overlaps are in it."""
    words, rows, cut, lost = list[Words](), list[list[str]](), 0, 0
    for number, (text, listed) in enumerate(zip(texts, entities, strict=True)):
        where = f"{spec}: row {number}"
        made = Words(text, words_of(text))
        starts, ends = ([span[i] for span in made.spans] for i in (0, 1))
        tags = [OUTSIDE] * len(starts)
        taken = before = 0
        for start, end, label in sorted(_checked(where, text, listed)):
            if start < before:
                raise DataError(f"{where}: the entities at {start} and before it overlap")
            before = end
            first, last = bisect_right(ends, start), bisect_left(starts, end)
            cut += first < last and (starts[first], ends[last - 1]) != (start, end)
            # Of two entities in one word the first has it.
            first = max(first, taken)
            lost += first >= last
            for at in range(first, last):
                tags[at] = f"{'B' if at == first else 'I'}-{label}"
            taken = max(taken, last)
        words.append(made)
        rows.append(tags)
    column = _iob(spec, rows)
    notes = [column.note] if column.note else []
    if cut:
        notes.append(f"{spec}: {cut:,} entities begin or end within a word, which is taken whole")
    if lost:
        notes.append(f"{spec}: {lost:,} entities have no word of their own and are left out")
    return words, replace(column, note="; ".join(notes) or None)


def _checked(where: str, text: str, entities: Any) -> Iterator[tuple[int, int, str]]:
    """Start, end and label of each; within the text, and not within a character."""
    if not isinstance(entities, list | tuple):
        raise DataError(f"{where}: entities are no list", hint=ENTITIES)
    for entity in entities:
        fields = entity if isinstance(entity, Mapping) else {}
        start, end, label = (fields.get(name) for name in ("start", "end", "label"))
        if type(start) is not int or type(end) is not int or not isinstance(label, str):
            raise DataError(f"{where}: {str(entity)[:60]} is no entity", hint=ENTITIES)
        if not 0 <= start < end <= len(text):
            raise DataError(
                f"{where}: an entity from {start} to {end} in {len(text)} characters", hint=ENTITIES
            )
        for at in (start, end):
            if at < len(text) and _goes_on(text, at):
                raise DataError(f"{where}: {at} lies within a character", hint=ENTITIES)
        yield start, end, label


def _goes_on(text: str, at: int) -> bool:
    """Whether a place lies within what is shown as one character."""
    if at == 0:
        return False
    before, here = text[at - 1], text[at]
    is_mark = unicodedata.category(here)[0] == "M" or "\U0001f3fb" <= here <= "\U0001f3ff"
    # A joiner may also stand behind a letter of a script that is joined.
    is_joined = before == JOINER and not here.isspace() and not here.isalnum()
    return is_mark or here == JOINER or is_joined


def rows_of_conll(lines: Iterable[str]) -> Iterator[tuple[list[str], list[str] | None]]:
    """Words and tags of each text of a CoNLL file: a word a line, its tag in the last column; no
    tags where there is one column.
    """
    rows = list[list[str]]()
    for line in lines:
        fields = line.split("\t") if "\t" in line else line.split()
        fields = [field.strip() for field in fields]
        if any(fields) and fields[0] != "-DOCSTART-":
            rows.append(fields)
        elif rows:
            yield _columns(rows)
            rows = []
    if rows:
        yield _columns(rows)


def _columns(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[str] | None]:
    tokens = [fields[0] for fields in rows]
    if all(len(fields) == 1 for fields in rows):
        return tokens, None
    # A line of one field has no tag, which the number of tags then says.
    return tokens, [fields[-1] for fields in rows if len(fields) > 1]
