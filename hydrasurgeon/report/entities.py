"""What models make of entities: each type, and what is confused with what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from hydrasurgeon.problems.entities import JudgedTokens, called_kind
from hydrasurgeon.report.charts import Drawn
from hydrasurgeon.report.classes import PAIRS
from hydrasurgeon.report.columns import ABSENT, Cell, Column, Metric, Table
from hydrasurgeon.statistics.entities import Tags, entities_of

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
