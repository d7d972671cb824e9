"""Foreign data that is not foreign: exact duplicates of the labelled samples, which no score can tell from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hydrasurgeon.visible import visible

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.data import Samples
    from hydrasurgeon.measuring.predictions import Predictions

__all__ = ["in_predictions", "in_samples"]


def in_samples(inside: Samples, foreign: Iterable[tuple[str, Any, Samples]]) -> Iterator[str]:
    """A warning for each OOD set that holds samples of the labelled set."""
    for name, _, samples in foreign:
        count = samples.shared_with(inside)
        if count:
            yield (
                f"OOD set {visible(name)}: {count:,} of its {len(samples):,} samples are in {visible(inside.spec)} too, byte for byte; "
                "what no model can tell apart makes every OOD figure worse"
            )


def in_predictions(predictions: Predictions) -> Iterator[str]:
    """The same where only logits are there: rows that are equal to the last bit."""
    inside: set[bytes] | None = None
    for each in predictions.ood:
        if each.logits is not None:
            inside = set(_rows(predictions.logits)) if inside is None else inside
            count = sum(row in inside for row in _rows(each.logits))
            if count:
                yield (
                    f"{visible(predictions.name)}: OOD set {visible(each.name)}: {count:,} of its {len(each):,} rows have the very logits "
                    "of a labelled sample; if they are the same samples, every OOD figure is worse for it"
                )


def _rows(logits: Tensor) -> Iterator[bytes]:
    import torch

    raw = logits.contiguous().view(torch.uint8).reshape(len(logits), -1).numpy()
    return (hashlib.blake2b(row, digest_size=16).digest() for row in raw)
