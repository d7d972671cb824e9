"""What models make of entities: each type, what is confused with what, and sentences that show it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from hydrasurgeon.data.words import words_of
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.problems.entities import JudgedTokens, called_kind
from hydrasurgeon.report.charts import Drawn
from hydrasurgeon.report.classes import PAIRS
from hydrasurgeon.report.columns import ABSENT, Cell, Column, Metric, Table, short
from hydrasurgeon.report.examples import EACH, LETTERS, NAMED, Example, Examples, read_places
from hydrasurgeon.statistics.entities import Tags, entities_of

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples

ENTITIES = Metric("n", "entities")
MEASURES = tuple(Metric(name.lower(), name, "higher") for name in ("precision", "recall", "F1"))
"""What each type is measured by; names that the glossary has."""
COUNT = Metric("count", "entities")
RIGHT, TYPE, BOUNDS = "right", "wrong type", "wrong boundaries"
BOTH, INVENTED, MISSED = "wrong type and boundaries", "invented", "missed"
KINDS = (RIGHT, BOUNDS, TYPE, BOTH, INVENTED, MISSED)
"""What can become of an entity: all but the last are of those that were found."""
NOTHING = "nothing"
"""What an entity is called that overlaps none."""


@dataclass(frozen=True)
class Span:
    """An entity by the numbers of its words."""

    text: int
    first: int
    last: int
    kind: int

    def shared(self, other: Span) -> int:
        """Words that both have."""
        return min(self.last, other.last) - max(self.first, other.first) + 1


@dataclass(frozen=True)
class Outcome:
    """What became of an entity, and how sure the model was of it."""

    what: str
    found: Span | None
    true: Span | None
    sure: float

    @property
    def shown(self) -> Span:
        """Where to look."""
        span = self.found or self.true
        assert span is not None
        return span


def outcomes(judged: JudgedTokens) -> list[Outcome]:
    """Of each entity that was found, beside the true one that it has most in common with; and of
    true ones that overlap none.
    """
    true = _by_text(judged.labels)
    made = []
    for text, spans in _by_text(judged.tags).items():
        for span in spans:
            sure = float(judged.chances[text, span.first])
            made.append(_outcome(span, true.get(text, ()), sure))
    found = _by_text(judged.tags)
    for span in chain.from_iterable(true.values()):
        if all(span.shared(other) < 1 for other in found.get(span.text, ())):
            sure = float(judged.confidence[span.text, span.first : span.last + 1].min())
            made.append(Outcome(MISSED, None, span, sure))
    return made


def _outcome(span: Span, true: Sequence[Span], sure: float) -> Outcome:
    overlapping = [other for other in true if span.shared(other) > 0]
    if not overlapping:
        return Outcome(INVENTED, span, None, sure)
    other = max(overlapping, key=lambda each: (each.kind == span.kind, span.shared(each)))
    place = (other.first, other.last) == (span.first, span.last)
    names = {(True, True): RIGHT, (True, False): TYPE, (False, True): BOUNDS}
    return Outcome(names.get((place, other.kind == span.kind), BOTH), span, other, sure)


def _by_text(tags: Tags) -> dict[int, list[Span]]:
    entities = entities_of(tags)
    texts: dict[int, list[Span]] = {}
    fields = (entities.text, entities.first, entities.last, entities.kind)
    for row in zip(*(field.tolist() for field in fields), strict=True):
        texts.setdefault(row[0], []).append(Span(*row))
    return texts


def entity_tables(rows: Drawn, reference: int, names: Sequence[str]) -> list[Table]:
    """Precision, recall and F1 of each type, what errors there are, and types taken for others."""
    named = partial(_named, names=names)
    all_of = [outcomes(row.inside) for _, _, row in rows if isinstance(row.inside, JudgedTokens)]
    titles = [title for _, title, _ in rows]
    size = _sizes(rows[reference][2].inside.labels)
    by_model = [_by_type(made, size) for made in all_of]
    found = {outcome.found.kind for made in all_of for outcome in made if outcome.found}
    kinds = sorted({*size, *found}, key=lambda kind: (by_model[reference][kind][2] or 0.0, kind))
    types = Table(
        "Types",
        tuple(map(named, kinds)),
        (
            Column(ENTITIES, "", tuple(_cell(size[kind], ",") for kind in kinds)),
            *(
                Column(metric, title, tuple(_cell(of[kind][at], ".3f") for kind in kinds))
                for title, of in zip(titles, by_model, strict=True)
                for at, metric in enumerate(MEASURES)
            ),
        ),
        "By strict IOB2: an entity is right if its type and both its ends are.",
        "type",
    )
    counts = [Counter(outcome.what for outcome in made) for made in all_of]
    errors = Table(
        "Errors",
        KINDS,
        tuple(
            Column(COUNT, "", tuple(_cell(count[what], ",") for what in KINDS), title)
            for title, count in zip(titles, counts, strict=True)
        ),
        "Entities that were found, by what is true where they stand; missed ones overlap none.",
        "outcome",
    )
    pairs = [Counter(filter(None, map(_confused, made))) for made in all_of]
    order = sorted(pairs[reference], key=lambda pair: (-pairs[reference][pair], str(pair)))[:PAIRS]
    if not order:
        return [types, errors]
    confused = Table(
        "Most confused types",
        tuple(f"{named(true)} → {named(taken)}" for true, taken in order),
        tuple(
            Column(COUNT, "", tuple(_cell(of[pair], ",") for pair in order), title)
            for title, of in zip(titles, pairs, strict=True)
        ),
        "The type of a true entity, and of the one that was found where it stands.",
        "true type → answer",
    )
    return [types, errors, confused]


def balance(judged: JudgedTokens, names: Sequence[str]) -> str:
    """How many entities there are, in a sentence."""
    sizes = _sizes(judged.labels)
    listed = ", ".join(f"{size:,} {_named(kind, names)}" for kind, size in sizes.most_common())
    return f"{sum(sizes.values()):,} entities in {judged.count:,} texts: {listed or 'none'}."


def _sizes(labels: Tags) -> Counter[int]:
    return Counter(entities_of(labels).kind.tolist())


def _by_type(
    made: Sequence[Outcome], size: Counter[int]
) -> dict[int, tuple[float | None, float | None, float | None]]:
    """Precision, recall and F1."""
    found = Counter(outcome.found.kind for outcome in made if outcome.found)
    right = Counter(outcome.shown.kind for outcome in made if outcome.what == RIGHT)
    return {
        kind: (
            right[kind] / found[kind] if found[kind] else None,
            right[kind] / size[kind] if size[kind] else None,
            2 * right[kind] / (found[kind] + size[kind]),
        )
        for kind in {*found, *size}
    }


def _confused(outcome: Outcome) -> tuple[int | None, int | None] | None:
    """The type that is true, and the one that was found; None where they are the same."""
    true, found = (None if at is None else at.kind for at in (outcome.true, outcome.found))
    return None if true == found else (true, found)


def _named(kind: int | None, names: Sequence[str]) -> str:
    return NOTHING if kind is None else str(called_kind(kind, names or None))


def _cell(value: float | None, digits: str) -> Cell:
    return Cell(ABSENT) if value is None else Cell(format(value, digits), values=(value,))


# --- sentences ---


def entity_examples(row: Answered, samples: Samples, names: Sequence[str]) -> tuple[Examples, ...]:
    """Sentences with their entities: the surest mistakes, what was surely missed, the least sure."""
    assert isinstance(row.inside, JudgedTokens)
    made = outcomes(row.inside)
    found = [outcome for outcome in made if outcome.found]
    groups = {
        "surest mistakes": [outcome for outcome in found if outcome.what != RIGHT],
        "surely missed": [outcome for outcome in made if not outcome.found],
    }
    shown = {
        **{kind: sorted(of, key=lambda each: -each.sure) for kind, of in groups.items()},
        "least sure": sorted(found, key=lambda each: each.sure),
    }
    places = read_places(samples, row.inside.count)
    spans = _by_text(row.inside.tags)
    examples = []
    for kind, order in shown.items():
        some = tuple(
            _example(outcome, spans, samples, places[outcome.shown.text], names)
            for outcome in order[:EACH]
        )
        examples += [Examples(kind, some)] if some else []
    return tuple(examples)


def _example(
    outcome: Outcome,
    spans: dict[int, list[Span]],
    samples: Samples,
    place: int,
    names: Sequence[str],
) -> Example:
    text, called = samples.read(place), samples.name(place)
    assert isinstance(text, str)
    words = words_of(text)

    def told(span: Span | None) -> str:
        if span is None:
            return "no entity"
        return f"{_named(span.kind, names)}: {short(_piece(text, words, span), NAMED)}"

    marked = spans.get(outcome.shown.text, [])
    if outcome.found is None:
        marked = [*marked, outcome.shown]
    return Example(
        name=short(called if isinstance(called, str) else f"sample {called}", NAMED),
        truth=told(outcome.true),
        answer=told(outcome.found),
        confidence=f"{100 * outcome.sure:.1f} %",
        correct=outcome.what == RIGHT,
        more="" if outcome.what == RIGHT else outcome.what,
        picture="",
        text=sentence(text, words, marked, outcome, names),
    )


def _piece(text: str, words: Sequence[tuple[int, int]], span: Span) -> str:
    return " ".join(text[words[span.first][0] : words[span.last][1]].split())


def sentence(
    text: str,
    words: Sequence[tuple[int, int]],
    marked: Sequence[Span],
    outcome: Outcome,
    names: Sequence[str],
) -> Markup:
    """The text around an entity, with a mark for each."""
    middle = (words[outcome.shown.first][0] + words[outcome.shown.last][1]) // 2
    low = max(0, min(middle - LETTERS // 2, len(text) - LETTERS))
    high = low + LETTERS

    def parts() -> Iterator[Markup]:
        at = low
        for span in sorted(marked, key=lambda each: each.first):
            start, end = max(low, words[span.first][0]), min(high, words[span.last][1])
            if end <= start:
                continue
            yield _plain(text[at:start])
            kind = ""
            if span == outcome.shown and outcome.what != RIGHT:
                kind = " missed" if outcome.found is None else " wrong"
            yield Markup('<mark class="c{}{}">{} <small>{}</small></mark>').format(
                span.kind % 8, kind, _plain(text[start:end]), visible(_named(span.kind, names))
            )
            at = end
        yield _plain(text[at:high])

    before, behind = "…" if low else "", "…" if high < len(text) else ""
    return Markup("").join([escape(before), *parts(), escape(behind)])


def _plain(text: str) -> Markup:
    """A piece of a text in one line."""
    return escape(visible(re.sub(r"\s+", " ", text)))
