"""monitor: count the answers that `predict` or `serve` kept, and compare them with what calibration
saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import CheckFailed, CheckpointError, DataError, UsageError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.decided import Seen
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.looks import Look, Looks, Mark, fingerprint, marked, read_looks
from hydrasurgeon.files.rows import harmless, read_rows
from hydrasurgeon.options.base import PathLike, stage
from hydrasurgeon.options.deciding import MonitorOptions

if TYPE_CHECKING:
    from hydrasurgeon.files.decided import Decision
    from hydrasurgeon.measuring.drift import Drift
    from hydrasurgeon.problems.base import Problem

ROUNDING = 1e-3
"""By how much a total uncertainty may exceed the largest there is, ln(classes)."""
UNFAMILIAR = {True: True, False: False, "true": True, "false": False}
"""The flag as JSON and parquet have it, and as CSV has it."""
YES_NO = {"0": "no", "1": "yes", "false": "no", "true": "yes"}
"""What else labels of one logit are called."""
LABELS = "Give a .jsonl, .csv or .parquet file with the `id` of each answer and its true `label`."
"""What to do about labels that do not fit."""
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
    kept = None
    if arguments.state is not None:
        kept = output_file(arguments.state, option="--state", force=True, inputs=arguments.sources)
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
    reader = _Reader(problem, decision, problem.classes(model, decision))
    path, labels = Path(arguments.answers), reader.labels
    state: Looks | None = None
    notes: list[str] = []
    if kept is None:
        answers, errors = reader.counted(path)
        if answers is None:
            raise DataError(f"{path}: holds no answers", hint=HINT)
        drift = drift_of(answers, decision, labels, alpha=arguments.alpha)
    else:
        from hydrasurgeon.measuring.nights import drift_over

        state = read_looks(
            kept,
            against=fingerprint(opened.manifest.weights_sha256, decision),
            alpha=arguments.alpha,
            classes=len(labels),
        )
        look, errors = reader.look(path, arguments.labels, state)
        state = state.model_copy(update={"looks": (*state.looks, look)})
        drift = drift_over(
            state.looks, decision, labels, problem.promises(decision), alpha=arguments.alpha
        )
        if look.seen is None:
            notes.append("no answer is new: labels alone are counted")
        if arguments.labels is not None and not look.kept:
            notes.append(f"{arguments.labels}: no label is new, or of a row that was answered")
    if errors:
        notes.append(
            f"{errors} rows could not be read when they were answered, and are not compared"
        )
    if decision.seen is None:
        notes.append(
            f"{opened.name} does not say which classes it predicted on validation data: "
            "calibrate again to compare"
        )
    every_note = tuple(filter(None, (opened.note, *notes)))
    if place is not None:
        from hydrasurgeon.report.drift import page

        write_text(place, page(drift, name=opened.name, source=path.name, notes=every_note))
    # Last: what comes before it can be done again.
    if state is not None and kept is not None:
        write_text(kept, state.model_dump_json() + "\n")
    return Monitored(place, opened.name, drift, every_note)


@dataclass(frozen=True)
class _Reader:
    """Reads answers of one checkpoint."""

    problem: Problem
    decision: Decision
    labels: Sequence[str | int]

    def counted(
        self, path: Path, first: int = 0, end: int | None = None
    ) -> tuple[Seen | None, int]:
        """The counts of a file of answers, and how many of its rows are errors."""
        predicted, answers, uncertainty, errors = [0] * len(self.labels), Counter[str](), 0.0, 0
        index = {str(label): at for at, label in enumerate(self.labels)}
        # CSV holds names that a spreadsheet would run as a formula in another form.
        index = {harmless(label): at for label, at in index.items()} | index
        most = self.problem.least_sure(len(self.labels)) + ROUNDING
        for where, row in islice(read_rows(path), first, end):
            if isinstance(row, dict) and row.get("error"):
                errors += 1
                continue
            answer = _answer(row, where, most, self.problem, self.decision)
            if answer.label not in index:
                raise DataError(
                    f"{where}: {visible(answer.label)[:80]} is no class of the checkpoint",
                    hint=HINT,
                )
            predicted[index[answer.label]] += 1
            answers[answer.kind] += 1
            uncertainty += answer.total
        rows = sum(predicted)
        if not rows:
            return None, errors
        seen = Seen(
            rows=rows,
            unfamiliar=answers["unfamiliar"],
            abstain=answers["abstain"],
            uncertainty=uncertainty / rows,
            predicted=tuple(predicted),
        )
        return seen, errors

    def look(self, path: Path, labels: PathLike | None, state: Looks) -> tuple[Look, int]:
        """What is new in these files, and how many of the new answers are errors."""
        mark, known = marked(path, state.marks("answers"))
        seen, errors = self.counted(path, known, mark.rows)
        kept: dict[str, tuple[int, int]] = {}
        truths: dict[str, str] = {}
        labelled = None
        if labels is not None:
            truths, labelled = self._truths(Path(labels), state)
        if truths:
            kept = self._kept(path, mark, truths)
        if seen is None and not (truths and known):
            what = "nothing that was not counted before" if known else "no answers"
            raise DataError(f"{path}: holds {what}", hint=HINT)
        return Look(answers=mark, seen=seen, labels=labelled, kept=kept), errors

    def _truths(self, path: Path, state: Looks) -> tuple[dict[str, str], Mark]:
        """New labels, by the id of the row."""
        if not self.problem.promises(self.decision):
            raise UsageError(
                "--labels: the checkpoint promises no risk that one label a row could test",
                hint="Leave them out; calibrate --risk promises such a risk of classes, and of yes and no.",
            )
        mark, known = marked(path, state.marks("labels"))
        names = {harmless(str(label)) for label in self.labels}
        truths: dict[str, str] = {}
        for where, row in islice(read_rows(path), known, mark.rows):
            if not isinstance(row, dict) or not {"id", "label"} <= row.keys():
                raise DataError(f"{where}: holds no id and label", hint=LABELS)
            if row["label"] in (None, ""):
                continue
            name, truth = str(row["id"]), harmless(str(row["label"]))
            if self.problem.says_yes:
                truth = YES_NO.get(truth.lower(), truth)
            if truth not in names:
                raise DataError(
                    f"{where}: {visible(truth)[:80]} is no class of the checkpoint", hint=LABELS
                )
            if name in truths:
                raise DataError(f"{where}: {visible(name)[:80]} has a label twice", hint=LABELS)
            truths[name] = truth
        return truths, mark

    def _kept(self, path: Path, mark: Mark, truths: dict[str, str]) -> dict[str, tuple[int, int]]:
        """Of each promise the labelled rows and those that break it."""
        rows, broken = Counter[str](), Counter[str]()
        left = set(truths)
        for where, row in islice(read_rows(path), mark.rows):
            name = str(row.get("id")) if isinstance(row, dict) else ""
            if name not in truths:
                continue
            if name not in left:
                raise DataError(f"{where}: {visible(name)[:80]} is there twice", hint=LABELS)
            left.remove(name)
            if row.get("error"):
                continue
            verdict = self.problem.broken(row, truths[name])
            rows.update(verdict.keys())
            broken.update(promise for promise, wrong in verdict.items() if wrong)
        if left:
            one = visible(min(left))[:80]
            raise DataError(
                f"{path}: holds no answer to {len(left)} labels, {one} among them", hint=LABELS
            )
        return {promise: (count, broken[promise]) for promise, count in rows.items()}


class _Answer(NamedTuple):
    label: str
    kind: str
    """`unfamiliar`, `abstain` or `answered`."""
    total: float


def _answer(row: Any, where: str, most: float, problem: Problem, decision: Decision) -> _Answer:
    """What a row says, whatever kind of file it stands in."""
    try:
        label, total = problem.counted(decision, row)
        unfamiliar, abstained = UNFAMILIAR[row["unfamiliar"]], problem.abstained(row)
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{where}: is no answer of a calibrated checkpoint", hint=HINT) from error
    if not 0 <= total <= most:
        raise DataError(f"{where}: a total uncertainty of {total:g}", hint=DAMAGED)
    if unfamiliar:
        return _Answer(label, "unfamiliar", total)
    return _Answer(label, "abstain" if abstained else "answered", total)
