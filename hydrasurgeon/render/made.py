"""What a stage made: the scores, the member, the training log, the hydra, the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hydrasurgeon.heads import count
from hydrasurgeon.render.console import as_json, out, picture, say, size

if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Score
    from hydrasurgeon.stages.export import Export
    from hydrasurgeon.stages.finetune import Finetuned
    from hydrasurgeon.stages.fuse import Fused
    from hydrasurgeon.stages.prune import Pruned
    from hydrasurgeon.stages.score import Scored


__all__ = ["exported", "finetuned", "fused", "pruned", "scored"]


def scored(found: Scored, *, json: bool, quiet: bool) -> None:
    result = found.result
    if not found.is_main:
        return None
    if json:
        return as_json(
            {
                "path": str(found.path),
                "method": found.method,
                "score": result.model_dump(mode="json", exclude_none=True),
            }
        )
    if quiet:
        return None
    console = out()
    for tower, rows in (result.values or {}).items():
        console.print(f"{found.method} scores, {tower} (layer × head, darker = matters less)")
        flat = [value for row in rows for value in row]
        low, high = min(flat), max(flat)
        for layer, row in enumerate(rows):
            cells = " ".join(f"[{_shade(value, low, high)}]{value:9.3g}[/]" for value in row)
            console.print(f"  {layer:2d}  {cells}")
    if result.order is not None:
        _removals(console, found.method, result)
    if found.method == "cahp":
        console.print(_cahp(result.settings))
    console.print(f"written into [bold]{found.path}[/]")
    return None


def _removals(console: Console, method: str, result: Score) -> None:
    """The removal order, and what was left of the objective after each step."""
    for note in result.settings.get("notes", ()):
        say(f"note: {note}")
    start = result.settings.get("start")
    before = f", {start:.4f} before the first removal" if start is not None else ""
    console.print(f"{method}, heads in the order in which they go (layer.head){before}")
    for at in range(0, len(result.order or ()), 8):
        entries = zip(
            (result.order or ())[at : at + 8], (result.trace or ())[at : at + 8], strict=True
        )
        console.print("  " + "   ".join(f"{la}.{h} {score:.4f}" for (_, la, h), score in entries))


def _cahp(settings: Mapping[str, Any]) -> str:
    why = "the curve's knee" if settings["knee"] else "no knee, so the curve's highest point"
    return (
        f"CAHP keeps {settings['count']} of {len(settings['points'])} heads from {len(settings['clusters'])} clusters; "
        f"its own number of clusters is {settings['automatic']} ({why})"
    )


def _shade(value: float, low: float, high: float) -> str:
    share = 0.0 if high <= low else (value - low) / (high - low)
    return f"grey{int(35 + 65 * share)}"


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
    for note in result.notes:
        say(f"note: {note}")
    console = out()
    console.print(
        f"[bold]{result.path}[/]: {result.removed} heads removed, {count(manifest.kept or {})} kept"
    )
    picture(console, manifest.kept or {}, manifest.towers)
    return _pushed(console, result.hub)


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
                "hub": result.hub,
            }
        )
    if quiet:
        return None
    console = out()
    for entry in trained.log:
        measured = (
            f"  val accuracy {entry['val_accuracy']:.4f}  val nll {entry['val_nll']:.4f}"
            if "val_accuracy" in entry
            else ""
        )
        console.print(f"  epoch {entry['epoch']:g}  loss {entry['loss']:.4f}{measured}")
    console.print(f"[bold]{result.path}[/]: {trained.steps} steps")
    return _pushed(console, result.hub)


def fused(result: Fused, *, json: bool, quiet: bool) -> None:
    manifest = result.manifest
    fusion, agreement = manifest.fusion, result.agreement
    if json:
        return as_json(
            {
                "path": str(result.path),
                "members": len(manifest.members or ()),
                "fusion": fusion.model_dump() if fusion else None,
                "bytes_members": result.bytes_members,
                "bytes_stored": result.bytes_stored,
                "agreement": vars(agreement) if agreement else None,
                "hub": result.hub,
            }
        )
    if quiet:
        return None
    console = out()
    saved = 1 - result.bytes_stored / result.bytes_members
    console.print(
        f"[bold]{result.path}[/]: {len(manifest.members or ())} members, {size(result.bytes_stored)} "
        f"instead of {size(result.bytes_members)} ({100 * saved:.0f} % saved), trunk of {fusion.trunk if fusion else 0} layers"
    )
    if agreement:
        console.print(
            f"  against its members on {agreement.samples} samples: probabilities differ by {agreement.mean_difference:.2g} "
            f"on average, {agreement.max_difference:.2g} at most; KL {agreement.kl:.2g}"
        )
        if agreement.accuracy_members is not None and agreement.accuracy_fused is not None:
            console.print(
                f"  accuracy {agreement.accuracy_members:.4f} unfused, {agreement.accuracy_fused:.4f} fused"
            )
    return _pushed(console, result.hub)


def _pushed(console: Console, hub: str | None) -> None:
    if hub is not None:
        console.print(f"uploaded to [bold]{hub}[/]")


def exported(done: Export, *, json: bool) -> None:
    if json:
        return as_json(
            {
                "path": str(done.path),
                "bytes": done.nbytes,
                "inputs": list(done.inputs),
                "outputs": list(done.outputs),
                "max_difference": done.max_difference,
            }
        )
    out().print(
        f"[bold]{done.path}[/]: {', '.join(done.inputs)} → {', '.join(done.outputs)}; onnxruntime differs from "
        f"torch by at most {done.max_difference:.2g}"
    )
    return None
