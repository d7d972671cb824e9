"""Detection of rows that a model was fitted on, which cannot certify it, and of copies of rows.

`finetune`, `score`, what `prune` refits on, `--fit-data` and `--unlabelled` of `calibrate` record
four bytes of the sha256 of each row's input, `seen` of their data, in base64. Of more than
`MOST_SEEN` rows the smallest hashes are kept, so that later rows with hashes as small can be
recognised with certainty and represent the others.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.samples import EMPTY
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.manifest import MOST_SEEN, DataRecord, Step
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.options.column_roles import split_options

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples
    from hydrasurgeon.measuring.predictions import Predictions
    from hydrasurgeon.tasks.base import Outputs

MANY = 0.1
"""Maximum fraction of training rows in validation data."""
CERTIFIES_NOTHING = "Rows that something was fitted on cannot certify: give labelled rows that were not used before."
ROUNDING = 1e-4
"""Maximum distance between a row's features in two runs, in standard deviations."""
Hashes = NDArray[np.uint32]
Flags = NDArray[np.bool_]
"""One value per row."""


def hashes(samples: Samples) -> Hashes:
    """Return four bytes of each row's sha256."""
    return np.frombuffer(samples.digests.tobytes(), dtype="<u4").reshape(-1, 8)[:, 0]


def record(samples: Samples) -> DataRecord:
    """Return the history's record of data that a model is trained on."""
    few = np.unique(hashes(samples))[:MOST_SEEN]
    return DataRecord(**samples.fingerprint(), seen=base64.b64encode(few.tobytes()).decode())


def is_seen(samples: Samples, seen: str) -> tuple[Flags, Flags]:
    """Return which rows are among the recorded ones, and for which rows that can be decided."""
    recorded = np.frombuffer(base64.b64decode(seen), dtype="<u4")
    row_hashes = hashes(samples)
    decidable = np.ones(len(row_hashes), dtype=bool)
    if len(recorded) >= MOST_SEEN:
        decidable = row_hashes <= recorded[-1]
    return np.isin(row_hashes, recorded) & (samples.digests != EMPTY), decidable


TRAINED = "were used to train the model"
"""Use of rows that a weight, or a part of the decision state, was learnt from."""
REFITTED = "were used by `prune --data` to refit the model"
"""Use of rows that the remaining heads and neurons were repaired on."""
CHOSE = "were used to choose "
CHOSE_MODEL = f"{CHOSE}the model"
CHOSE_HEADS = f"{CHOSE}the model's heads"
"""Uses of rows that something was chosen by."""
TAUGHT = "were used, without labels, to fit the bag-of-words model"
"""Use of rows of `--unlabelled`."""
CHOOSING = (CHOSE_HEADS, CHOSE_MODEL, TAUGHT)
"""Uses that do not exclude rows from certifying."""
OPTIMISTIC = "results on them are slightly too good"
TOO_GOOD = ", and so are promises. To certify exactly, give rows that chose nothing"


def _uses(history: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """Yield each use of rows with their hashes. The second set of `finetune` is --val; the last one
    of `calibrate` is --unlabelled, where it was given.
    """
    for step in history:
        for number, data in enumerate(step.data):
            if data.seen is None:
                continue
            use = TRAINED
            if step.command == "prune":
                use = REFITTED
            elif step.command == "score":
                use = CHOSE_HEADS
            elif step.command == "calibrate":
                is_last = number == len(step.data) - 1
                use = TAUGHT if is_last and "unlabelled" in step.args else TRAINED
            elif number == 1 and "val" in step.args:
                use = CHOSE_MODEL
            yield use, data.seen


def trained_on(samples: Samples, history: Sequence[Step]) -> str | None:
    """Return a note on the samples that the model was trained on; None if there are none."""
    rows = np.zeros(len(samples), dtype=bool)
    for use, seen in _uses(history):
        if use in (TRAINED, REFITTED):
            rows |= is_seen(samples, seen)[0]
    if not rows.any():
        return None
    return (
        f"{visible(samples.spec)}: the model was trained on {_some(rows.sum(), len(rows), 'these')}; "
        f"{OPTIMISTIC}"
    )


def _some(count: int, total: int, whose: str = "its") -> str:
    """Return "5 of its 100 rows", or "all of its 100 rows"."""
    return f"{'all' if count == total else f'{count:,}'} of {whose} {total:,} rows"


def _left_out(called: str, rows: Flags, use: str) -> str:
    """Return a note on rows that are left out because of their use."""
    return f"{called}: {_some(rows.sum(), len(rows))} {use}, and are left out"


def check_share(
    called: str,
    trained: Flags,
    decidable: Flags,
    reasons: Sequence[str],
    hint: str = CERTIFIES_NOTHING,
) -> None:
    """Refuse data of which more than a tenth was trained on, as far as that can be told."""
    share = max(float(trained.mean()), float(trained[decidable].mean()) if decidable.any() else 0.0)
    if share > MANY:
        about = "about " * (not decidable.all())
        why = " or ".join(dict.fromkeys(reasons))
        raise DataError(f"{called}: {about}{100 * share:.0f} % of these rows {why}", hint=hint)


def certifying(
    samples: Samples,
    history: Sequence[Step],
    option: str = "--data",
    *,
    fitted: tuple[str, Samples] | None = None,
    only_fits: bool = False,
) -> tuple[Samples, list[str]]:
    """Leave out rows that something was fitted on; return the rest, which may certify, and notes.

    The history knows such rows, and `fitted` has those of this command behind their option. With
    `only_fits`, other rows certify.

    Raises:
        DataError: Anything was fitted on more than a tenth of the rows.
    """
    called = f"{option} {visible(samples.spec)}"
    uses = [(use, *is_seen(samples, seen)) for use, seen in dict.fromkeys(_uses(history))]
    if fitted is not None:
        rows = samples.is_in(fitted[1])
        uses.append((f"are in {fitted[0]} {visible(fitted[1].spec)} too", rows, np.ones_like(rows)))
    trained, decidable = np.zeros(len(samples), dtype=bool), np.ones(len(samples), dtype=bool)
    notes, reasons = [], []
    chose: dict[int, list[str]] = {}
    for use, rows, sure in uses:
        rows = rows & ~trained
        if rows.any() and use in CHOOSING:
            chose.setdefault(int(rows.sum()), []).append(use)
        elif rows.any():
            notes.append(_left_out(called, rows, use))
            reasons.append(use)
            trained, decidable = trained | rows, decidable & sure
    notes += [
        f"{called}: {_some(count, len(samples))} {_joined(names)}; {OPTIMISTIC}{'' if only_fits else TOO_GOOD}"
        for count, names in chose.items()
    ]
    hint = CERTIFIES_NOTHING
    if option == "--data":
        parts = split_options(samples.spec, ("finetune --data", "then calibrate --data"))
        hint = f"{hint} Of one table: {parts}."
    check_share(called, trained, decidable, reasons, hint)
    keep = ~trained
    return (samples if keep.all() else samples.at(np.flatnonzero(keep))), notes


def _joined(uses: Sequence[str]) -> str:
    """Return "were used to choose the model's heads and the model" for two uses."""
    return " and ".join(dict.fromkeys(uses)).replace(f" and {CHOSE}", " and ")


def inputs_of(samples: Samples) -> NDArray[np.int64]:
    """Number the inputs of samples: copies share a number, but in another query."""
    queries: Sequence[Any] = samples.groups or [None] * len(samples)
    numbers: dict[Any, int] = {}
    pairs = zip(samples.digests.tolist(), queries, strict=True)
    return np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], dtype=np.int64)


