"""Stratified parts and folds of a table, by a hash of what its rows hold.

The order of a class is that of the sha256 of its contents, whatever the order of the table. Copies,
and rows of one group, stay together: they are one unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.labels import UNLABELLED
from hydrasurgeon.errors import DataError

if TYPE_CHECKING:
    from hydrasurgeon.data.samples import Samples

FOLDS = 5
"""Folds of a cross-fitting."""
FEWEST_OF_CLASS = 5
"""Rows that a part of a large table keeps of each class, where it has them."""
NO_FOLD = -1
"""The fold of rows that are trained on in every fold: no other row shows their class."""


def split_of(samples: Samples, part: str) -> Samples:
    """Return the rows of each class between two percentages of its order, in their own order;
    `50-100+0-33` is a part of a part.
    """
    for percents in part.split("+"):
        first, last = map(int, percents.split("-"))
        places = positions(samples)
        rows = np.flatnonzero((places >= first) & (places < last))
        if not len(rows):
            raise DataError(
                f"{samples.spec}: no class has enough rows for {first} to {last} % of them",
                hint="Take a larger part.",
            )
        samples = samples.at(rows)
    return samples


def folds_of(samples: Samples) -> NDArray[np.int64]:
    """Return the fold of each row; `NO_FOLD` where its class has no other unit."""
    strata = _strata(samples)
    folds = (positions(samples) * FOLDS / 100).astype(np.int64)
    for stratum in np.unique(strata):
        rows = strata == stratum
        if len(np.unique(folds[rows])) == 1:
            folds[rows] = NO_FOLD
    folds[strata == UNLABELLED] = NO_FOLD
    return folds


def positions(samples: Samples) -> NDArray[np.float64]:
    """Return where each row stands in the order of its class, from 0 to 100; rows of a unit stand
    at its middle.
    """
    units, strata = _units(samples), _strata(samples)
    _, first, unit_of, sizes = np.unique(
        units, return_index=True, return_inverse=True, return_counts=True
    )
    unit_strata = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(unit_strata, unit_of.reshape(-1), strata)
    middles = np.zeros(len(first))
    for stratum in np.unique(unit_strata):
        members = np.flatnonzero(unit_strata == stratum)
        ends = np.cumsum(sizes[members])
        middles[members] = 100 * (ends - sizes[members] / 2) / ends[-1]
    return middles[unit_of.reshape(-1)]


def some_of(samples: Samples, most: int) -> NDArray[np.int64]:
    """Return at most so many rows, the first of each class in its order by content; more where
    classes would have fewer than `FEWEST_OF_CLASS`.
    """
    if len(samples) <= most:
        return np.arange(len(samples))
    places, strata = positions(samples), _strata(samples)
    # Rows of a unit stand at one place: the hash alone decides between places that are equal.
    order = np.lexsort((_units(samples), places))
    chosen = np.zeros(len(samples), dtype=bool)
    chosen[order[:most]] = True
    by_class = order[np.argsort(strata[order], kind="stable")]
    ordered = strata[by_class]
    starts = np.searchsorted(ordered, ordered)
    chosen[by_class[np.arange(len(ordered)) - starts < FEWEST_OF_CLASS]] = True
    return np.flatnonzero(chosen)


def _units(samples: Samples) -> NDArray[np.int64]:
    """Return the unit of each row, numbered in the order of the hashes."""
    _, ranks = np.unique(samples.digests, return_inverse=True)
    ranks = ranks.reshape(-1)
    if samples.groups is None:
        return ranks
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    _, groups = np.unique(np.array(samples.groups), return_inverse=True)
    count = int(ranks.max()) + 1
    shape = (count + int(groups.max()) + 1,) * 2
    edges = csr_matrix((np.ones(len(ranks)), (ranks, count + groups)), shape=shape)
    component = connected_components(edges, directed=False)[1][:count]
    # A component is numbered by its smallest hash, which no order of the table changes.
    _, first, numbers = np.unique(component, return_index=True, return_inverse=True)
    return first[numbers][ranks]


def _strata(samples: Samples) -> NDArray[np.int64]:
    """Return the class of each row; of several labels or tags the rarest; 0 for numbers."""
    column = samples.written
    if column is None or (column.labels.ndim == 1 and column.labels.dtype.kind == "f"):
        return np.zeros(len(samples), dtype=np.int64)
    labels = column.labels
    if labels.ndim == 1:
        return labels.astype(np.int64)
    if labels.dtype.kind == "i":  # tags of words, -1 behind the last
        holds = np.zeros((len(labels), int(labels.max()) + 2), dtype=bool)
        for place in range(labels.shape[1]):
            holds[np.arange(len(labels)), labels[:, place]] |= labels[:, place] >= 0
    else:
        holds = labels > 0
    counts = np.where(holds, holds.sum(axis=0), len(labels) + 1)
    rarest = counts.argmin(axis=1)
    return np.where(holds.any(axis=1), rarest, holds.shape[1]).astype(np.int64)
