"""What people see: tables, progress, errors. The only module that prints, and the only one that knows rich."""

from __future__ import annotations

import contextlib
import json as jsonlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hydrasurgeon.heads import Kept, count

if TYPE_CHECKING:
    from hydrasurgeon.errors import HydraError
    from hydrasurgeon.manifest import Score, Step, Tower
    from hydrasurgeon.report import Report, Result
    from hydrasurgeon.stages.bench import Benched
    from hydrasurgeon.stages.compare import Comparison, Overlap
    from hydrasurgeon.stages.evaluate import Evaluation
    from hydrasurgeon.stages.export import Export
    from hydrasurgeon.stages.finetune import Finetuned
    from hydrasurgeon.stages.fuse import Fused
    from hydrasurgeon.stages.inspect import Inspection
    from hydrasurgeon.stages.prune import Pruned
    from hydrasurgeon.stages.score import Scored

__all__ = [
    "benched",
    "compared",
    "evaluated",
    "failed",
    "finetuned",
    "fused",
    "inspected",
    "progress",
    "pruned",
    "raw",
    "report_tables",
    "say",
    "scored",
]

PLAIN_EVERY_SECONDS = 10.0


def _out() -> Console:
    """A terminal has its own width; a file or a pipe must not cut lines."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=200)


def _err() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def failed(error: HydraError) -> None:
    """A user's mistake: what and where, then what to do next."""
    console = _err()
    console.print(f"[bold red]error:[/] {escape(error.message)}")
    if error.hint:
        console.print(f"       {escape(error.hint)}")