def inputs_by_features(outputs: Outputs) -> NDArray[np.int64] | None:
    """Number the inputs of predictions: copies share logits and features; None where there are no
    features, which copies are told by.
    """
    if outputs.features is None or outputs.groups is not None:
        return None
    arrays = [array.reshape(len(array), -1) for array in (outputs.logits, outputs.features)]
    rows = np.concatenate(arrays, axis=1, dtype=np.float64)
    _, numbers = np.unique(rows, axis=0, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64)


def without(
    samples: Samples, option: str, other: Samples, its_option: str
) -> tuple[Samples, list[str]]:
    """Return the samples that another set does not hold, and a note where it holds some.

    Raises:
        DataError: The other set holds all of them.
    """
    rows = samples.is_in(other)
    called, its_name = f"{option} {visible(samples.spec)}", f"{its_option} {visible(other.spec)}"
    if rows.all():
        message = f"{called}: all of its {len(rows):,} rows are in {its_name} too"
        raise DataError(message, hint=f"Give rows that {its_option} does not hold.")
    if not rows.any():
        return samples, []
    return samples.at(np.flatnonzero(~rows)), [_left_out(called, rows, f"are in {its_name} too")]


def unfitted(
    val: Predictions, fit: Predictions, name: str, fit_name: str
) -> tuple[NDArray[np.int64], str | None]:
    """Return the rows of predictions that are none of those that are fitted on, and a note. Rows are
    compared by their texts or tokens, and by their features up to rounding.

    Raises:
        DataError: More than a tenth of the rows is fitted on.
    """
    shared = np.zeros(len(val), dtype=bool)
    if val.read is not None and fit.read is not None and val.read.made_of == fit.read.made_of:
        texts = {ids.tobytes() for ids in fit.read.ids}
        shared |= np.array([ids.tobytes() in texts for ids in val.read.ids])
    features, fit_features = val.outputs.features, fit.outputs.features
    if features is not None and fit_features is not None:
        shared |= _nearly_in(features.reshape(len(val), -1), fit_features.reshape(len(fit), -1))
    if not shared.any():
        return np.arange(len(val)), None
    use = f"are in --fit-predictions {fit_name} too"
    check_share(name, shared, np.ones_like(shared), [use])
    return np.flatnonzero(~shared), _left_out(name, shared, use)


def _nearly_in(rows: NDArray[Any], references: NDArray[Any]) -> Flags:
    """Return for each row whether it is one of the others up to rounding. Only rows whose projections
    on a random direction lie close to each other are compared; a single number must be equal.
    """
    spread = references.std(axis=0, dtype=np.float64)
    scale = np.maximum(spread, 1e-6 * np.abs(references).max(axis=0)) + 1e-30
    rows, references = rows / scale, references / scale
    width = rows.shape[1]
    reach = ROUNDING * math.sqrt(width) * (width > 1)
    direction: NDArray[np.float64] = np.random.default_rng(0).normal(size=(width,))
    direction /= np.sqrt(np.square(direction).sum())
    places, first = np.unique(references @ direction, return_index=True)
    at = rows @ direction
    starts, ends = np.searchsorted(places, at - reach), np.searchsorted(places, at + reach, "right")
    is_near = np.zeros(len(rows), dtype=bool)
    for row in np.flatnonzero(ends > starts):
        distances = np.linalg.norm(references[first[starts[row] : ends[row]]] - rows[row], axis=1)
        is_near[row] = distances.min() <= reach
    return is_near
