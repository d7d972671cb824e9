"""monitor: count the answers that `predict` or `serve` kept, and compare them with what calibration
saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import CheckFailed, CheckpointError, DataError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.decided import Seen
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.rows import harmless, read_rows
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.deciding import MonitorOptions

if TYPE_CHECKING:
    from hydrasurgeon.files.decided import Decision
    from hydrasurgeon.measuring.drift import Drift
    from hydrasurgeon.problems.base import Problem

ROUNDING = 1e-3
"""By how much a total uncertainty may exceed the largest there is, ln(classes)."""
UNFAMILIAR = {True: True, False: False, "true": True, "false": False}
"""The flag as JSON and parquet have it, and as CSV has it."""
HINT = "Give what `predict -o` or `serve --answers` wrote with a calibrated checkpoint."
"""What to do about a file that holds no answers."""
DAMAGED = "The row is damaged, or another checkpoint answered."
"""What to think of a number that cannot be."""


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
    from hydrasurgeon.measuring.drift import drift_of
    from hydrasurgeon.problems import problem_of

    problem = problem_of(model)
    labels = problem.classes(model, decision)
    answers, errors = counted(Path(arguments.answers), labels, problem, decision)
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
            page(drift, name=opened.name, source=Path(arguments.answers).name, notes=notes),
        )
    return Monitored(place, opened.name, drift, notes)


def counted(
    path: Path, labels: Sequence[str | int], problem: Problem, decision: Decision
) -> tuple[Seen, int]:
    """The counts of a file of answers, and how many of its rows are errors."""
    predicted, answers, uncertainty, errors = [0] * len(labels), Counter[str](), 0.0, 0
    index = {str(label): at for at, label in enumerate(labels)}
    # CSV holds names that a spreadsheet would run as a formula in another form.
    index = {harmless(label): at for label, at in index.items()} | index
    most = problem.least_sure(len(labels)) + ROUNDING
    for where, row in read_rows(path):
        if isinstance(row, dict) and row.get("error"):
            errors += 1
            continue
        answer = _answer(row, where, most, partial(problem.counted, decision))
        if answer.label not in index:
            raise DataError(
                f"{where}: {visible(answer.label)[:80]} is no class of the checkpoint", hint=HINT
            )
        predicted[index[answer.label]] += 1
        answers[answer.kind] += 1
        uncertainty += answer.total
    rows = sum(predicted)
    if not rows:
        raise DataError(f"{path}: holds no answers", hint=HINT)
    seen = Seen(
        rows=rows,
        unfamiliar=answers["unfamiliar"],
        abstain=answers["abstain"],
        uncertainty=uncertainty / rows,
        predicted=tuple(predicted),
    )
    return seen, errors


class _Answer(NamedTuple):
    label: str
    kind: str
    """`unfamiliar`, `abstain` or `answered`."""
    total: float


def _answer(
    row: Any, where: str, most: float, counted: Callable[[Any], tuple[str, float]]
) -> _Answer:
    """What a row says, whatever kind of file it stands in."""
    try:
        label, total = counted(row)
        unfamiliar = UNFAMILIAR[row["unfamiliar"]]
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{where}: is no answer of a calibrated checkpoint", hint=HINT) from error
    if not 0 <= total <= most:
        raise DataError(f"{where}: a total uncertainty of {total:g}", hint=DAMAGED)
    if unfamiliar:
        return _Answer(label, "unfamiliar", total)
    return _Answer(label, "abstain" if row.get("answer") == "abstain" else "answered", total)
