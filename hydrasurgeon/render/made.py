"""Views of what stages write: scores, members, hydras, decision states, answers and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.decided_words import fitted_lines, promise_lines
from hydrasurgeon.criteria import ScoreKey
from hydrasurgeon.files.torchrun import is_main_process
from hydrasurgeon.heads import count
from hydrasurgeon.options.column_roles import DataSpec
from hydrasurgeon.render.console import (
    COLUMNS,
    Part,
    as_json,
    fields,
    notes,
    raw,
    say_about_next,
    say_skipped,
    show,
    show_next,
    show_wrapped,
    view,
)
from hydrasurgeon.render.terminal_tables import (
    Head,
    bounded,
    numbers_width,
    picture,
    show_table,
    size,
)

if TYPE_CHECKING:
    from hydrasurgeon.building.table import TableRow
    from hydrasurgeon.files.manifest import Manifest, Score
    from hydrasurgeon.sharing.base import Export
    from hydrasurgeon.stages.build import Built
    from hydrasurgeon.stages.calibrate import Calibrated
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
"""Column, factor and digits of each metric of `build`."""
COST = ("macs", "params", "time")
"""Columns of cost of `build`."""
TRIMMED = ("tokens", "texts", "changed", "rare")
"""Fields that are shown of a trimmed vocabulary."""


def _beside(path: Path, suffix: str) -> str:
    """Return `m1-tuned.safetensors` for m1.safetensors."""
    return f"{str(path).removesuffix('.safetensors')}-{suffix}.safetensors"


def _columns(manifest: Manifest, *, labelled: bool = True) -> list[str]:
    """Return the options that name the columns of the table that the last command read."""
    data = manifest.history[-1].args.get("data") if manifest.history else None
    return DataSpec.parse(data).options(labelled=labelled) if isinstance(data, str) else []


def _calibrate_next(path: Path, manifest: Manifest) -> None:
    """Print how to calibrate a model on labelled rows that no training has used."""
    risk = ["--risk", "0.05"] if manifest.model.task == "single_label" else []
    data = ["--data", "UNUSED", *_columns(manifest)]
    show_next("calibrate", str(path), *data, *risk, "-o", _beside(path, "ready"))
    say_about_next("UNUSED: labelled rows that no training has used, not even as --val")


def identity(manifest: Manifest | None) -> dict[str, str]:
    """Return the kind and hash of the written file; nothing for a decision state for any model."""
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
    show((str(result.written or result.path), "bold"), f": {result.method} scores written")
    key = ScoreKey.parse(result.method)
    if key.part == "neurons":
        _by_layer(score.values or {})
        show_next("prune", str(result.path), "--method", key.method, "--neurons", "0.5")
        return
    for tower, rows in (score.values or {}).items():
        _by_head(f"{tower}, by layer and head, in % of the highest score", rows)
    if score.order is not None:
        _removals(result.method, score)
    if result.method == "cahp":
        settings = score.settings
        why = "the curve's knee" if settings["knee"] else "no knee, so the curve's highest point"
        show(
            f"CAHP keeps {settings['count']} of {len(settings['points'])} heads from "
            f"{len(settings['clusters'])} clusters; "
            f"its own number of clusters is {settings['automatic']} ({why})"
        )
    amount = "--remove" if score.order is not None else "--keep"
    show_next("prune", str(result.path), "--method", *key.words, amount, str(_few(result)))


def _by_layer(values: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Print the lowest, median and highest score of each layer's neurons."""
    top = max((abs(v) for rows in values.values() for row in rows for v in row), default=0) or 1.0
    for tower, rows in values.items():
        lines: list[list[Part]] = []
        for at, row in enumerate(rows):
            ends = (min(row), median(row), max(row)) if row else ()
            lines.append([f"layer {at}", *(f"{100 * value / top:.1f}" for value in ends)])
        title = f"{tower}, neurons by layer, in % of the highest score"
        show_table(title, ["lowest", "median", "highest"], lines)


