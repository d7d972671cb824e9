"""Distance of OOD data to ID data in the last layer's heads (paper B.2, Table 5).

    python centroids.py model.safetensors report.json TEST near:yelp=YELP far:trec=TREC …

For each OOD set, the distance between the centroids of the two sets is averaged over the heads, and these means over the near sets, the far
sets, and all sets. `python -m probing` shows the distances of every head.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from probing.separation import Moments, distances, head_moments

from hydrasurgeon.checkpoints.checkpoint import open_single
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.runtime.classifier import live_module

SIZE = 64


def measure(checkpoint: Path, data: str, ood: list[str]) -> dict[str, float]:
    """Return the mean distances of the near sets, the far sets, and all sets."""
    opened = open_single(checkpoint)
    module = live_module(opened).eval()
    anatomy = opened.family.anatomy(module)
    transform = opened.family.transform(opened.manifest.model, files=opened.files)

    def last_layer(spec: str) -> Moments:
        samples = open_data(spec)
        batches = Batches(samples, transform, batch_size=SIZE)
        inputs = ((batch.inputs, batch.index) for batch in batches)
        moments = head_moments(module, anatomy, inputs, np.zeros(len(samples), dtype=bool))
        return moments[max(moments, key=lambda place: place[1])]

    inside = last_layer(data)
    means: dict[str, list[float]] = defaultdict(list)
    for entry in ood:
        name, _, spec = entry.partition("=")
        for kind, by_head in zip(
            ("euclidean", "mahalanobis"), distances(inside, last_layer(spec)), strict=True
        ):
            for group in (name.partition(":")[0], "all"):
                means[f"{kind}_{group}"].append(statistics.fmean(by_head))
    return {name: statistics.fmean(values) for name, values in means.items()}


if __name__ == "__main__":
    source, report, test, *sets = sys.argv[1:]
    Path(report).write_text(json.dumps(measure(Path(source), test, sets)))
