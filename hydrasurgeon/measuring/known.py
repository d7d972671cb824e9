"""Rows that a model has seen: what certifies must be distinct, and not what it was trained on.

`finetune`, `score`, what `prune` refits on and the `--fit-data` of `calibrate` record four bytes of the
sha256 of what the model reads of each row, `seen` of their data, in base64; of more than `MOST` rows those with the smallest hashes, so that later rows with as small
ones are known for certain and stand for the others.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.manifest import MOST_SEEN, DataRecord, Step

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples
    from hydrasurgeon.problems.base import Outputs

MANY = 0.1
"""The fraction of rows that a model was trained on from which on they are no validation data."""
Hashes = NDArray[np.uint32]


def hashes(samples: Samples) -> Hashes:
    """Four bytes of each row's sha256."""
    return np.frombuffer(samples.digests.tobytes(), dtype="<u4").reshape(-1, 8)[:, 0]


def record(samples: Samples) -> DataRecord:
    """What history says of data that a model is trained on."""
    few = np.unique(hashes(samples))[:MOST_SEEN]
    return DataRecord(**samples.fingerprint(), seen=base64.b64encode(few.tobytes()).decode())


def is_seen(samples: Samples, seen: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows are among those that were recorded, and of which rows that can be said."""
    known = np.frombuffer(base64.b64decode(seen), dtype="<u4")
    mine = hashes(samples)
    told = np.ones(len(mine), dtype=bool)
    if len(known) >= MOST_SEEN:
        told = mine <= known[-1]
    return np.isin(mine, known), told


TRAINED = "trained it"
"""What rows were for from which a weight, or a part of the decision state, was learnt."""


def _uses(history: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """What rows were for, and their hashes; of `finetune` the second set is --val, where it is given."""
    for step in history:
        for number, data in enumerate(step.data):
            if data.seen is None:
                continue
            use = TRAINED
            if step.command == "score":
                use = "chose the model's heads"
            elif number == 1 and "val" in step.args:
                use = "chose the model"
            yield use, data.seen


def trained_on(samples: Samples, history: Sequence[Step]) -> str | None:
    """A note on rows that a model knows from its training."""
    rows = np.zeros(len(samples), dtype=bool)
    for use, seen in _uses(history):
        if use == TRAINED:
            rows |= is_seen(samples, seen)[0]
    if not rows.any():
        return None
    return (
        f"{visible(samples.spec)}: the model was trained on {int(rows.sum()):,} of these "
        f"{len(rows):,} samples, and knows them better than new ones"
    )


def certifying(
    samples: Samples, history: Sequence[Step], option: str = "--data"
) -> tuple[Samples, list[str]]:
    """The rows that may certify: each once, and none that the model was trained on; DataError where
    that was more than a tenth.
    """
    keep, notes = np.ones(len(samples), dtype=bool), []
    called = f"{option} {visible(samples.spec)}"
    for use, seen in dict.fromkeys(_uses(history)):
        rows, told = is_seen(samples, seen)
        count, share = int(rows.sum()), float(rows.sum() / max(1, told.sum()))
        if not count:
            continue
        if use != TRAINED:
            notes.append(
                f"{called}: {count:,} of its {len(rows):,} samples {use}: on them it looks a little "
                "better than on new ones"
            )
            continue
        if share > MANY:
            raise DataError(
                f"{called}: the model was trained on {'about ' * (not told.all())}{100 * share:.0f} % "
                "of these samples",
                hint="What it was trained on certifies nothing: give labelled data that it has not seen.",
            )
        keep &= ~rows
        notes.append(
            f"{called}: {count:,} of its {len(rows):,} samples trained the model, and are left out"
        )
    queries: Sequence[Any] = samples.groups or [None] * len(samples)
    first: dict[Any, int] = {}
    copies = 0
    for at, pair in enumerate(zip(samples.digests.tolist(), queries, strict=True)):
        if first.setdefault(pair, at) != at:
            copies += keep[at]
            keep[at] = False
    if copies:
        notes.append(
            f"{called}: {copies:,} of its {len(keep):,} samples are copies of others, and count once"
        )
    return (samples if keep.all() else samples.at(np.flatnonzero(keep))), notes


def distinct(outputs: Outputs, name: str) -> tuple[NDArray[np.int64], str | None]:
    """The rows of predictions without copies, which features tell; and a note."""
    every = np.arange(len(outputs.logits))
    if outputs.features is None or outputs.groups is not None:
        return every, None
    parts = [each.reshape(len(every), -1) for each in (outputs.logits, outputs.features)]
    rows = np.concatenate(parts, axis=1, dtype=np.float64)
    _, first = np.unique(rows, axis=0, return_index=True)
    copies = len(rows) - len(first)
    if not copies:
        return every, None
    note = f"{name}: {copies:,} of its {len(rows):,} samples are copies of others, and count once"
    return np.sort(first), note