def _few(result: Scored) -> int:
    """Return an amount that every model can lose: half of the order, or to keep: half of a layer."""
    if result.result.order is not None:
        return max(len(result.result.order) // 2, 1)
    rows = [row for rows in (result.result.values or {}).values() for row in rows]
    return max(max(map(len, rows), default=2) // 2, 1)


def _by_head(title: str, rows: Sequence[Sequence[float]]) -> None:
    flat = [value for row in rows for value in row]
    low, high = min(flat, default=0.0), max(flat, default=0.0)
    top = max(abs(low), abs(high)) or 1.0

    def cell(value: float) -> Part:
        # Bold in the upper third, dim in the lower: it shows on dark and on light terminals.
        third = (high - low) / 3
        style = "bold" if value >= high - third else "dim" if value <= low + third else ""
        return f"{100 * value / top:.0f}", style

    heads = [str(head) for head in range(max(map(len, rows), default=0))]
    show_table(title, heads, [[f"layer {at}", *map(cell, row)] for at, row in enumerate(rows)])


def _removals(method: str, result: Score) -> None:
    """Print the removal order, and what was left of the objective after each step."""
    start = result.settings.get("start")
    before = f" ({start:.3f} before the first)" if start is not None else ""
    show(f"{method}: layer.head in removal order, and the objective after each removal{before}")
    steps = list(zip(result.order or (), result.trace or (), strict=True))
    several = len({tower for (tower, _, _), _ in steps}) > 1
    entries = [
        f"  {f'{tower} ' if several else ''}{layer}.{head} {score:.3f} "
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
            f": {trimmed.tokens[1]:,} of {trimmed.tokens[0]:,} tokens kept, parameters "
            f"{before:,} → {after:,} (−{100 * (1 - after / before):.0f} %)",
        )
        show(
            f"  {trimmed.changed:,} of these {trimmed.texts:,} texts lost a token; "
            f"at least {100 * trimmed.rare:.0f} % of new texts will"
        )
        if not result.removed and manifest.kept_neurons is None:
            return
    neurons = sum(len(row) for rows in (manifest.kept_neurons or {}).values() for row in rows)
    also = f", {neurons:,} neurons kept" if neurons else ""
    show(
        (str(result.path), "bold"),
        f": {result.removed} head{'s' * (result.removed != 1)} removed, {count(manifest.kept)} kept{also}",
    )
    if result.removed:
        picture(manifest.kept, manifest.towers)
    if manifest.kind == "member":
        out = _beside(result.path, "tuned")
        data = ["--data", "TRAIN", "--val", "VAL", *_columns(manifest)]
        show_next("finetune", str(result.path), *data, "-o", out)
        say_about_next("TRAIN, VAL: labelled rows; VAL chooses the epoch")


ACROSS = 4
"""Number of heads in a line."""
TRAINED = ("steps", "loss", "log", "kept_epoch", "stopped_early")
"""Fields that are shown of a training."""


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
    done = f"trained for {trained.steps:,} step{'s' * (trained.steps != 1)}"
    if trained.stopped_early:
        done += " and stopped, as it got no better"
    if trained.kept_epoch == 0 and trained.steps:
        done += "; no epoch was better on --val than the start, which is written"
    elif trained.kept_epoch:
        done += f"; epoch {trained.kept_epoch:.3g} was the best on --val and is written"
    if result.probed and not trained.steps:
        count = result.manifest.model.num_classes
        done = f"a probe with {count} output{'s' * (count > 1)}"
    show((str(result.path), "bold"), f": {done}")
    measured = [entry for entry in trained.log if "val_nll" in entry]
    if measured:
        best = next((e for e in measured if e["epoch"] == trained.kept_epoch), measured[-1])
        names = [key for key in best if key.startswith("val_")]
        heads = [
            name.removeprefix("val_").replace("_", " ").replace("nll", "NLL") for name in names
        ]
        start = "the probe alone" if result.probed else "before training"
        rows = {start: measured[0]}
        if best is not measured[0]:
            rows[f"after epoch {best['epoch']:.3g}"] = best
        table = [[row, *(f"{rows[row][name]:.3f}" for name in names)] for row in rows]
        show_table("on the validation rows", heads, table)
    if result.manifest.kind == "member":
        hydra = str(result.path.with_name("hydra.safetensors"))
        show_next("fuse", str(result.path), "MEMBER2", "MEMBER3", "-o", hydra)
        say_about_next("MEMBER2, MEMBER3: other members, pruned and tuned alike")
    else:
        _calibrate_next(result.path, result.manifest)


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
    contents = (
        f"{result.members} members" if manifest.fusion else f"the mean of {result.members} models"
    )
    less = size(result.bytes_stored)
    if round(100 * saved):
        less += f" instead of {size(result.bytes_members)} ({100 * saved:.0f} % saved)"
    trunk = ""
    if manifest.fusion and manifest.fusion.trunk:
        layers = manifest.fusion.trunk
        trunk = f"; the first {layers} layer{'s' * (layers > 1)} are shared and run once"
    show((str(result.path), "bold"), f": {contents}, {less}{trunk}")
    if agreement:
        show(
            f"  on {agreement.samples:,} rows its probabilities differ from its members' by "
            f"{bounded(agreement.mean_difference)} on average, largest {bounded(agreement.max_difference)}"
        )
        if agreement.accuracy_members is not None and agreement.accuracy_fused is not None:
            show(
                f"  accuracy {100 * agreement.accuracy_members:.1f} % before fusing, "
                f"{100 * agreement.accuracy_fused:.1f} % after"
            )
    show_next("eval", str(result.path), *result.sources, "--data", "TEST")
    say_about_next("TEST: labelled rows; --ood far:NAME=D measures OOD detection too")
    _calibrate_next(result.path, result.manifest)


def built(result: Built, *, json: bool, quiet: bool) -> None:
    """Print what was built next to the baselines."""
    if not is_main_process():
        return None
    if json:
        return as_json(result.to_json())
    if result.path is None:
        first, *stages = result.plan
        lines = [first]
        for stage, commands in zip(stages, result.commands, strict=True):
            lines += [stage, *(f"   {command}" for command in commands)]
        lines.append("The best model within each budget is then calibrated and written to -o.")
        return raw("\n".join(lines))
    if quiet:
        return None
    show((str(result.path), "bold"), ": written")
    title = (
        "Baselines, then the best model for each budget, each measured on rows that did not fit it."
    )
    show_wrapped(title, "")
    _table(_once([*result.rows, *result.front]))
    show("")
    if result.recommendation:
        show_wrapped(result.recommendation, "")
    notes(result.notes)
    show("")
    for line in result.summary.splitlines():
        if "hydrasurgeon " in line:  # a command is copied whole
            show(line)
        else:
            show_wrapped(line.strip(), " " * (len(line) - len(line.lstrip())))
    return None


def _once(rows: Sequence[TableRow]) -> list[TableRow]:
    """Return the rows; a baseline that was chosen stands once, with its budgets."""
    named: dict[str, TableRow] = {}
    for row in rows:
        budget, _, name = row.name.partition(": ")
        if name in named and replace(named[name], name="") == replace(row, name=""):
            marked = named[name].name.removesuffix(")")
            marked = f"{name} (chosen for {budget})" if marked == name else f"{marked}, {budget})"
            named[name] = replace(row, name=marked)
        else:
            named[row.name] = row
    return [*named.values()]


def _table(rows: Sequence[TableRow]) -> None:
    measures = [name for name in WORTH if name in rows[0].worth]
    costs = [name for name in COST if name in rows[0].cost]
    heads: list[Head] = [
        "members",
        *(WORTH[name][0] for name in measures),
        *(("cost, x", n) for n in costs),
    ]
    lines = []
    for row in rows:
        worth = [f"{row.worth[n] * WORTH[n][1]:.{WORTH[n][2]}f}" for n in measures]
        cost = [f"{row.cost[name]:.2f}" if name in row.cost else "" for name in costs]
        numbers = [str(row.members), *worth, *cost]
        lines.append([row.name, *numbers])
    room = COLUMNS - numbers_width(heads, lines)
    long = [name for name, *_ in lines if len(name) > room]
    marks = {name: f"({number})" for number, name in enumerate(dict.fromkeys(long), 1)}
    show_table("", heads, [[marks.get(name, name), *numbers] for name, *numbers in lines])
    for name, mark in marks.items():
        show_wrapped(f"{mark} {name}", "")


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
    for line in fitted_lines(result.decision):
        show_wrapped(line)
    if result.decision.ood.auroc:
        ranked = sorted(result.decision.ood.auroc.items(), key=lambda pair: -pair[1])
        best = ", ".join(f"{name} {value:.3f}" for name, value in ranked[:RANKED])
        show_wrapped(f"AUROC on these data: {best}; real OOD data may be harder")
    if result.wrong_at:
        shares = [f"{100 * share:.0f} %" for share, _ in result.wrong_at]
        wrong = [f"{100 * fraction:.1f} %" for _, fraction in result.wrong_at]
        rows = [["if it answered the most confident", *shares], ["these would be wrong", *wrong]]
        show("")
        show_table("on the rows that certify", [""] * len(shares), rows)
    show("")
    for line in promise_lines(result.decision):
        show_wrapped(f"{line[0].upper()}{line[1:]}.", "")
    if result.manifest is not None:
        data = ["--data", "DATA", *_columns(result.manifest, labelled=False)]
        show_next("predict", str(result.path), *data, "-o", "answers.csv")


RANKED = 4
"""OOD scores whose AUROC is printed; --json has all."""


@view(fields("rows", "answers", "cut", "notes"))
def predicted(result: Predicted) -> None:
    """Show the number of answers, unless the rows went to stdout."""
    if result.path is None:
        return
    counts = ", ".join(f"{count:,} {kind}" for kind, count in result.answers.items())
    show((str(result.path), "bold"), f": {result.rows:,} rows{f' ({counts})' if counts else ''}")


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
            differ = f"are those of the checkpoint (difference in float64: {bounded(done.max_difference)})"
            show(path, f": its library loads it, with its calibration; probabilities {differ}")
        else:
            show(path, ": its library loads it; its answers are the model's own, not calibrated")
        return
    graph = f"{', '.join(done.inputs)} → {', '.join(done.outputs)}"
    show(path, f": an ONNX graph ({graph}, opset {done.opset})")
    outputs = "outputs" if done.quantised is None else "in 8 bits, probabilities"
    show(f"  {outputs} differ from PyTorch's by {bounded(done.max_difference)}")
    for place, compared in (
        ("8 bits change", done.quantised),
        ("--check, PyTorch → this file", done.checked),
    ):
        if compared is not None:
            changes = [
                f"{name} {value:.4f} → {compared['after'][name]:.4f}"
                for name, value in compared["before"].items()
            ]
            show(f"  {place}: {', '.join(changes)}")
