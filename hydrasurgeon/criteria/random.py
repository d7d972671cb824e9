"""Random: a uniform number per head, from the seed; the baseline every other criterion must beat."""

from __future__ import annotations

import numpy as np

from hydrasurgeon.criteria.base import HeadScores, Subject


def score(subject: Subject) -> HeadScores:
    manifest = subject.checkpoint.manifest
    generator = np.random.default_rng(subject.run.seed)
    # A number for every head of the original model, so that a head's score does not depend on what
    # is gone.
    drawn = {name: generator.random((t.layers, t.heads)) for name, t in manifest.towers.items()}
    return {
        (tower, layer): [float(drawn[tower][layer, head]) for head in row]
        for tower in subject.towers
        for layer, row in enumerate(manifest.kept[tower])
    }