def raw(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def say(text: str, *, style: str = "") -> None:
    _err().print(escape(text), style=style)


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar with an ETA on a terminal, a plain line now and then elsewhere, nothing when quiet."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=_err(), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            )
    else:
        yield _plain_progress()


def _plain_progress() -> Callable[[str, int, int], None]:
    last: float | None = None

    def tick(what: str, done: int, total: int) -> None:
        nonlocal last
        if last is None:
            last = time.monotonic()
        if time.monotonic() - last >= PLAIN_EVERY_SECONDS:
            last = time.monotonic()
            say(f"{what}: {done}/{total}")

    return tick


def scored(found: Scored, *, json: bool, quiet: bool) -> None:
    result = found.result
    if not found.is_main:
        return None
    if json:
        return _json(
            {
                "path": str(found.path),
                "method": found.method,
                "score": result.model_dump(mode="json", exclude_none=True),
            }
        )
    if quiet:
        return None
    console = _out()
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
        return _json(
            {
                "path": str(result.path),
                "removed": result.removed,
                "kept": manifest.kept,
                "notes": list(result.notes),
            }
        )
    if quiet:
        return None
    for note in result.notes:
        say(f"note: {note}")
    console = _out()
    console.print(
        f"[bold]{result.path}[/]: {result.removed} heads removed, {count(manifest.kept or {})} kept"
    )
    _picture(console, manifest.kept or {}, manifest.towers)
    return None


def finetuned(result: Finetuned, *, json: bool, quiet: bool) -> None:
    trained = result.trained
    if not trained.is_main:
        return None
    if json:
        return _json(
            {
                "path": str(result.path),
                "steps": trained.steps,
                "loss": trained.loss,
                "log": list(trained.log),
            }
        )
    if quiet:
        return None
    console = _out()
    for entry in trained.log:
        measured = (
            f"  val accuracy {entry['val_accuracy']:.4f}  val nll {entry['val_nll']:.4f}"
            if "val_accuracy" in entry
            else ""
        )
        console.print(f"  epoch {entry['epoch']:g}  loss {entry['loss']:.4f}{measured}")
    console.print(f"[bold]{result.path}[/]: {trained.steps} steps")
    return None


def fused(result: Fused, *, json: bool, quiet: bool) -> None:
    manifest = result.manifest
    fusion, agreement = manifest.fusion, result.agreement
    if json:
        return _json(
            {
                "path": str(result.path),
                "members": len(manifest.members or ()),
                "fusion": fusion.model_dump() if fusion else None,
                "bytes_members": result.bytes_members,
                "bytes_stored": result.bytes_stored,
                "agreement": vars(agreement) if agreement else None,
            }
        )
    if quiet:
        return None
    console = _out()
    saved = 1 - result.bytes_stored / result.bytes_members
    console.print(
        f"[bold]{result.path}[/]: {len(manifest.members or ())} members, {_bytes(result.bytes_stored)} "
        f"instead of {_bytes(result.bytes_members)} ({100 * saved:.0f} % saved), trunk of {fusion.trunk if fusion else 0} layers"
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
    return None


def evaluated(evaluation: Evaluation, *, json: bool, quiet: bool) -> None:
    for name in evaluation.skipped:
        if not quiet:
            say(f"skipped: {name}")
    if json:
        return raw(evaluation.report.to_json())
    if not quiet:
        for table in report_tables(evaluation.report):
            _out().print(table)
    return None


def report_tables(report: Report) -> list[Table]:
    """What people read: in-distribution quality and cost, then OOD detection; the best of each column in bold."""
    tables = [_table(report, "in distribution", _quality)]
    if any(result.ood for result in report.results):
        tables.append(_table(report, "out of distribution", _foreign))
    return tables


def _table(report: Report, title: str, cells: Callable[[Result], dict[str, float]]) -> Table:
    rows = [cells(result) for result in report.results]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    best = {
        name: _best(name, [_cell(name, row[name]) for row in rows if name in row])
        for name in columns
    }
    for result, row in zip(report.results, rows, strict=True):
        shown = [_cell(name, row.get(name)) for name in columns]
        marked = [
            f"[bold]{cell}[/]" if cell == best[name] else cell
            for name, cell in zip(columns, shown, strict=True)
        ]
        table.add_row(escape(_title(result)), *marked)
    return table


def _title(result: Result) -> str:
    return f"ensemble of {result.members}" if result.kind == "ensemble" else result.name


def _quality(result: Result) -> dict[str, float]:
    i = result.id
    row: dict[str, float] = {
        "Acc": i.accuracy,
        "Brier": i.brier,
        "NLL": i.nll,
        "ECE": i.ece,
        "aECE": i.aece,
    }
    row |= {"MI": result.diversity.mi, "DI": result.diversity.disagreement}
    if result.cost is not None:
        row |= {
            "params M": result.cost.params / 1e6,
            "MACs M": result.cost.macs / 1e6,
        }
        if result.cost.latency_ms is not None:
            row["ms"] = result.cost.latency_ms
    return row


def _foreign(result: Result) -> dict[str, float]:
    row: dict[str, float] = {}
    for group, average in result.ood_average.items():
        if group != "all" or len(result.ood_average) > 2:
            row |= {
                f"AUROC {group}": average.auroc,
                f"FPR95 {group}": average.fpr95,
                f"AUPR {group}": average.aupr,
            }
    return row


def benched(found: Benched, *, json: bool, quiet: bool) -> None:
    if json:
        return raw(found.model_dump_json(indent=1))
    for text in found.notes:
        say(f"note: {text}")
    if quiet:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = (
        "params M",
        "MACs M",
        "of single",
        "dtype",
        "batch",
        "ms",
        "samples/s",
        "peak MB",
        "of single",
    )
    table.add_column("model", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    for contender in found.results:
        head = [
            f"{escape(contender.name)} ({contender.kind})", _cell("params M", contender.params / 1e6),
            _cell("MACs M", contender.macs / 1e6), _times(contender.macs_ratio),
        ]  # fmt: skip
        for point in contender.points:
            table.add_row(
                *head, point.dtype, str(point.batch), f"{point.latency_ms:.2f}", f"{point.throughput:.1f}",
                f"{point.peak_bytes / 1e6:.1f}", _times(point.ratio),
            )  # fmt: skip
            head = [""] * len(head)
    _out().print(table)
    return None


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


HIGHER_IS_BETTER = ("Acc", "AUROC", "AUPR")
UNRANKED = ("MI", "DI")  # more diversity is neither good nor bad by itself
COSTS = ("params M", "MACs M", "ms")


def _best(name: str, values: list[str]) -> str | None:
    if name in UNRANKED or len(values) < 2:
        return None
    return (max if name.startswith(HIGHER_IS_BETTER) else min)(values, key=float)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name in COSTS:
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return f"{value:.3f}"


def exported(done: Export, *, json: bool) -> None:
    if json:
        return _json(
            {
                "path": str(done.path),
                "bytes": done.nbytes,
                "inputs": list(done.inputs),
                "outputs": list(done.outputs),
                "max_difference": done.max_difference,
            }
        )
    _out().print(
        f"[bold]{done.path}[/]: {', '.join(done.inputs)} → {', '.join(done.outputs)}; onnxruntime differs from "
        f"torch by at most {done.max_difference:.2g}"
    )
    return None


def inspected(found: Inspection, *, json: bool) -> None:
    manifest = found.manifest
    if json:
        about = {
            "path": str(found.path),
            "parameters": found.parameters,
            "bytes": found.nbytes,
            "dtypes": list(found.dtypes),
        }
        return _json(
            about
            | {
                "recorded": found.recorded,
                "note": found.note,
                "manifest": jsonlib.loads(manifest.to_json()),
            }
        )
    console = _out()
    if found.note:
        say(f"note: {found.note}")
    model = manifest.model
    console.print(f"[bold]{found.path}[/]")
    console.print(
        f"  {manifest.kind} of {model.family}:{escape(model.arch)}, {model.num_classes} classes"
    )
    console.print(
        f"  {found.parameters / 1e6:.2f} M parameters, {_bytes(found.nbytes)} as {', '.join(found.dtypes)}"
    )
    for name, tower in manifest.towers.items():
        console.print(
            f"  {name}: {tower.layers} layers × {tower.heads} heads of {tower.head_dim}, dim {tower.dim}"
        )
    if manifest.kept is not None:
        _picture(console, manifest.kept, manifest.towers)
    for i, member in enumerate(manifest.members or ()):
        console.print(f"  member {i}: {count(member.kept)} heads, from {member.sha256[:12]}")
        _picture(console, member.kept, manifest.towers)
    if manifest.fusion is not None:
        console.print(f"  MLPs {manifest.fusion.mlp}, trunk of {manifest.fusion.trunk} layers")
    if manifest.scores:
        console.print(f"  scores: {', '.join(manifest.scores)}")
    for step in manifest.history:
        console.print(f"  {_history(step)}")
    return None


def compared(found: Comparison, *, json: bool) -> None:
    if json:
        return _json(found.to_json())
    for note in found.notes:
        say(f"note: {note}")
    a, b = found.names
    console = _out()
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


def _history(step: Step) -> str:
    arguments = " ".join(
        f"--{key.replace('_', '-')} {value}"
        for key, given in step.args.items()
        for value in (given if isinstance(given, list) else [given])
    )
    sources = ", ".join(entry.name for entry in step.inputs)
    return escape(f"← {step.command} {sources} {arguments}".rstrip())


def _picture(console: Console, kept: Kept, towers: Mapping[str, Tower]) -> None:
    """A row for each layer: ■ kept, · removed."""
    for name, rows in kept.items():
        for layer, row in enumerate(rows):
            cells = "".join("■" if head in row else "·" for head in range(towers[name].heads))
            prefix = f"{name} " if len(kept) > 1 else ""
            console.print(f"    {prefix}{layer:2d} {cells} {len(row)}")


def _bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"


def _json(value: Any) -> None:
    raw(jsonlib.dumps(value, indent=1))
