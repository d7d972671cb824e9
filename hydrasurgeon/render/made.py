"""What a stage made: the scores, the member, the training log, the hydra, the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydrasurgeon.heads import count
from hydrasurgeon.render.console import Part, as_json, show, width
from hydrasurgeon.render.pieces import notes, picture, size
from hydrasurgeon.render.tables import Column, Row, Table, show_table

if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Score
    from hydrasurgeon.sharing.trial import Compared
    from hydrasurgeon.stages.export import Export
    from hydrasurgeon.stages.finetune import Finetuned
    from hydrasurgeon.stages.fuse import Fused
    from hydrasurgeon.stages.prune import Pruned
    from hydrasurgeon.stages.score import Scored


def scored(result: Scored, *, json: bool, quiet: bool) -> None:
    score = result.result
    if not result.is_main:
        return None
    if json:
        return as_json(
            {
                "path": str(result.path),
                "method": result.method,
                "score": score.model_dump(mode="json", exclude_none=True),
                "notes": list(result.notes),
            }
        )
    if quiet:
        return None
    notes((*result.notes, *score.settings.get("notes", ())))
    for tower, rows in (score.values or {}).items():
        show_table(_by_head(f"{result.method} scores, {tower}, by layer and head (bold: matters most)", rows))
    if score.order is not None:
        _removals(result.method, score)
    if result.method == "cahp":
        show(_cahp(score.settings))
    show("written into ", (str(result.path), "bold"))
    return None


def _by_head(title: str, rows: Sequence[Sequence[float]]) -> Table:
    flat = [value for row in rows for value in row]
    low, high = min(flat, default=0.0), max(flat, default=0.0)

    def cell(value: float) -> Part:
        return f"{value:.3g}", _weight(value, low, high)

    heads = max(map(len, rows), default=0)
    return Table(
        title,
        tuple(Column(str(head)) for head in range(heads)),
        tuple(Row(f"layer {layer}", tuple(map(cell, row))) for layer, row in enumerate(rows)),
    )


def _weight(value: float, low: float, high: float) -> str:
    """Bold in the upper third, dim in the lower: it shows on dark and on light terminals."""
    if value >= low + 2 / 3 * (high - low):
        return "bold"
    return "dim" if value <= low + 1 / 3 * (high - low) else ""


def _removals(method: str, result: Score) -> None:
    """The removal order, and what was left of the objective after each step."""
    start = result.settings.get("start")
    before = f", {start:.4f} before the first removal" if start is not None else ""
    show(f"{method}, heads in the order in which they go (layer.head){before}")
    steps = list(zip(result.order or (), result.trace or (), strict=True))
    towers = {tower for (tower, _, _), _ in steps}
    entries = [
        f"  {f'{tower} ' if len(towers) > 1 else ''}{layer}.{head} {score:.4f} "
        for (tower, layer, head), score in steps
    ]
    longest = max(map(len, entries), default=1)
    across = max(1, min(8, (width() or 8 * longest) // longest))
    for at in range(0, len(entries), across):
        show("".join(entry.ljust(longest) for entry in entries[at : at + across]).rstrip())


def _cahp(settings: Mapping[str, Any]) -> str:
    why = "the curve's knee" if settings["knee"] else "no knee, so the curve's highest point"
    return (
        f"CAHP keeps {settings['count']} of {len(settings['points'])} heads from {len(settings['clusters'])} clusters; "
        f"its own number of clusters is {settings['automatic']} ({why})"
    )


def pruned(result: Pruned, *, json: bool, quiet: bool) -> None:
    manifest = result.manifest
    if json:
        return as_json(
            {
                "path": str(result.path),
                "removed": result.removed,
                "kept": manifest.kept,
                "notes": list(result.notes),
                "hub": result.hub,
            }
        )
    if quiet:
        return None
    notes(result.notes)
    kept = count(manifest.kept)
    show((str(result.path), "bold"), f": {result.removed} heads removed, {kept} kept")
    picture(manifest.kept, manifest.towers)
    return _pushed(result.hub)


def finetuned(result: Finetuned, *, json: bool, quiet: bool) -> None:
    trained = result.trained
    if not trained.is_main:
        return None
    if json:
        return as_json(
            {
                "path": str(result.path),
                "steps": trained.steps,
                "loss": trained.loss,
                "log": list(trained.log),
                "notes": list(result.notes),
                "hub": result.hub,
            }
        )
    if quiet:
        return None
    notes(result.notes)
    for entry in trained.log:
        measured = (
            f"  val accuracy {entry['val_accuracy']:.4f}  val nll {entry['val_nll']:.4f}"
            if "val_accuracy" in entry
            else ""
        )
        show(f"  epoch {entry['epoch']:g}  loss {entry['loss']:.4f}{measured}")
    show((str(result.path), "bold"), f": {trained.steps} steps")
    return _pushed(result.hub)


def fused(result: Fused, *, json: bool, quiet: bool) -> None:
    manifest = result.manifest
    fusion, agreement = manifest.fusion, result.agreement
    if json:
        return as_json(
            {
                "path": str(result.path),
                "members": len(manifest.members),
                "fusion": fusion.model_dump(exclude_none=True),
                "bytes_members": result.bytes_members,
                "bytes_stored": result.bytes_stored,
                "agreement": vars(agreement) if agreement else None,
                "notes": list(result.notes),
                "hub": result.hub,
            }
        )
    if quiet:
        return None
    notes(result.notes)
    saved = 1 - result.bytes_stored / result.bytes_members
    show(
        (str(result.path), "bold"),
        f": {len(manifest.members)} members, {size(result.bytes_stored)} "
        f"instead of {size(result.bytes_members)} ({100 * saved:.0f} % saved), trunk of {fusion.trunk} layers",
    )
    if agreement:
        show(
            f"  against its members on {agreement.samples} samples: probabilities differ by"
            f" {agreement.mean_difference:.2g} on average, {agreement.max_difference:.2g} at most; KL"
            f" {agreement.kl:.2g}"
        )
        if agreement.accuracy_members is not None and agreement.accuracy_fused is not None:
            show(f"  accuracy {agreement.accuracy_members:.4f} unfused, {agreement.accuracy_fused:.4f} fused")
    return _pushed(result.hub)


def _pushed(hub: str | None) -> None:
    if hub is not None:
        show("uploaded to ", (hub, "bold"))


def exported(done: Export, *, json: bool, quiet: bool) -> None:
    if json:
        return as_json(
            {
                "path": str(done.path),
                "beside": None if done.beside is None else str(done.beside),
                "format": done.format,
                "bytes": done.nbytes,
                "inputs": list(done.inputs),
                "outputs": list(done.outputs),
                "max_difference": done.max_difference,
                "opset": done.opset,
                "int8": _both(done.quantised),
                "check": _both(done.checked),
                "notes": list(done.notes),
            }
        )
    if quiet:
        return None
    notes(done.notes)
    path = (str(done.path), "bold")
    if done.format == "padded":
        show(
            path, f": all heads, zeros for those that are gone; differs by at most {done.max_difference:.2g} in float64"
        )
        return None
    graph = f": {', '.join(done.inputs)} → {', '.join(done.outputs)}"
    ran = "the file" if done.opset is None else "onnxruntime"
    opset = "" if done.opset is None else f" (opset {done.opset})"
    if done.beside is not None:
        show((str(done.beside), "bold"), ": of the rows that go on")
    show(path, f"{graph}{opset}; {ran} differs from torch by at most {done.max_difference:.2g}")
    for what, compared in (("in int8", done.quantised), ("in the file", done.checked)):
        if compared is not None:
            changes = [f"{name} {value:.4f} → {compared.after[name]:.4f}" for name, value in compared.before.items()]
            show(f"  {what}: {', '.join(changes)}")
    return None


def _both(compared: Compared | None) -> dict[str, dict[str, float]] | None:
    return None if compared is None else {"before": compared.before, "after": compared.after}
