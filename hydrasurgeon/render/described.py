"""Views of checkpoints, of checks, of heads, and of measurements."""

from __future__ import annotations

import json as jsonlib
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.decided_words import decision_lines
from hydrasurgeon.criteria import ScoreKey
from hydrasurgeon.files.decision_file import DecisionFile
from hydrasurgeon.files.history import command_line
from hydrasurgeon.files.manifest import OF_WORDS
from hydrasurgeon.heads import count
from hydrasurgeon.lookup import format_number
from hydrasurgeon.measuring.results import ABSENT, COST
from hydrasurgeon.render.console import (
    Part,
    as_json,
    fields,
    notes,
    raw,
    say_skipped,
    show,
    show_wrapped,
    view,
)
from hydrasurgeon.render.terminal_tables import millions, picture, show_table, size
from hydrasurgeon.report.columns import cost_notes, decimals_of

if TYPE_CHECKING:
    from hydrasurgeon.files.decided import DecisionRecord, Seen
    from hydrasurgeon.files.manifest import Step
    from hydrasurgeon.stages.bench import Benched
    from hydrasurgeon.stages.evaluate import Evaluation
    from hydrasurgeon.stages.inspect import Inspection
    from hydrasurgeon.stages.monitor import Monitored
    from hydrasurgeon.stages.verify import Verification


OUTCOMES = {
    True: ("holds", "green"),
    False: ("does not hold", "bold red"),
    None: ("not checked", "yellow"),
}
"""Mark and style of the outcome of a check."""
SMALLEST_P = 0.0001
"""A p-value below it is printed as a bound."""
SMALLEST_SHARE = 0.001
"""Difference of fractions that is worth a sentence."""
MARK_CELLS = 15
"""Width of the longest mark with a gap, in characters."""


def inspected(result: Inspection | DecisionFile | str, *, json: bool, quiet: bool) -> None:
    """Show a checkpoint, its history as a script, or the schema of manifests."""
    if isinstance(result, str):
        raw(result)
    elif isinstance(result, DecisionFile):
        _decision_file(result, json=json)
    else:
        if result.note and not json and not quiet:
            notes([result.note])
        _checkpoint(result, json=json)


@view(lambda file: file.header.model_dump(mode="json"))
def _decision_file(file: DecisionFile) -> None:
    header = file.header
    show((str(file.path), "bold"))
    show(f"  decision state for any model, classes: {header.classes}, members: {header.members}")
    _decision(header.decision, header.history)


def _of_checkpoint(inspection: Inspection) -> dict[str, Any]:
    about = fields("parameters", "in_memory", "dtypes", "recorded", "note")(inspection)
    return about | {
        "bytes": inspection.nbytes,
        "manifest": jsonlib.loads(inspection.manifest.to_json()),
    }


@view(_of_checkpoint)
def _checkpoint(inspection: Inspection) -> None:
    manifest = inspection.manifest
    model = manifest.model
    show((str(inspection.path), "bold"))
    show(f"  {manifest.kind} of {model.family}:{model.arch}, {model.num_classes} classes")
    copies = ""
    if inspection.in_memory != inspection.parameters:
        copies = (
            f" ({millions(inspection.in_memory)} in memory, where members have copies of heads)"
        )
    dtypes = ", ".join(inspection.dtypes)
    show(
        f"  {millions(inspection.parameters)} parameters{copies}, {size(inspection.nbytes)} as "
        f"{dtypes}"
    )
    for name, tower in manifest.towers.items():
        show(
            f"  {name}: {tower.layers} layers × {tower.heads} heads of {tower.head_dim}, dim "
            f"{tower.dim}"
        )
    _images(model.preprocess)
    pooling = manifest.model.pooling
    if pooling == OF_WORDS:
        show("  answers for every word, by its first token")
    elif pooling is not None:
        length = ", to length 1" if pooling.normalize else ""
        show(f"  pooled as its sentence embedder does: {pooling.mode}{length}")
    if manifest.kind == "hydra":
        for i, member in enumerate(manifest.members):
            show(f"  member {i}: {count(member.kept)} heads, from {member.sha256[:12]}")
            picture(member.kept, manifest.towers)
        norms = ", norms average" if manifest.fusion.norms == "average" else ""
        trunk = manifest.fusion.trunk
        shared = (
            f"the first {trunk} layers run once for all members" if trunk else "no shared layers"
        )
        show(f"  MLPs {manifest.fusion.mlp}{norms}, {shared}")
    else:
        picture(manifest.kept, manifest.towers)
        for name, rows in (manifest.kept_neurons or {}).items():
            show(f"  {name}, neurons: {', '.join(str(len(row)) for row in rows)}")
    if manifest.scores:
        show_wrapped(f"scores: {', '.join(map(_scores, manifest.scores))}")
    if manifest.decision is not None:
        show("  decision state:")
    _decision(manifest.decision, manifest.history)


def _scores(name: str) -> str:
    """Return the name of scores, with the options that it stands for if they differ."""
    words = ScoreKey.parse(name).words
    return name if words == [name] else f"{name} (--method {' '.join(words)})"


def _images(preprocess: Mapping[str, Any]) -> None:
    """Show how pictures are resized and normalised; nothing for texts."""
    if "input_size" not in preprocess:
        return
    edges = "×".join(map(str, preprocess["input_size"]))
    mean, std = (", ".join(f"{value:.4g}" for value in preprocess[key]) for key in ("mean", "std"))
    show_wrapped(f"pictures {edges} (channels×height×width), mean {mean}, std {std}")


