"""What a stage made: scores, members, hydras, decision states, answers and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.decided_words import decision_lines
from hydrasurgeon.files.processes import is_main_process
from hydrasurgeon.heads import count
from hydrasurgeon.lookup import format_number
from hydrasurgeon.render.console import (
    Part,
    as_json,
    fields,
    notes,
    raw,
    say_skipped,
    show,
    view,
)
from hydrasurgeon.render.tables import Head, picture, show_table, size

if TYPE_CHECKING:
    from hydrasurgeon.building.table import Row as BuildRow
    from hydrasurgeon.files.manifest import Manifest, Score
    from hydrasurgeon.stages.build import Built
    from hydrasurgeon.stages.calibrate import Calibrated
    from hydrasurgeon.stages.export import Export
    from hydrasurgeon.stages.finetune import Finetuned
    from hydrasurgeon.stages.fuse import Fused
    from hydrasurgeon.stages.predict import Predicted
    from hydrasurgeon.stages.prune import Pruned
    from hydrasurgeon.stages.score import Scored
    from hydrasurgeon.stages.serve import Served

WORTH = {
    "f1": ("f1", 1, 3),
    "accuracy": ("acc", 100, 1),
    "token_accuracy": ("tokens", 1, 3),
    "nll": ("nll", 1, 3),
    "rmse": ("rmse", 1, 3),
    "mae": ("mae", 1, 3),
    "ece": ("ece", 1, 3),
    "auroc": ("auroc", 100, 1),
    "fpr95": ("fpr95", 100, 1),
}
"""Column, factor and digits of each measure of `build`."""
COST = ("macs", "params", "time")
"""Columns of cost of `build`."""
TRIMMED = ("tokens", "texts", "changed", "rare")
"""What is told of a vocabulary."""


def identity(manifest: Manifest | None) -> dict[str, str]:
    """Return the kind and hash of what was written; nothing of a decision state for any model."""
    if manifest is None:
        return {}
    return {"kind": manifest.kind, "weights_sha256": manifest.weights_sha256}


@view(
    lambda r: (
        fields("method", "notes")(r)
        | identity(r.manifest)
        | {"written": r.written or r.path}
        | {"score": r.result.model_dump(mode="json", exclude_none=True)}
    )
)
def scored(result: Scored) -> None:
    score = result.result
    notes(score.settings.get("notes", ()))
    for tower, rows in (score.values or {}).items():
        _by_head(f"{result.method} scores, {tower}, by layer and head (bold: matters most)", rows)
    if score.order is not None:
        _removals(result.method, score)
    if result.method == "cahp":
        said = score.settings
        why = "the curve's knee" if said["knee"] else "no knee, so the curve's highest point"
        show(
            f"CAHP keeps {said['count']} of {len(said['points'])} heads from "
            f"{len(said['clusters'])} clusters; "
            f"its own number of clusters is {said['automatic']} ({why})"
        )
    show("written into ", (str(result.written or result.path), "bold"))


def _by_head(title: str, rows: Sequence[Sequence[float]]) -> None:
    flat = [value for row in rows for value in row]
    low, high = min(flat, default=0.0), max(flat, default=0.0)

    def cell(value: float) -> Part:
        # Bold in the upper third, dim in the lower: it shows on dark and on light terminals.
        third = (high - low) / 3
        style = "bold" if value >= high - third else "dim" if value <= low + third else ""
        return format_number(value), style

    heads = [str(head) for head in range(max(map(len, rows), default=0))]
    show_table(title, heads, [[f"layer {at}", *map(cell, row)] for at, row in enumerate(rows)])


def _removals(method: str, result: Score) -> None:
    """The removal order, and what was left of the objective after each step."""
    start = result.settings.get("start")
    before = f", {start:.4f} before the first removal" if start is not None else ""
    show(f"{method}, heads in the order in which they go (layer.head){before}")
    steps = list(zip(result.order or (), result.trace or (), strict=True))
    several = len({tower for (tower, _, _), _ in steps}) > 1
    entries = [
        f"  {f'{tower} ' if several else ''}{layer}.{head} {score:.4f} "
        for (tower, layer, head), score in steps
    ]
    longest = max(map(len, entries), default=1)
    for at in range(0, len(entries), ACROSS):
        show("".join(entry.ljust(longest) for entry in entries[at : at + ACROSS]).rstrip())


@view(
    lambda r: (
        fields("removed", "parameters", "notes")(r)
        | identity(r.manifest)
        | {
            "kept": r.manifest.kept,
            "vocabulary": r.vocabulary and {name: getattr(r.vocabulary, name) for name in TRIMMED},
        }
    )
)
def pruned(result: Pruned) -> None:
    manifest, trimmed = result.manifest, result.vocabulary
    if trimmed is not None:
        before, after = result.parameters
        show(
            (str(result.path), "bold"),
            f": tokens {trimmed.tokens[0]:,} → {trimmed.tokens[1]:,}, parameters "
            f"{before:,} → {after:,} (−{100 * (1 - after / before):.0f} %); "
            f"{trimmed.changed:,} of {trimmed.texts:,} texts lost a token, of new ones "
            f"{100 * trimmed.rare:.0f} % or more will",
        )
        if not result.removed and manifest.kept_neurons is None:
            return
    neurons = sum(len(row) for rows in (manifest.kept_neurons or {}).values() for row in rows)
    also = f", {neurons:,} neurons kept" if neurons else ""
    show(
        (str(result.path), "bold"),
        f": {result.removed} heads removed, {count(manifest.kept)} kept{also}",
    )
    picture(manifest.kept, manifest.towers)


ACROSS = 4
"""Heads of a line."""
TRAINED = ("steps", "loss", "log", "kept_epoch", "stopped_early")
"""What is told of a training."""


@view(
    lambda r: (
        fields("notes")(r)
        | identity(r.manifest)
        | {name: getattr(r.trained, name) for name in TRAINED}
    )
)
def finetuned(result: Finetuned) -> None:
    trained = result.trained
    say_skipped(result.skipped)
    kept = ""
    if trained.kept_epoch == 0 and trained.steps:
        kept = ", of which none was better on --val: the start is written"
    elif trained.kept_epoch:
        kept = f", the weights after epoch {trained.kept_epoch:g}, the best on --val"
    ended = ", ended as it got no better" if trained.stopped_early else ""
    done = f"{trained.steps} steps{ended}{kept}"
    if result.probed and not trained.steps:
        done = f"a probe, {result.manifest.model.num_classes} outputs"
    show((str(result.path), "bold"), f": {done}")
    measured = [entry for entry in trained.log if "val_nll" in entry]
    if measured:
        at = next((e for e in measured if e["epoch"] == trained.kept_epoch), measured[-1])
        show(f"val {_on_val(at)}")
        if at is not measured[0]:
            start = "the probe alone" if result.probed else "the start"
            show(f"{start}: {_on_val(measured[0])}")


def _on_val(entry: Mapping[str, float]) -> str:
    names = [key for key in entry if key.startswith("val_")]
    return ", ".join(
        f"{name.removeprefix('val_').replace('_', ' ')} {entry[name]:.4f}" for name in names
    )


def _fused(result: Fused) -> dict[str, Any]:
    manifest = result.manifest
    about = fields("bytes_members", "bytes_stored", "notes")(result) | identity(manifest)
    return about | {
        "members": result.members,
        "fusion": manifest.fusion and manifest.fusion.model_dump(exclude_none=True),
        "agreement": vars(result.agreement) if result.agreement else None,
    }


@view(_fused)
def fused(result: Fused) -> None:
    manifest, agreement = result.manifest, result.agreement
    saved = 1 - result.bytes_stored / result.bytes_members
    what = (
        f"{result.members} members" if manifest.fusion else f"the mean of {result.members} models"
    )
    less = (
        f"{size(result.bytes_stored)} instead of {size(result.bytes_members)} "
        f"({100 * saved:.0f} % saved)"
    )
    trunk = f", trunk of {manifest.fusion.trunk} layers" if manifest.fusion else ""
    show((str(result.path), "bold"), f": {what}, {less}{trunk}")
    if agreement:
        show(
            f"  against its members on {agreement.samples} samples: probabilities differ by"
            f" {agreement.mean_difference:.2g} on average, {agreement.max_difference:.2g} at "
            "most; KL"
            f" {agreement.kl:.2g}"
        )
        if agreement.accuracy_members is not None and agreement.accuracy_fused is not None:
            show(
                f"  accuracy {agreement.accuracy_members:.4f} unfused, "
                f"{agreement.accuracy_fused:.4f} fused"
            )


def built(result: Built, *, json: bool, quiet: bool) -> None:
    """What was decided, next to the plain rivals."""
    if not is_main_process():
        return None
    if json:
        return as_json(result.to_json())
    if result.path is None:
        return raw("\n".join(result.plan))
    if quiet:
        return None
    _table(
        "plain rivals, calibrated; each half of the validation rows is judged by the other",
        result.rows,
    )
    show("")
    _table("decided within each budget", result.front)
    show("")
    show(f"made of {', '.join(result.members)}")
    notes(result.notes)
    show("")
    for line in result.summary.splitlines():
        show(line)
    return show("written ", (str(result.path), "bold"))


def _table(title: str, rows: Sequence[BuildRow]) -> None:
    measures = [name for name in WORTH if name in rows[0].worth]
    costs = [name for name in COST if name in rows[0].cost]
    heads: list[Head] = [
        "members",
        *(WORTH[name][0] for name in measures),
        *(("x the model", n) for n in costs),
    ]
    lines = []
    for row in rows:
        worth = [f"{row.worth[n] * WORTH[n][1]:.{WORTH[n][2]}f}" for n in measures]
        cost = [f"{row.cost[name]:.2f}" if name in row.cost else "" for name in costs]
        lines.append([row.name, str(row.members), *worth, *cost])
    show_table(title, heads, lines)


@view(
    lambda result: (
        fields("notes")(result)
        | identity(result.manifest)
        | {"decision": result.decision.model_dump(mode="json")}
    )
)
def calibrated(result: Calibrated) -> None:
    say_skipped(result.skipped)
    show((str(result.path), "bold"), ": calibrated")
    for line in decision_lines(result.decision):
        show(f"  {line}")
    if result.decision.ood.auroc:
        ranked = sorted(result.decision.ood.auroc.items(), key=lambda pair: -pair[1])
        show("  AUROC: " + ", ".join(f"{name} {value:.3f}" for name, value in ranked))


@view(fields("rows", "answers", "cut", "notes"))
def predicted(result: Predicted) -> None:
    """How many answers there are; rows that went to stdout have been there."""
    if result.path is None:
        return
    counts = ", ".join(f"{count} {what}" for what, count in result.answers.items())
    show((str(result.path), "bold"), f": {result.rows} rows{f' ({counts})' if counts else ''}")


@view(fields("address", "inputs"))
def served(result: Served) -> None:
    kept = "" if result.path is None else f"; answers are in {result.path}"
    show(f"stopped: {result.inputs} inputs answered{kept}")


def _exported(done: Export) -> dict[str, Any]:
    names = ("format", "inputs", "outputs", "max_difference", "opset")
    changes = {"int8": done.quantised, "check": done.checked}
    return fields(*names, "notes")(done) | {"bytes": done.nbytes} | changes


@view(_exported)
def exported(done: Export) -> None:
    path = (str(done.path), "bold")
    if done.format == "stock":
        if done.calibrated:
            differ = f"differ from the checkpoint's by at most {done.max_difference:.2g} in float64"
            show(path, f": its library loads it, calibrated; probabilities {differ}")
        else:
            show(path, ": its library loads it; its answers are the model's own, not calibrated")
        return
    graph = f": {', '.join(done.inputs)} → {', '.join(done.outputs)}"
    ran, opset = "onnxruntime", f" (opset {done.opset})"
    if done.quantised is not None:
        ran = "in int8, a probability"
    differs = f"{ran} differs from torch by at most {done.max_difference:.2g}"
    show(path, f"{graph}{opset}; {differs}")
    for what, compared in (("in int8", done.quantised), ("in the file", done.checked)):
        if compared is not None:
            changes = [
                f"{name} {value:.4f} → {compared['after'][name]:.4f}"
                for name, value in compared["before"].items()
            ]
            show(f"  {what}: {', '.join(changes)}")
