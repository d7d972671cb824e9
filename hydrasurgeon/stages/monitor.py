"""monitor: count the answers that `predict` or `serve` kept, and compare them with what calibration
saw.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import CheckFailed, CheckpointError, DataError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.decided import Seen
from hydrasurgeon.files.foreign import open_regular, parse_json, readable, visible
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.deciding import MonitorOptions

if TYPE_CHECKING:
    from hydrasurgeon.measuring.drift import Drift

MAX_LINE = 4 << 20
"""Most bytes of an answer."""
HINT = "Give the .jsonl that `predict -o` or `serve --answers` wrote with a calibrated checkpoint."
"""What to do about a file that holds no answers."""


@dataclass(frozen=True)
class Monitored:
    """What came of a comparison."""

    path: Path | None
    """The page that was written."""
    against: str
    drift: Drift
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"against": self.against, **self.drift.to_json(), "notes": self.notes}

    def require(self) -> None:
        """CheckFailed where answers drifted."""
        if self.drift.drifted:
            hint = (
                "Look at recent inputs; what is new in them calls for new --data to calibrate "
                "or train on."
            )
            raise CheckFailed(f"{self.against}: {self.drift.sentence}", hint=hint)


@stage(MonitorOptions)
def monitor(arguments: MonitorOptions) -> Monitored:
    """Compare answers with what their checkpoint's decision state promised and saw."""
    place = None
    if arguments.report is not None:
        place = output_file(
            arguments.report, option="--report", force=arguments.force, inputs=arguments.sources
        )
    opened = open_checkpoint(arguments.against)
    model, decision = opened.manifest.model, opened.manifest.decision
    if decision is None:
        raise CheckpointError(
            f"--against {opened.name}: has no decision state",
            hint="Give the checkpoint that `calibrate` wrote.",
        )
    from hydrasurgeon.decision.problems import need_single
    from hydrasurgeon.decision.state import YES_NO
    from hydrasurgeon.measuring.drift import drift_of

    need_single(model, "monitor", opened.name, but=("one_logit",))
    labels: list[str | int] = [
        *(YES_NO if model.problem == "one_logit" else model.labels or range(model.num_classes))
    ]
    answers, errors = counted(Path(arguments.answers), labels)
    drift = drift_of(answers, decision, labels, alpha=arguments.alpha)
    unread = (
        f"{errors} rows could not be read when they were answered, and are not compared"
        if errors
        else None
    )
    older = None
    if decision.seen is None:
        older = (
            f"{opened.name} does not say which classes it predicted on validation data: "
            "calibrate again to compare"
        )
    notes = tuple(filter(None, (opened.note, unread, older)))
    if place is not None:
        from hydrasurgeon.report.drift import page

        write_text(
            place,
            page(drift, labels, name=opened.name, source=Path(arguments.answers).name, notes=notes),
        )
    return Monitored(place, opened.name, drift, notes)


def counted(path: Path, labels: list[str | int]) -> tuple[Seen, int]:
    """The counts of a file of answers, and how many of its rows are errors."""
    predicted, answers, uncertainty, errors = [0] * len(labels), Counter[str](), 0.0, 0
    index = {label: at for at, label in enumerate(labels)}
    with open_regular(path, error=DataError) as file, readable(path, DataError):
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            where = f"{path}, line {number}"
            row = parse_json(line, where, most=MAX_LINE, error=DataError)
            if isinstance(row, dict) and "error" in row:
                errors += 1
                continue
            answer, total = _of_row(row, where)
            if row["label"] not in index:
                raise DataError(
                    f"{where}: {visible(str(row['label']))[:80]} is no class of the checkpoint",
                    hint=HINT,
                )
            predicted[index[row["label"]]] += 1
            answers[answer] += 1
            uncertainty += total
    rows = sum(predicted)
    if not rows:
        raise DataError(f"{path}: holds no answers", hint=HINT)
    unfamiliar, abstain = answers["unfamiliar"], answers["abstain"]
    mean = uncertainty / rows
    return Seen(
        rows=rows,
        unfamiliar=unfamiliar,
        abstain=abstain,
        uncertainty=mean,
        predicted=tuple(predicted),
    ), errors


def _of_row(row: Any, where: str) -> tuple[str, float]:
    """`unfamiliar`, `abstain` or `answered`, and the uncertainty of an answer."""
    if isinstance(row, dict) and isinstance(row.get("logit"), float):
        row["label"] = "yes" if row["logit"] > 0 else "no"
    whole = (
        isinstance(row, dict)
        and isinstance(row.get("label"), str | int)
        and isinstance(row.get("total"), float)
    )
    if not whole or not isinstance(row.get("unfamiliar"), bool):
        raise DataError(f"{where}: is no answer of a calibrated checkpoint", hint=HINT)
    kind = (
        "unfamiliar"
        if row["unfamiliar"]
        else "abstain"
        if row.get("answer") == "abstain"
        else "answered"
    )
    return kind, row["total"]