def _decision(decision: DecisionRecord | None, history: Iterable[Step]) -> None:
    for line in () if decision is None else decision_lines(decision):
        show_wrapped(line, "    ")
    for step in history:
        show(f"  ← {shlex.join(command_line(step))}")


def verified(result: Verification, *, json: bool, quiet: bool) -> None:
    if json:
        return as_json(result.to_json())
    if result.note and not quiet:
        notes([result.note])
    kind = ""
    if result.manifest is not None:
        model = result.manifest.model
        kind = f": {result.manifest.kind} of {model.family}:{model.arch}"
    show((str(result.path), "bold"), kind)
    for check in result.checks:
        mark, style = OUTCOMES[check.holds]
        detail = f": {check.detail}" if check.detail else ""
        show((mark.ljust(MARK_CELLS), style), check.name, (detail, "dim"))
    return None


@view(lambda result: result.to_json(), measures=True)
def monitored(result: Monitored) -> None:
    answers, seen = result.drift.answers, result.drift.validation

    def of(counts: Seen | None, name: str) -> str:
        return ABSENT if counts is None else f"{getattr(counts, name) / counts.rows:.3f}"

    promised = {"unfamiliar": f"≤ {result.drift.id_flagged:g}"}
    rows = [
        [name, of(answers, name), of(seen, name), promised.get(name, "")]
        for name in ("unfamiliar", "abstain")
    ]
    rows.append(
        [
            "uncertainty",
            f"{answers.uncertainty:.3f}",
            ABSENT if seen is None else f"{seen.uncertainty:.3f}",
            "",
        ]
    )
    for name, (labelled, broken) in result.drift.kept.items():
        limit = f"≤ {result.drift.promises[name]:g}"
        rows.append(
            [
                f"{name}, of {labelled:,} labelled answers",
                f"{broken / labelled:.3f}",
                ABSENT,
                limit,
            ]
        )
    title = f"{answers.rows:,} answers"
    if result.drift.looks > 1:
        title = f"look {result.drift.latest} of {result.drift.looks}: {title}"
    show_table(title, ["answers", "validation rows", "promised"], rows)
    for test in result.drift.tests:
        mark, style = ("drifted", "bold red") if test.drifted else ("no drift", "green")
        p_value = f"p = {test.p_value:.2g}" if test.p_value >= SMALLEST_P else f"p < {SMALLEST_P:g}"
        alarm = "" if test.drifted else f"; an alarm needs p ≤ {result.drift.level:.2g}"
        show(f"{test.name}: ", (mark, style), f" ({p_value}{alarm})")
    if result.drift.may_be_flagged >= result.drift.id_flagged + SMALLEST_SHARE:
        show_wrapped(
            f"Few validation rows fitted the OOD threshold: up to {result.drift.may_be_flagged:.1%} "
            "unfamiliar rows may be chance.",
            "",
        )


def evaluated(evaluation: Evaluation, *, json: bool, quiet: bool) -> None:
    if not quiet:
        say_skipped(evaluation.skipped)
        notes(evaluation.notes, most=len(evaluation.notes))  # no JSON has them
    if json:
        return as_json(evaluation.report.model_dump(mode="json"))
    for text in evaluation.printed.values():
        return raw(text)
    results = evaluation.report.results
    for at, table in enumerate(evaluation.tables):
        if at:
            show("")
        heads = [(c.group, c.metric.brief) for c in table.columns]
        rows: list[list[Part]] = [
            [name, *((cell.text, "bold" if cell.rank == "best" else "") for cell in cells)]
            for name, cells in table.lines()
        ]
        show_table(table.title, heads, rows)
    for note in cost_notes([result.cost for result in results]):
        show(note)
    if evaluation.headline:
        show("")
        show(f"{evaluation.headline}.")
    asserted = evaluation.report.asserts
    if asserted and all(record.holds for record in asserted):
        show("")
        show(f"all {len(asserted)} assertions hold")
    return None


@view(lambda benched: benched.model_dump(mode="json"), measures=True)
def benched(benched: Benched) -> None:
    results = benched.results
    if benched.engines:
        return _engines(benched)
    digits = [decimals_of([metric.of(contender) for contender in results]) for metric in COST[:2]]
    rows = []
    for contender in results:
        name = f"{contender.name} ({contender.kind})"
        sizes = [
            metric.text(contender, decimals) for metric, decimals in zip(COST, digits, strict=False)
        ]
        about = [name, *sizes, _times(contender.macs_ratio)]
        for point in contender.points:
            speed = [f"{point.throughput:.1f}", f"{point.peak_bytes / 1e6:.1f}"]
            times = [f"{point.latency_ms:.2f}", _times(point.ratio)]
            rows.append([*about, point.dtype, str(point.batch), *times, *speed])
            about = [""] * len(about)
    heads = [("size", name) for name in (COST[0].brief, COST[1].brief, "of single")]
    heads += [
        ("speed", name) for name in ("dtype", "batch", "ms", "of single", "samples/s", "peak MB")
    ]
    show_table("", heads, rows)
    for note in cost_notes(results):
        show(note)


def _engines(benched: Benched) -> None:
    """Show every engine that runs here, and which one to use."""
    batches = benched.settings["batch"]
    heads = [("ms a sample", f"batch {count}") for count in batches]
    rows = []
    for engine in benched.engines:
        times = [f"{engine.ms[str(count)]:.2f}" for count in batches]
        difference = ABSENT if engine.difference is None else format_number(engine.difference, 2)
        rows.append([engine.engine, *times, difference])
    show_table("", [*heads, ("largest difference", "of a probability")], rows)
    show("")
    show(f"use --engine {benched.use}: it is the fastest in batches of {max(batches)}")


def _times(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{ratio:.2f}×"
