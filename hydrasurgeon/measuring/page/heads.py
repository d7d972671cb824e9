"""Which heads a model keeps, a row for each layer and a map for each tower; of a hydra, a stripe for each member."""

from __future__ import annotations

from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.files.mixture import shown
from hydrasurgeon.measuring.page.svg import drawing, figure, mark, text_of

__all__ = ["STRIPES", "head_maps"]

CELL, GAP = 20, 3
"""Size of a head, and room between two, in CSS pixels."""
LEFT, TOP = 30, 36
"""Room for the numbers of layers and the name of the tower."""
# Members that have stripes of their own; of more, a head is the darker the more of them keep it.
STRIPES = 6


def head_maps(name: str, manifest: Manifest) -> str:
    """The towers of one model side by side."""
    keeps = (
        [member.kept for member in manifest.members]
        if manifest.kind == "hydra"
        else [manifest.kept]
    )
    maps = []
    for tower, about in manifest.towers.items():
        kept = [rows.get(tower, ()) for rows in keeps]
        maps.append(_map(name, tower, about.layers, about.heads, kept))
    note = ""
    if manifest.kind == "hydra":
        shared = f", the first {manifest.fusion.trunk} layers shared" if manifest.fusion.trunk else ""  # fmt: skip
        weights = manifest.fusion.weights
        counted = "" if weights is None else f", that count {shown(weights)} of 1"
        note = f"{len(keeps)} members{shared}{counted}"
    return figure(name, f'<div class="towers">{"".join(maps)}</div>', note=text_of(note))


def _map(name: str, tower: str, layers: int, heads: int, kept: list[tuple[tuple[int, ...], ...]]) -> str:  # fmt: skip
    pieces = [f'<text class="axis" x="{LEFT}" y="12">{text_of(tower)}</text>']
    step = CELL + GAP
    counts = []
    for layer in range(layers):
        y = TOP + layer * step
        pieces.append(f'<text class="tick" x="{LEFT - 8}" y="{y + CELL / 2}" dy=".32em" text-anchor="end">{layer}</text>')  # fmt: skip
        rows = [set(member[layer]) if layer < len(member) else set() for member in kept]
        pieces += [_cell(LEFT + head * step, y, layer, head, rows) for head in range(heads)]
        each = _counts([len(row) for row in rows])
        counts.append(f"layer {layer}: {each}")
        pieces.append(f'<text class="tick" x="{LEFT + heads * step + 4}" y="{y + CELL / 2}" dy=".32em">{each}</text>')  # fmt: skip
    pieces += [f'<text class="tick" x="{LEFT + head * step + CELL / 2}" y="{TOP - 6}" text-anchor="middle">{head}</text>' for head in range(heads)]  # fmt: skip
    width = LEFT + heads * step + 12 + (16 * len(kept) if len(kept) <= STRIPES else 44)
    says = f"Heads kept of {heads} in each layer: {', '.join(counts)}."
    return drawing(f"Heads of {name}, {tower}", says, width, TOP + layers * step + 4, "".join(pieces), kind="map")  # fmt: skip


def _counts(sizes: list[int]) -> str:
    """How many heads each member keeps of a layer; of many members, the least and the most."""
    if len(sizes) <= STRIPES:
        return "·".join(map(str, sizes))
    return f"{min(sizes)} – {max(sizes)}" if min(sizes) < max(sizes) else str(sizes[0])


def _cell(x: int, y: int, layer: int, head: int, rows: list[set[int]]) -> str:
    """One head: an empty frame, and what is kept of it."""
    keepers = [member for member, row in enumerate(rows) if head in row]
    frame = f'<rect class="gone" x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="4"/>'
    if len(rows) == 1:
        fate = "kept" if keepers else "removed"
        stripes = f'<rect class="kept" x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="4"/>' if keepers else ""  # fmt: skip
    elif len(rows) <= STRIPES:
        fate = f"kept by {', '.join(map(str, keepers)) or 'no member'}"
        width = CELL / len(rows)
        stripes = "".join(f'<rect class="c{member} stripe" x="{x + member * width:.4g}" y="{y}" width="{width:.4g}" height="{CELL}"/>' for member in keepers)  # fmt: skip
    else:
        fate = f"kept by {len(keepers)} of {len(rows)} members"
        stripes = f'<rect class="kept" opacity="{len(keepers) / len(rows):.2f}" x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="4"/>'
    group = mark("g >", f"layer {layer}, head {head}: {fate}")
    return f"{group}{frame}{stripes}</g>"
