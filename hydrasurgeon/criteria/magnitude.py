"""Magnitude: mean |W| over a head's q, k and v rows, averaged over the three. Reads the file, runs nothing."""

from __future__ import annotations

import numpy as np

from hydrasurgeon.criteria.base import HeadScores, Subject
from hydrasurgeon.families import backend
from hydrasurgeon.files.tensors import as_float

__all__ = ["score"]


def score(subject: Subject) -> HeadScores:
    checkpoint, manifest = subject.checkpoint, subject.checkpoint.manifest
    assert manifest.kept is not None
    found: HeadScores = {}
    for tower in subject.towers:
        for layer, row in enumerate(manifest.kept[tower]):
            *projections, _ = backend(manifest.model.family).head_tensors(
                manifest.model, tower, layer
            )
            parts = []
            for spec in projections:
                if not spec.name.endswith("weight") or not row:
                    continue
                values = np.abs(
                    as_float(
                        checkpoint.tensors.read(spec.name), checkpoint.tensors[spec.name].dtype
                    )
                )
                parts.append(values.reshape(spec.blocks, len(row), -1).mean(axis=-1))
            found[tower, layer] = np.concatenate(parts).mean(axis=0).tolist() if parts else []
    return found
