"""Which heads a model keeps, a row for each layer and a map for each tower; of a hydra, a stripe
for each member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.heads import Kept, count
from hydrasurgeon.report.svg import drawing, figure, mark, number, text_of
from hydrasurgeon.report.verdicts import listed

CELL, GAP = 20, 3
"""Size of a head, and room between two, in CSS pixels."""
LEFT, TOP = 30, 36
"""Room for the numbers of layers and the name of the tower."""
STRIPES = 6
"""Members that have stripes of their own; of more, a head is the darker the more of them keep it.
"""
FITS, TEXT, CHARACTER = 330, 11.5, 0.62
"""Width that a map is shown at where it is wider, size of its text, and how wide a character of it
is; the wider the map, the larger its text.
"""


def drawn_maps(manifests: Mapping[str, Manifest]) -> list[str]:
    """The maps of models that lack heads; equal ones stand as one, under all their names."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, manifest in manifests.items():
        keeps = _keeps(manifest)
        heads = sum(tower.layers * tower.heads for tower in manifest.towers.values())
        if any(count(kept) < heads for kept in keeps):
            names.setdefault((repr(keeps), repr(manifest.fusion)), []).append(name)
    return [head_maps(listed(same), manifests[same[0]]) for same in names.values()]


def head_maps(name: str, manifest: Manifest) -> str:
    """The towers of one model side by side."""
    keeps, maps = _keeps(manifest), []
    for tower, about in manifest.towers.items():
        kept = [rows.get(tower, ()) for rows in keeps]
        maps.append(_map(name, tower, about.layers, about.heads, kept))
    note = ""
    if manifest.kind == "hydra":
        shared = (
            f", the first {manifest.fusion.trunk} layers shared" if manifest.fusion.trunk else ""
        )
        note = f"{len(keeps)} members{shared}"
    return figure(name, f'<div class="towers">{"".join(maps)}</div>', note=text_of(note))


def _keeps(manifest: Manifest) -> list[Kept]:
    """The kept heads of each member; of a single model its own."""
    if manifest.kind == "hydra":
        return [member.kept for member in manifest.members]
    return [manifest.kept]


def _map(
    name: str, tower: str, layers: int, heads: int, kept: list[tuple[tuple[int, ...], ...]]
) -> str:
    step = CELL + GAP
    sizes = [
        [len(member[layer]) if layer < len(member) else 0 for member in kept]
        for layer in range(layers)
    ]
    counts = [_counts(row) for row in sizes]
    big = LEFT + heads * step > FITS
    text = TEXT * max(1.0, (LEFT + heads * step) / FITS * 1.25)
    # Where the text is larger than a cell, some rows and columns go without their number.
    every = math.ceil(text * 1.25 / step)
    shown = [_range(row) for row in sizes] if big else counts
    left = round(max(LEFT, text * CHARACTER * len(str(layers)) + 12))
    top = round(max(TOP, text * 2 + 14))
    width = round(left + heads * step + 12 + text * CHARACTER * max(map(len, shown), default=0))
    height = top + layers * step + 4

    def label(content: object, x: float, y: object, more: str = "") -> str:
        return f'<text class="map-text" x="{x}" y="{y}"{more} font-size="{number(text)}">{content}</text>'

    pieces = [label(text_of(tower), left, number(text))]
    for layer in range(layers):
        y = top + layer * step
        if layer % every == 0:
            pieces.append(label(layer, left - 8, y + CELL / 2, ' dy=".32em" text-anchor="end"'))
            pieces.append(label(shown[layer], left + heads * step + 4, y + CELL / 2, ' dy=".32em"'))
        rows = [set(member[layer]) if layer < len(member) else set() for member in kept]
        pieces += [_cell(left + head * step, y, layer, head, rows) for head in range(heads)]
    for head in range(0, heads, every):
        pieces.append(label(head, left + head * step + CELL / 2, top - 6, ' text-anchor="middle"'))
    listed = ", ".join(f"layer {layer}: {each}" for layer, each in enumerate(counts))
    says = f"Heads kept of {heads} in each layer: {listed}."
    return drawing(f"Heads of {name}, {tower}", says, width, height, "".join(pieces), kind="map")


def _counts(sizes: list[int]) -> str:
    """How many heads each member keeps of a layer; of many members, the fewest and the most."""
    return "·".join(map(str, sizes)) if len(sizes) <= STRIPES else _range(sizes)


def _range(sizes: list[int]) -> str:
    return f"{min(sizes)} – {max(sizes)}" if min(sizes) < max(sizes) else str(sizes[0])


def _cell(x: int, y: int, layer: int, head: int, rows: list[set[int]]) -> str:
    """One head: an empty frame, and what is kept of it."""
    keepers = [member for member, row in enumerate(rows) if head in row]
    square = f'x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="4"/>'
    if len(rows) == 1:
        fate, stripes = ("kept", f'<rect class="kept" {square}') if keepers else ("removed", "")
    elif len(rows) <= STRIPES:
        fate = f"kept by {', '.join(map(str, keepers)) or 'no member'}"
        width = CELL / len(rows)
        stripes = "".join(
            f'<rect class="c{member} stripe" x="{x + member * width:.4g}" y="{y}" width="{width:.4g}" height="{CELL}"/>'
            for member in keepers
        )
    else:
        fate = f"kept by {len(keepers)} of {len(rows)} members"
        stripes = f'<rect class="kept" opacity="{len(keepers) / len(rows):.2f}" {square}'
    group = mark("g >", f"layer {layer}, head {head}: {fate}")
    return f'{group}<rect class="gone" {square}{stripes}</g>'
