"""What a checkpoint is, and how alike two selections of heads are."""

from __future__ import annotations

import json as jsonlib
import shlex
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.decided_words import decision_lines
from hydrasurgeon.files.history import command_line
from hydrasurgeon.heads import count
from hydrasurgeon.render.console import as_json, show
from hydrasurgeon.render.pieces import millions, notes, picture, size
from hydrasurgeon.render.tables import Column, Row, Table, show_table

if TYPE_CHECKING:
    from hydrasurgeon.stages.compare import Comparison, Overlap
    from hydrasurgeon.stages.inspect import Inspection


def inspected(inspection: Inspection, *, json: bool, quiet: bool = False) -> None:
    manifest = inspection.manifest
    if json:
        about = {
            "path": str(inspection.path),
            "parameters": inspection.parameters,
            "in_memory": inspection.in_memory,
            "bytes": inspection.nbytes,
            "dtypes": list(inspection.dtypes),
        }
        return as_json(
            about
            | {"recorded": inspection.recorded, "note": inspection.note, "manifest": jsonlib.loads(manifest.to_json())}
        )
    if inspection.note:
        notes([inspection.note])
    model = manifest.model
    show((str(inspection.path), "bold"))
    show(f"  {manifest.kind} of {model.family}:{model.arch}, {model.num_classes} classes")
    dtypes = ", ".join(inspection.dtypes)
    copies = ""
    if inspection.in_memory != inspection.parameters:
        copies = f" ({millions(inspection.in_memory)} at work, where members have copies of heads)"
    show(f"  {millions(inspection.parameters)} parameters{copies}, {size(inspection.nbytes)} as {dtypes}")
    for name, tower in manifest.towers.items():
        show(f"  {name}: {tower.layers} layers × {tower.heads} heads of {tower.head_dim}, dim {tower.dim}")
    if manifest.kind == "hydra":
        for i, member in enumerate(manifest.members):
            show(f"  member {i}: {count(member.kept)} heads, from {member.sha256[:12]}")
            picture(member.kept, manifest.towers)
        show(f"  MLPs {manifest.fusion.mlp}, trunk of {manifest.fusion.trunk} layers")
    else:
        picture(manifest.kept, manifest.towers)
    if manifest.scores:
        show(f"  scores: {', '.join(manifest.scores)}")
    if manifest.decision is not None:
        show("  decision state:")
        for line in decision_lines(manifest.decision):
            show(f"    {line}")
    for step in manifest.history:
        show(f"  ← {shlex.join(command_line(step))}")
    return None


MARKS = {(True, True): "■", (True, False): "A", (False, True): "B", (False, False): "·"}
"""How a head is drawn that A keeps, and B."""
OVERLAP = ("A", "B", "both", "Jaccard", "share")
"""The columns of one comparison of two sets."""


def compared(comparison: Comparison, *, json: bool, quiet: bool = False) -> None:
    if json:
        return as_json(comparison.to_json())
    notes(comparison.notes)
    a, b = comparison.names
    show("A ", (a, "bold"), "   B ", (b, "bold"))
    show_table(_by_layer(comparison))
    divergences = [
        f"{'–' if overlap.jsd is None else f'{overlap.jsd:.3f}'} over the {what} heads"
        for what, overlap in (("kept", comparison.kept), ("removed", comparison.removed))
    ]
    show(f"Jensen–Shannon divergence in nats (at most 0.693): {', '.join(divergences)}")
    return None


def _by_layer(comparison: Comparison) -> Table:
    rows = []
    for tower, layers in comparison.layers.items():
        for layer, row in enumerate(layers):
            a, b = (set(selection[tower][layer]) for selection in comparison.selections)
            heads = range(comparison.towers[tower].heads)
            marks = "".join(MARKS[head in a, head in b] for head in heads)
            name = f"{tower} {layer}" if len(comparison.layers) > 1 else f"layer {layer}"
            rows.append(Row(name, (marks, *_overlap(row["kept"]), *_overlap(row["removed"]))))
    total = ("", *_overlap(comparison.kept), *_overlap(comparison.removed))
    columns = (
        Column("", left=True),
        *(Column(name, group="kept") for name in OVERLAP),
        *(Column(name, group="removed") for name in OVERLAP),
    )
    title = "heads kept by both ■, by A or B only, by none ·"
    return Table(title, columns, (*rows, Row("all", total, style="bold")))


def _overlap(overlap: Overlap) -> list[str]:
    shares = ["–" if x is None else f"{x:.2f}" for x in (overlap.jaccard, overlap.share)]
    return [str(overlap.a), str(overlap.b), str(overlap.common), *shares]
