"""Split validation data: a third of the rows fits, the others certify.

Rows may be copies of others. Where inputs repeat in what the model will read ("thanks", "cancel"), a
promise is about rows with their copies; where rows were copied by accident, it is about rows without
them. Thresholds hold for both:

    fitting      rows of the third, but copies of a first row outside it
    certifying   the other rows: as random a sample as all of them
    distinct     of these, the first row of each input: nothing was fitted on it or on a copy
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from hydrasurgeon.errors import DataError
from hydrasurgeon.run.shapes import Bool, Int
from hydrasurgeon.tasks.base import Outputs

FITS = 3
"""One row in so many fits."""
FEWEST = 20
"""Fewer rows than this tell nothing, whatever is promised."""
FEWEST_CROSSED = 10
"""Rows that estimates of folds are taken from at least: all of them fit, and none certifies."""


@dataclass(frozen=True)
class Split:
    """Numbers of rows, in random order: a part of one is as random."""

    fitting: Int[ndarray, " row"]
    certifying: Int[ndarray, " row"]
    distinct: Int[ndarray, " row"]

    @property
    def parts(self) -> tuple[Int[ndarray, " row"], ...]:
        """The rows that certify; and, where some are copies, those without the copies too."""
        if len(self.distinct) == len(self.certifying):
            return (self.certifying,)
        return self.certifying, self.distinct


def split(outputs: Outputs, seed: int) -> Split:
    """Split the rows of VAL: as the outputs say, else a third of them fits."""
    if outputs.certifies is not None:
        return split_as_marked(outputs.certifies, seed, inputs=outputs.inputs)
    return split_rows(len(outputs.logits), seed, inputs=outputs.inputs, groups=outputs.groups)


def unsplit(outputs: Outputs, seed: int) -> Split:
    """Let all rows fit, and take thresholds on the same ones: they are estimates then."""
    check_crossed(len(outputs.logits))
    order = np.random.default_rng(seed).permutation(len(outputs.logits))
    first = np.arange(len(order)) if outputs.inputs is None else first_rows(outputs.inputs)
    return Split(order, order, order[first[order] == order])


def split_rows(
    count: int, seed: int, *, inputs: ndarray | None = None, groups: ndarray | None = None
) -> Split:
    """Split so many rows, of which those with an equal number of `inputs` are copies. Where there
    are groups enough, a third of them fits.
    """
    rows = np.arange(count)
    first = rows if inputs is None else first_rows(inputs)
    distinct = int((first == rows).sum())
    check_enough(distinct)
    random = np.random.default_rng(seed)
    fits = np.zeros(count, dtype=bool)
    if groups is not None and len(numbers := np.unique(groups)) >= FEWEST:
        some = numbers[random.permutation(len(numbers))[: len(numbers) // FITS]]
        order = random.permutation(count)
        fits = np.isin(groups, some)
    else:
        order = random.permutation(count)
        is_first = (first == rows)[order]
        for part in (order[is_first], order[~is_first]):  # a third of the inputs, and of the copies
            fits[part[: len(part) // FITS]] = True
    certifying = order[~fits[order]]
    return Split(
        fitting=order[fits[order] & fits[first[order]]],
        certifying=certifying,
        distinct=certifying[first[certifying] == certifying],
    )


def split_as_marked(certifies: ndarray, seed: int, *, inputs: ndarray | None = None) -> Split:
    """Split rows of which it is known which ones certify; the others stand before them and fit."""
    order = np.random.default_rng(seed).permutation(len(certifies))
    certifying = order[certifies[order]]
    first = np.arange(len(certifies)) if inputs is None else first_rows(inputs)
    return Split(
        fitting=order[~certifies[order]],
        certifying=certifying,
        distinct=certifying[first[certifying] == certifying],
    )


def first_rows(inputs: ndarray) -> Int[ndarray, " row"]:
    """Return for each row the first row that has the same input."""
    _, first, which = np.unique(inputs, return_index=True, return_inverse=True)
    return first[which]


def check_enough(count: int) -> None:
    """Refuse rows that are too few to split."""
    if count < FEWEST:
        raise DataError(
            f"{count} validation rows are too few: at least {FEWEST} are needed, of which a third "
            "fits and two thirds certify",
            hint="Give more --data.",
        )


def check_crossed(count: int) -> None:
    """Refuse rows that are too few to estimate anything by folds."""
    if count < FEWEST_CROSSED:
        raise DataError(
            f"{count} rows are too few: five folds need at least {FEWEST_CROSSED} whose class has other rows",
            hint="Give more --data.",
        )


def certified(count: int) -> int:
    """Return how many of `count` rows certify."""
    return count - count // FITS


def copies(outputs: Outputs) -> int:
    """Count the rows that are copies of others."""
    if outputs.inputs is None:
        return 0
    repeated: Bool[ndarray, " row"] = first_rows(outputs.inputs) != np.arange(len(outputs.inputs))
    return int(repeated.sum())
