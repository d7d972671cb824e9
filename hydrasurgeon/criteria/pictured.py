"""What a criterion said of heads, as a heat map: its numbers, or the place of each head in the order of removal."""

from __future__ import annotations

from collections.abc import Mapping

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.headmaps import HeadMap
from hydrasurgeon.files.manifest import Manifest, Score, Tower
from hydrasurgeon.heads import Kept, all_heads, count


def head_map(key: str, score: Score, towers: Mapping[str, Tower], present: Kept, kept: Kept | None) -> HeadMap:
    """One criterion's; heads that it did not look at are grey."""
    if score.values is not None:
        values = {tower: [list(row) for row in score.values[tower]] for tower in towers if tower in score.values}
        return HeadMap(key, values, kept)
    order = [tuple(head) for head in score.order or ()]
    place = {head: float(at) for at, head in enumerate(order, 1)}
    there = set(all_heads(present))
    scored = {tower for tower, *_ in order} or set(towers)
    # What never went outlasts all that did.
    ranks = {
        tower: [
            [
                place.get((tower, layer, h), len(order) + 1.0 if (tower, layer, h) in there else None)
                for h in range(size.heads)
            ]
            for layer in range(size.layers)
        ]
        for tower, size in towers.items()
        if tower in scored
    }
    return HeadMap(f"{key}, nth to go", ranks, kept)


def head_maps(manifest: Manifest, name: str) -> list[HeadMap]:
    """All that a manifest records, the heads it keeps marked; of a hydra, how many members keep each head."""
    towers = manifest.towers
    if manifest.kind == "hydra":
        counts = {
            tower: [
                [sum(h in member.kept[tower][layer] for member in manifest.members) for h in range(size.heads)]
                for layer in range(size.layers)
            ]
            for tower, size in towers.items()
        }
        return [HeadMap(f"kept by so many of {len(manifest.members)} members", counts)]
    if not manifest.scores:
        raise UsageError(f"--plot: {name} records no scores", hint="Run `hydrasurgeon score --method M` on it first.")
    # Where all are there, a mark on each says nothing.
    whole = count(manifest.kept) == sum(t.layers * t.heads for t in towers.values())
    kept = None if whole else manifest.kept
    return [head_map(key, score, towers, manifest.kept, kept) for key, score in manifest.scores.items()]
