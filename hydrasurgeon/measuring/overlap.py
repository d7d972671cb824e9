"""Data that should be apart and are not: exact duplicates, byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hydrasurgeon.errors import DataError
from hydrasurgeon.visible import visible

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.data import Samples
    from hydrasurgeon.measuring.predictions import Predictions


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
    limited = samples.is_limited or other.is_limited
    among = ", looked for among those that --limit left" if limited else ""
    return f"{count:,} of its {len(samples):,} samples are in {visible(other.spec)} too, byte for byte{among}"


def in_samples(inside: Samples, foreign: Iterable[tuple[str, Samples]], *, harm: str) -> Iterator[str]:
    """A warning for each OOD set that holds samples of the labelled set, and what harm that does."""
    for name, samples in foreign:
        count = samples.shared_with(inside)
        if count:
            yield f"OOD set {visible(name)}: {_shared(count, samples, inside)}; {harm}"


def in_predictions(predictions: Predictions) -> Iterator[str]:
    """The same where only logits are there: rows that are equal to the last bit."""
    inside: set[bytes] | None = None
    for each in predictions.ood:
        if each.logits is not None:
            inside = set(_rows(predictions.logits)) if inside is None else inside
            count = sum(row in inside for row in _rows(each.logits))
            if count:
                yield (
                    f"{visible(predictions.name)}: OOD set {visible(each.name)}: {count:,} of its {len(each):,} rows"
                    " have the very logits of a labelled sample; if they are the same samples, every OOD figure is"
                    " worse for it"
                )


def _rows(logits: Tensor) -> Iterator[bytes]:
    import torch

    raw = logits.contiguous().view(torch.uint8).reshape(len(logits), -1).numpy()
    return (hashlib.blake2b(row, digest_size=16).digest() for row in raw)
