"""Magnitude: mean |W| over a head's q, k and v rows, averaged over the three. Reads the file, runs
nothing.
"""

from __future__ import annotations

import numpy as np

from hydrasurgeon.criteria.base import HeadScores, Subject
from hydrasurgeon.files.tensors import as_float


def score(subject: Subject) -> HeadScores:
    checkpoint, manifest = subject.checkpoint, subject.checkpoint.manifest
    scores: HeadScores = {}
    for tower in subject.towers:
        for layer, row in enumerate(manifest.kept[tower]):
            parts = []
            for weight in checkpoint.weights.values():
                if (weight.part, weight.tower, weight.layer) != ("attention", tower, layer):
                    continue
                if weight.heads is None or len(weight.shape) < 2 or not row:
                    continue
                stored = checkpoint.tensors[weight.name]
                values = np.abs(as_float(checkpoint.tensors.read(weight.name), stored.dtype))
                parts.append(values.reshape(weight.heads.blocks, len(row), -1).mean(axis=-1))
            scores[tower, layer] = np.concatenate(parts).mean(axis=0).tolist() if parts else []
    return scores
