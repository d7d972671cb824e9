"""Magnitude: mean |W| over a head's q, k and v rows, averaged over the three. Reads the file, runs
nothing.
"""

from __future__ import annotations

import numpy as np

from hydrasurgeon.criteria.base import HeadScores, Subject


def score(subject: Subject) -> HeadScores:
    scores: HeadScores = {}
    for tower in subject.towers:
        for layer, row in enumerate(subject.checkpoint.manifest.kept[tower]):
            parts = [
                np.abs(values).reshape(axis.blocks, len(row), -1).mean(axis=-1)
                for axis, values in subject.matrices(tower, layer)
                if axis.axis == 0 and row
            ]
            scores[tower, layer] = np.concatenate(parts).mean(axis=0).tolist() if parts else []
    return scores
