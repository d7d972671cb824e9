"""Labels that look wrong, by confident learning (Northcutt et al., 2021).

    t_j       mean of p_j over the rows with label j
    C[i, j]   rows with label i whose confident class is j: the only one with p_j ≥ t_j; where there
              are several, the most probable class of all
    Q[i, ·]   C[i, ·], scaled to the number of rows with label i and rounded

For each j ≠ i, the Q[i, j] rows with label i and the largest p_j − p_i are issues, unless i is their
most probable class. This is cleanlab's `find_label_issues`, pruned by noise rate and ranked by self-confidence.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from hydrasurgeon.run.shapes import Float, Int

ROUNDING = 1e-6
"""Difference below which probabilities are equal."""
FEWEST_KEPT = 1
"""Rows of each class that are no issues at least."""

Counts = Float[ndarray, "label klass"]
"""Rows by label and confident class."""


def find_label_issues(
    labels: Int[ndarray, " row"], probs: Float[ndarray, "row klass"]
) -> Int[ndarray, " issue"]:
    """Return the rows whose label looks wrong, by rising probability of their label. The
    probabilities must be those of models that have not seen the row.
    """
    removals = _removals(count_confident(labels, probs), labels)
    is_issue = np.zeros(len(labels), dtype=bool)
    for label in np.flatnonzero(removals.any(axis=1)):
        rows = np.flatnonzero(labels == label)
        if len(rows) <= FEWEST_KEPT:
            continue
        for other in np.flatnonzero(removals[label]):
            margins = probs[rows, other] - probs[rows, label]
            order = np.argsort(-margins, kind="stable")
            is_issue[rows[order[: removals[label, other]]]] = True
    of_label = probs[np.arange(len(labels)), labels]
    is_issue &= probs.max(axis=1, initial=0.0) > of_label + ROUNDING
    issues = np.flatnonzero(is_issue)
    return issues[np.argsort(of_label[issues], kind="stable")]


def count_confident(labels: Int[ndarray, " row"], probs: Float[ndarray, "row klass"]) -> Counts:
    """Return C; each class has at least one row on the diagonal."""
    classes = probs.shape[1]
    present = np.bincount(labels, minlength=classes) > 0
    thresholds = np.full(classes, np.inf)
    for label in np.flatnonzero(present):
        thresholds[label] = max(probs[labels == label, label].mean(), 2 * ROUNDING)
    is_confident = probs >= thresholds - ROUNDING
    several = is_confident.sum(axis=1) > 1
    confident = np.where(several, probs.argmax(axis=1), is_confident.argmax(axis=1))
    rows = is_confident.any(axis=1)
    counts = np.zeros((classes, classes), order="F")  # its sum is rounded as cleanlab rounds it
    np.add.at(counts, (labels[rows], confident[rows]), 1)
    np.fill_diagonal(counts, np.maximum(counts.diagonal(), 1))
    return counts


def _removals(counts: Counts, labels: Int[ndarray, " row"]) -> Int[ndarray, "label klass"]:
    """Return Q without its diagonal, lowered where a class would keep too few rows."""
    sizes = np.bincount(labels, minlength=len(counts))
    scaled = (counts.T / counts.sum(axis=1) * sizes).T
    scaled = scaled / scaled.sum() * sizes.sum()
    rounded = np.stack([_round_to_sum(row) for row in scaled])
    missing = np.maximum(FEWEST_KEPT - rounded.diagonal(), 0)
    off_diagonal = np.maximum(np.count_nonzero(rounded, axis=1) - 1, 1)
    lowered = np.maximum(rounded - (missing / off_diagonal)[:, None], 0).astype(np.int64)
    np.fill_diagonal(lowered, 0)
    return lowered


def _round_to_sum(values: Float[ndarray, " klass"]) -> Int[ndarray, " klass"]:
    """Round so that the rounded sum stays: those nearest to the other whole number move."""
    rounded = values.round()
    while change := int(values.sum().round() - rounded.sum()):
        order = np.argsort(values - rounded, kind="stable")
        nearest = order[::-1] if change > 0 else order
        rounded[nearest[: abs(change)]] += np.sign(change)
    return rounded.astype(np.int64)
