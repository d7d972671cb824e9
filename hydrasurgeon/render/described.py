"""What a checkpoint is, and how alike two selections of heads are."""

from __future__ import annotations

import json as jsonlib
import shlex
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from hydrasurgeon.files.history import command_line
from hydrasurgeon.heads import count
from hydrasurgeon.render.console import as_json, out, picture, say, size

if TYPE_CHECKING:
    from hydrasurgeon.stages.compare import Comparison, Overlap
    from hydrasurgeon.stages.inspect import Inspection


__all__ = ["compared", "inspected"]


def inspected(found: Inspection, *, json: bool) -> None:
    manifest = found.manifest
    if json:
        about = {
            "path": str(found.path),
            "parameters": found.parameters,
            "bytes": found.nbytes,
            "dtypes": list(found.dtypes),
        }
        return as_json(
            about
            | {
                "recorded": found.recorded,
                "note": found.note,
                "manifest": jsonlib.loads(manifest.to_json()),
            }
        )
    console = out()
    if found.note:
        say(f"note: {found.note}")
    model = manifest.model
    console.print(f"[bold]{found.path}[/]")
    console.print(
        f"  {manifest.kind} of {model.family}:{escape(model.arch)}, {model.num_classes} classes"
    )
    console.print(
        f"  {found.parameters / 1e6:.2f} M parameters, {size(found.nbytes)} as {', '.join(found.dtypes)}"
    )
    for name, tower in manifest.towers.items():
        console.print(
            f"  {name}: {tower.layers} layers × {tower.heads} heads of {tower.head_dim}, dim {tower.dim}"
        )
    if manifest.kept is not None:
        picture(console, manifest.kept, manifest.towers)
    for i, member in enumerate(manifest.members or ()):
        console.print(f"  member {i}: {count(member.kept)} heads, from {member.sha256[:12]}")
        picture(console, member.kept, manifest.towers)
    if manifest.fusion is not None:
        console.print(f"  MLPs {manifest.fusion.mlp}, trunk of {manifest.fusion.trunk} layers")
    if manifest.scores:
        console.print(f"  scores: {', '.join(manifest.scores)}")
    for entry in manifest.history:
        console.print(f"  ← {escape(shlex.join(command_line(entry)))}")
    return None


def compared(found: Comparison, *, json: bool) -> None:
    if json:
        return as_json(found.to_json())
    for note in found.notes:
        say(f"note: {note}")
    a, b = found.names
    console = out()
    console.print(f"A [bold]{escape(a)}[/]   B [bold]{escape(b)}[/]")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("layer")
    table.add_column("■ both, A or B only, · none", no_wrap=True)
    for title in (
        "kept A",
        "B",
        "both",
        "Jaccard",
        "share",
        "gone A",
        "B",
        "both",
        "Jaccard",
        "share",
    ):
        table.add_column(title, justify="right")
    for tower, rows in found.layers.items():
        for layer, row in enumerate(rows):
            kept = [set(selection[tower][layer]) for selection in found.selections]
            marks = {(True, True): "■", (True, False): "A", (False, True): "B", (False, False): "·"}
            picture = "".join(
                marks[h in kept[0], h in kept[1]] for h in range(found.towers[tower].heads)
            )
            name = f"{tower} {layer}" if len(found.layers) > 1 else str(layer)
            table.add_row(name, picture, *_overlap(row["kept"]), *_overlap(row["removed"]))
    table.add_row("all", "", *_overlap(found.kept), *_overlap(found.removed), style="bold")
    console.print(table)
    shown = [
        f"{'–' if o.jsd is None else f'{o.jsd:.3f}'} over the {what} heads"
        for what, o in (("kept", found.kept), ("removed", found.removed))
    ]
    console.print(f"Jensen–Shannon divergence in nats (at most 0.693): {', '.join(shown)}")
    return None


def _overlap(found: Overlap) -> list[str]:
    shares = ["–" if x is None else f"{x:.2f}" for x in (found.jaccard, found.share)]
    return [str(found.a), str(found.b), str(found.common), *shares]
