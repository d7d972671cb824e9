"""Tags of words, as IOB2: listed with the words, derived from entities of characters, or from
CoNLL's columns.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.labels import UNLABELLED, LabelColumn, class_names
from hydrasurgeon.data.word_tokens import JOINER, SplitText, words_of
from hydrasurgeon.errors import DataError

OUTSIDE = "O"
"""Tag of words outside entities."""
TAG = re.compile(r"O|[BI]-.+")
"""Pattern of an IOB2 tag."""
ENTITIES = (
    'An entity is {"start": 0, "end": 5, "label": "PER"}, by characters, and overlaps no other.'
)


def tagged(
    spec: str, texts: Sequence[SplitText], tags: Sequence[Any], names: Sequence[str] | None
) -> LabelColumn | None:
    """Return the tags of a table's words: IOB2 names, or numbers of `names`; None if there are
    none.
    """
    if all(row is None for row in tags):
        return None
    rows = [list(row) if isinstance(row, list | tuple) else None for row in tags]
    for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
        if row is None or len(row) != len(text.spans):
            problem = "no list of tags" if row is None else f"{len(row)} tags"
            raise DataError(f"{spec}: row {number} has {len(text.spans)} tokens and {problem}")
    if names is not None:
        rows = [
            [_named(spec, number, tag, names) for tag in row or ()]
            for number, row in enumerate(rows)
        ]
    kinds = {type(tag) for row in rows for tag in row or ()}
    if kinds <= {int}:
        return LabelColumn(_padded(rows))
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


def _iob(spec: str, rows: Sequence[Any]) -> LabelColumn:
    """Return tags by name; an I- that continues nothing becomes a B-."""
    mended = 0
    for row in rows:
        before = OUTSIDE
        for at, tag in enumerate(row):
            if tag.startswith("I-") and before[2:] != tag[2:]:
                row[at], mended = f"B-{tag[2:]}", mended + 1
            before = row[at]
    types = sorted({tag[2:] for row in rows for tag in row} - {""})
    names = class_names(
        spec, [OUTSIDE, *(f"{b}-{entity_type}" for entity_type in types for b in "BI")]
    )
    position = {name: at for at, name in enumerate(names)}
    note = None
    if mended:
        note = f"{spec}: {mended:,} I- tags continue nothing and are taken as B-"
    return LabelColumn(_padded([[position[tag] for tag in row] for row in rows]), names, note=note)


def _padded(rows: Sequence[Any]) -> NDArray[np.int64]:
    """Return rows of numbers as one array, with `UNLABELLED` behind the shorter ones."""
    most = max((len(row) for row in rows), default=0)
    padded = np.full((len(rows), max(1, most)), UNLABELLED, dtype=np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def with_entities(
    spec: str, texts: Sequence[str], entities: Sequence[Any]
) -> tuple[list[SplitText], LabelColumn]:
    """Return texts by their words; a word belongs to an entity that overlaps it."""
    words, rows, cut, lost = list[SplitText](), list[list[str]](), 0, 0
    for number, (text, listed) in enumerate(zip(texts, entities, strict=True)):
        where = f"{spec}: row {number}"
        words_in_text = SplitText(text, words_of(text))
        starts, ends = ([span[i] for span in words_in_text.spans] for i in (0, 1))
        tags = [OUTSIDE] * len(starts)
        used = before = 0
        for start, end, label in sorted(_checked(where, text, listed)):
            if start < before:
                raise DataError(f"{where}: the entities at {start} and before it overlap")
            before = end
            first, last = bisect_right(ends, start), bisect_left(starts, end)
            cut += first < last and (starts[first], ends[last - 1]) != (start, end)
            # Of two entities in one word the first has it.
            first = max(first, used)
            lost += first >= last
            for at in range(first, last):
                tags[at] = f"{'B' if at == first else 'I'}-{label}"
            used = max(used, last)
        words.append(words_in_text)
        rows.append(tags)
    column = _iob(spec, rows)
    notes = [column.note] if column.note else []
    if cut:
        notes.append(f"{spec}: {cut:,} entities begin or end within a word, which is taken whole")
    if lost:
        notes.append(f"{spec}: {lost:,} entities have no word of their own and are left out")
    return words, replace(column, note="; ".join(notes) or None)


def _checked(where: str, text: str, entities: Any) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and label of each entity; both places must lie within the text, and not
    within a character.
    """
    if not isinstance(entities, list | tuple):
        raise DataError(f"{where}: entities are not a list", hint=ENTITIES)
    for entity in entities:
        fields = entity if isinstance(entity, Mapping) else {}
        start, end, label = (fields.get(name) for name in ("start", "end", "label"))
        if type(start) is not int or type(end) is not int or not isinstance(label, str):
            raise DataError(f"{where}: {str(entity)[:60]} is not an entity", hint=ENTITIES)
        if not 0 <= start < end <= len(text):
            raise DataError(
                f"{where}: an entity from {start} to {end}, but the text has {len(text)} characters",
                hint=ENTITIES,
            )
        for at in (start, end):
            if at < len(text) and _goes_on(text, at):
                raise DataError(f"{where}: {at} lies within a character", hint=ENTITIES)
        yield start, end, label


def _goes_on(text: str, at: int) -> bool:
    """Return True if a place lies within characters that are shown as one."""
    if at == 0:
        return False
    before, here = text[at - 1], text[at]
    is_mark = unicodedata.category(here)[0] == "M" or "\U0001f3fb" <= here <= "\U0001f3ff"
    # A joiner may also stand behind a letter of a script that is joined.
    is_joined = before == JOINER and not here.isspace() and not here.isalnum()
    return is_mark or here == JOINER or is_joined


def rows_of_conll(lines: Iterable[str]) -> Iterator[tuple[list[str], list[str] | None]]:
    """Yield words and tags of each text of a CoNLL file: one word per line, its tag in the last
    column; a single column has no tags.
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
