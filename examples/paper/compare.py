"""Compare two selections of heads (paper B.2): python compare.py A.safetensors B.safetensors

Of the heads that both keep, and of those that both lack: Jaccard |A∩B| / |A∪B|, the share in common
2|A∩B| / (|A| + |B|), and the Jensen–Shannon divergence of the uniform distributions over A and over
B, in nats. FILE#1 is the second member of a hydra.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from hydrasurgeon.stages.inspect import inspect

Heads = set[tuple[str, int, int]]


def divergence(a: int, b: int, common: int) -> float | None:
    """Return the Jensen–Shannon divergence of uniform distributions over two sets, in nats;
    disjoint sets have ln 2.
    """
    if not a or not b:
        return None
    p, q = 1 / a, 1 / b
    middle = (p + q) / 2
    # A head of one set only adds p·ln 2; one in common p·ln(p/m) and q·ln(q/m).
    alone = (a - common) * p + (b - common) * q
    together = common * (p * math.log(p / middle) + q * math.log(q / middle))
    return max(0.0, (alone * math.log(2) + together) / 2)


def overlap(a: Heads, b: Heads) -> dict[str, Any]:
    common, either = len(a & b), len(a | b)
    return {
        "a": len(a),
        "b": len(b),
        "common": common,
        "jaccard": common / either if either else None,
        "share": 2 * common / (len(a) + len(b)) if either else None,
        "jsd": divergence(len(a), len(b), common),
    }


def selection(spec: str) -> tuple[Heads, Heads]:
    """Return the heads that a checkpoint keeps, and all heads of its model."""
    path, _, number = spec.partition("#")
    manifest = inspect(path).manifest
    record = manifest if manifest.members is None else manifest.members[int(number)]
    kept = {
        (tower, layer, head)
        for tower, rows in record.kept.items()
        for layer, row in enumerate(rows)
        for head in row
    }
    all_removed = {
        (name, layer, head)
        for name, tower in manifest.towers.items()
        for layer in range(tower.layers)
        for head in range(tower.heads)
    }
    return kept, all_removed


def compare(a: str, b: str) -> dict[str, Any]:
    (first, all_removed), (second, other) = selection(a), selection(b)
    if all_removed != other:
        raise SystemExit(f"{a} and {b} are cut out of different models")
    layers = sorted({head[:2] for head in all_removed})

    def overlaps(among: Heads) -> dict[str, Any]:
        return {
            "kept": overlap(first & among, second & among),
            "removed": overlap(among - first, among - second),
        }

    rows = [
        {
            "tower": tower,
            "layer": layer,
            **overlaps({h for h in all_removed if h[:2] == (tower, layer)}),
        }
        for tower, layer in layers
    ]
    return {**overlaps(all_removed), "layers": rows}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compare(*sys.argv[1:]), indent=2) + "\n")
