"""Which heads a model keeps, a row for each layer and a map for each tower; of a hydra, a stripe
for each member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hydrasurgeon.files.manifest import Manifest, Tower
from hydrasurgeon.heads import Kept, Layers, count
from hydrasurgeon.report.svg import drawing, figure, mark, number, text_of
from hydrasurgeon.report.verdicts import listed

ROOM, WIDEST = 290, 23
"""Pixels that the heads of a layer may take, and that one of them takes where there are few."""
LEFT, TOP, LINE = 30, 36, 14
"""Room for the numbers of layers, for the name of the tower, and for a line of text."""
STRIPES = 6
"""Members that have stripes of their own; of more, a head is the darker the more of them keep it.
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
    keeps, note = _keeps(manifest), ""
    maps = [
        _map(name, tower, about, [kept.get(tower, ()) for kept in keeps])
        for tower, about in manifest.towers.items()
    ]
    if manifest.kind == "hydra":
        note = f"{len(keeps)} members"
        if manifest.fusion.trunk:
            note += f", the first {manifest.fusion.trunk} layers shared"
    return figure(name, f'<div class="towers">{"".join(maps)}</div>', note=text_of(note))


def _keeps(manifest: Manifest) -> list[Kept]:
    """The kept heads of each member; of a single model its own."""
    if manifest.kind == "hydra":
        return [member.kept for member in manifest.members]
    return [manifest.kept]


def _map(name: str, tower: str, about: Tower, members: Sequence[Layers]) -> str:
    step = max(4, min(WIDEST, ROOM // about.heads))
    end = LEFT + about.heads * step

    def label(content: object, x: float, y: float, anchor: str) -> str:
        place = f'x="{number(x)}" y="{number(y)}" dy=".32em" text-anchor="{anchor}"'
        return f'<text class="map-text" {place} font-size="11.5">{content}</text>'

    pieces = [label(text_of(tower), LEFT, 8, "start")]
    # Where a line of text is larger than a head, some go without their number.
    every = math.ceil(LINE / step)
    pieces += [
        label(head, LEFT + (head + 0.4) * step, TOP - 10, "middle")
        for head in range(0, about.heads, every)
    ]
    says = []
    for layer in range(about.layers):
        rows = [set(member[layer]) if layer < len(member) else set() for member in members]
        y, sizes = TOP + layer * step, [len(row) for row in rows]
        says.append(f"layer {layer}: {_counts(sizes)}")
        if layer % every == 0:
            pieces.append(label(layer, LEFT - 8, y + 0.4 * step, "end"))
            pieces.append(label(_counts(sizes), end + 4, y + 0.4 * step, "start"))
        pieces += [
            _cell(LEFT + head * step, y, 0.87 * step, (layer, head), rows)
            for head in range(about.heads)
        ]
    title = f"Heads of {name}, {tower}"
    description = f"Heads kept of {about.heads} in each layer: {', '.join(says)}."
    width, height = end + 12 * STRIPES, TOP + about.layers * step + 4
    return drawing(title, description, width, height, "".join(pieces), kind="map")


def _counts(sizes: Sequence[int]) -> str:
    """How many heads each member keeps of a layer; of many members, the fewest and the most."""
    if len(sizes) <= STRIPES:
        return "·".join(map(str, sizes))
    return f"{min(sizes)} – {max(sizes)}"


def _cell(x: float, y: float, size: float, place: tuple[int, int], rows: Sequence[set[int]]) -> str:
    """One head: an empty frame, and what is kept of it."""
    layer, head = place
    keepers = [member for member, row in enumerate(rows) if head in row]
    frame = f'y="{number(y)}" height="{number(size)}"'
    square = f'x="{number(x)}" {frame} width="{number(size)}" rx="{number(size / 5)}"/>'
    fate, filled = f"kept by {len(keepers)} of {len(rows)} members", ""
    if len(rows) == 1:
        fate = "kept" if keepers else "removed"
    elif len(rows) <= STRIPES:
        fate = f"kept by {', '.join(map(str, keepers)) or 'no member'}"
        width = size / len(rows)
        for member in keepers:
            stripe = f'x="{number(x + member * width)}" {frame} width="{number(width)}"/>'
            filled += f'<rect class="c{member} stripe" {stripe}'
    if keepers and not filled:
        filled = f'<rect class="kept" opacity="{len(keepers) / len(rows):.2f}" {square}'
    group = mark("g >", f"layer {layer}, head {head}: {fate}")
    return f'{group}<rect class="gone" {square}{filled}</g>'
