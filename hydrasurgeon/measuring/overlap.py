"""Data that should be apart and are not: exact duplicates, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import visible

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples


def apart(sets: Sequence[tuple[str, Samples]], rule: str) -> list[str]:
    """Refuse a set that is another one over again, or holds all of the first; a warning for each that shares some with
    the first.

    With each set goes its option.
    """
    seen: dict[str, str] = {}
    notes = []
    (option, first), *_ = sets
    for mine, samples in sets:
        called = f"{mine} {visible(samples.spec)}"
        content = samples.content_hash()
        count = 0 if samples is first else samples.shared_with(first)
        if content in seen:
            raise DataError(f"{called}: holds the same samples as {seen[content]}", hint=rule)
        if count and first.shared_with(samples) == len(first):
            raise DataError(f"{called}: holds all samples of {option} {visible(first.spec)}", hint=rule)
        seen[content] = called
        if count:
            notes.append(f"{called}: {_shared(count, samples, first)}; {rule[0].lower()}{rule[1:-1]}")
    return notes


def _shared(count: int, samples: Samples, other: Samples) -> str:
    return f"{count:,} of its {len(samples):,} samples are in {visible(other.spec)} too, byte for byte"


def in_samples(inside: Samples, foreign: Iterable[tuple[str, Samples]], *, harm: str) -> Iterator[str]:
    """A warning for each OOD set that holds samples of the labelled set, and what harm that does."""
    for name, samples in foreign:
        count = samples.shared_with(inside)
        if count:
            yield f"OOD set {visible(name)}: {_shared(count, samples, inside)}; {harm}"
