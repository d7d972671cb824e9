"""monitor: count the answers that `predict` or `serve` kept, and compare them with what calibration
saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckFailed, CheckpointError, DataError, UsageError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.decided import Seen
from hydrasurgeon.files.looks import Look, fingerprint, hash_of, read_looks, unpacked
from hydrasurgeon.files.rows import harmless, read_rows
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.options.base import PathLike, stage
from hydrasurgeon.options.deciding import MonitorOptions
from hydrasurgeon.tasks.base import abstained

if TYPE_CHECKING:
    from hydrasurgeon.files.decided import DecisionRecord
    from hydrasurgeon.measuring.drift import Drift
    from hydrasurgeon.tasks.base import Task, Watched

STATE = ".state.json"
"""Suffix of the state file, behind the name of the answers file."""
MOST_NAME = 255
"""Characters of a file's name that a state keeps."""
ROUNDING = 1e-3
"""Tolerance in nats by which a total uncertainty may exceed its maximum, ln(classes)."""
FLAGS = {"true": True, "false": False}
"""A flag as files have it, in any case: JSON's, Python's and pandas'."""
YES_NO = {"0": "no", "1": "yes", "false": "no", "true": "yes"}
"""Other spellings of the labels of a model with one logit."""
LABELS = (
    "Give a .jsonl, .csv or .parquet file with the `id` (or the `key`) of each answer and its true "
    "`label`."
)
"""Hint for labels that do not fit."""
HINT = "Give what `predict -o` or `serve --answers` wrote with a calibrated checkpoint."
"""Hint for a file that holds no answers."""
DAMAGED = "The row is damaged, or another checkpoint answered."
"""Hint for an impossible number."""


@dataclass(frozen=True)
class Monitored:
    """The result of a comparison."""

    against: str
    drift: Drift
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {"against": self.against, **self.drift.to_json(), "notes": self.notes}

    def require(self) -> None:
        """Raise CheckFailed if the answers drifted."""
        if self.drift.drifted:
            hint = (
                "Look at recent inputs: if they have changed, label some of them, and calibrate or "
                "train on these."
            )
            raise CheckFailed(f"{self.against}: {self.drift.sentence}", hint=hint)


@stage(MonitorOptions)
def monitor(arguments: MonitorOptions) -> Monitored:
    """Compare answers with what their checkpoint's decision state promised and saw."""
    paths = [Path(name) for name in arguments.answers]
    place = output_file(
        arguments.state or f"{paths[0]}{STATE}",
        option="--state",
        force=True,
        inputs=arguments.sources,
    )
    opened = open_checkpoint(arguments.against, recorded=True)
    model, decision = opened.manifest.model, opened.manifest.decision
    if decision is None:
        raise CheckpointError(
            f"--against {opened.name}: has no decision state",
            hint="Give the checkpoint that `calibrate` wrote.",
        )
    from hydrasurgeon.measuring.drift import drift_over
    from hydrasurgeon.tasks import task_of

    task = task_of(model)
    watched = task.watched(model, decision)
    reader = _Reader(task, decision, watched)
    state = read_looks(
        place,
        against=fingerprint(opened.manifest.weights_sha256, decision),
        alpha=arguments.alpha,
        classes=len(watched.names),
    )
    before, errors, elsewhere = state, 0, set[str]()
    labels = _Labels()
    if arguments.labels is not None:
        labels = reader.labels(Path(arguments.labels), unpacked(state.labels))
        elsewhere = {*labels.truths}
    for path in paths:
        answers = reader.counted(path, unpacked(state.answers))
        labelled = reader.labelled(path, labels.truths, unpacked(state.labels))
        if answers.seen is None and not (state.looks and answers.repeats):
            raise DataError(f"{path}: holds no answers", hint=HINT)
        if answers.seen is not None or labelled.new:
            look = Look(name=path.name[:MOST_NAME], seen=answers.seen, kept=labelled.kept)
            state = state.with_look(look, answers.new, labelled.new)
        errors += answers.errors
        elsewhere -= labelled.ids
    notes = list[str]()
    if arguments.labels is not None:
        is_new = state.labels != before.labels
        notes += _label_notes(arguments.labels, labels, elsewhere, is_new=is_new)
    if errors:
        notes.append(
            f"{errors} rows could not be read when they were answered, and are not compared"
        )
    if decision.seen is None:
        notes.append(
            f"{opened.name} does not say which classes it predicted on validation data: "
            "calibrate again to compare"
        )
    drift = drift_over(state.looks, decision, watched.names, watched.promises, alpha=state.alpha)
    if state.answers == before.answers:
        notes.insert(0, f"no answer is new: the table shows those of look {drift.latest}")
    if state is not before:
        write_text(place, state.text())
    return Monitored(opened.name, drift, tuple(filter(None, (opened.note, *notes))))


@dataclass(frozen=True)
class _Counted:
    """The new information in a file of answers."""

    seen: Seen | None
    """None where no answer is new."""
    new: set[bytes]
    """Hashes of rows that no look has counted."""
    repeats: bool
    """True if the file has rows that earlier looks counted."""
    errors: int
    """New rows that hold an error."""


@dataclass(frozen=True)
class _Labels:
    """A file of labels."""

    truths: Mapping[str, str] = field(default_factory=dict)
    """True label of each id."""
    unknown_labels: Sequence[str] = ()
    """Labels that are no class of the checkpoint."""


@dataclass(frozen=True)
class _Labelled:
    """The new information that labels give about a file of answers."""

    new: set[bytes]
    """Hashes of labels that no look has counted."""
    kept: dict[str, tuple[int, int]]
    """For each promise the counts of labelled rows and of rows that break it."""
    ids: Set[str]
    """Ids of labels whose answers are in the file."""


def _label_notes(
    file: PathLike, labels: _Labels, elsewhere: Set[str], *, is_new: bool
) -> Iterator[str]:
    """Yield notes on labels that do not count, or count as wrong."""
    if elsewhere:
        yield (
            f"{file}: {len(elsewhere)} of {len(labels.truths)} labels belong to other answers, such as "
            f"{visible(min(elsewhere))[:80]}; they count in a run on the file that holds their answers"
        )
    elif not is_new:
        yield f"{file}: nothing to count: each label was counted before"
    if labels.unknown_labels:
        yield (
            f"{file}: {len(labels.unknown_labels)} of {len(labels.truths)} labels name no class of the checkpoint, such as "
            f"{visible(labels.unknown_labels[0])[:80]}: each answer to these rows counts as wrong"
        )


@dataclass(frozen=True)
class _Reader:
    """Reads answers of one checkpoint."""

    task: Task
    decision: DecisionRecord
    watched: Watched

    def counted(self, path: Path, counted: set[bytes]) -> _Counted:
        """Count the answers that earlier looks did not count, each once."""
        names = self.watched.names
        predicted, kinds = [0] * len(names), Counter[str]()
        uncertainty, errors, repeats = 0.0, 0, False
        index = {str(label): at for at, label in enumerate(names)}
        # CSV holds names that a spreadsheet would run as a formula in another form.
        index = {harmless(label): at for label, at in index.items()} | index
        most = self.watched.most + ROUNDING
        new: set[bytes] = set()
        for where, row in read_rows(path):
            digest = hash_of(row)
            if digest in counted or digest in new:
                repeats = True
                continue
            new.add(digest)
            if isinstance(row, dict) and row.get("error"):
                errors += 1
                continue
            label, kind, total = _answer(row, where, most, self.task, self.decision)
            if label not in index:
                raise DataError(
                    f"{where}: {visible(label)[:80]} is not a class of the checkpoint",
                    hint=HINT,
                )
            predicted[index[label]] += 1
            kinds[kind] += 1
            uncertainty += total
        rows, seen = sum(predicted), None
        if rows:
            seen = Seen(
                rows=rows,
                unfamiliar=kinds["unfamiliar"],
                abstain=kinds["abstain"],
                uncertainty=uncertainty / rows,
                predicted=tuple(predicted),
            )
        return _Counted(seen, new, repeats, errors)

    def labels(self, file: Path, counted: set[bytes]) -> _Labels:
        """Read labels; one that an earlier look counted may have another for the same id, as ids may
        occur again in later files.
        """
        if not self.watched.promises:
            raise UsageError(
                "--labels: the checkpoint has no promise that labels of rows could test",
                hint="Leave --labels out, or run calibrate --risk on a classifier.",
            )
        names = {harmless(str(label)) for label in self.watched.names}
        truths: dict[str, str] = {}
        earlier: set[str] = set()
        unknown_labels: list[tuple[str, str]] = []
        for where, row in read_rows(file):
            named = isinstance(row, dict) and "label" in row and ("id" in row or "key" in row)
            if not named:
                columns = f"; found {', '.join(map(visible, row))}" if isinstance(row, dict) else ""
                raise DataError(f"{where}: has no id, or key, and label{columns}", hint=LABELS)
            if row["label"] in (None, ""):
                continue
            name, truth = str(row.get("id", row.get("key"))), harmless(str(row["label"]))
            if truth not in names:
                truth = YES_NO.get(truth.lower(), truth)
            if truth not in names:
                unknown_labels.append((where, truth))
            is_known = hash_of([name, truth]) in counted
            if name in truths:
                if is_known:
                    continue
                if name not in earlier:
                    raise DataError(f"{where}: {visible(name)[:80]} has a label twice", hint=LABELS)
            truths[name] = truth
            (earlier.add if is_known else earlier.discard)(name)
        if unknown_labels and len(unknown_labels) >= len(truths):
            where, truth = unknown_labels[0]
            raise DataError(
                f"{where}: {visible(truth)[:80]} is not a class of the checkpoint, nor is any other label",
                hint=LABELS,
            )
        return _Labels(truths, [truth for _, truth in unknown_labels])

    def labelled(self, path: Path, truths: Mapping[str, str], counted: set[bytes]) -> _Labelled:
        """Join labels to the answers of a file; each counts once for each answer."""
        rows, broken, new = Counter[str](), Counter[str](), set[bytes]()
        answered: dict[str, bytes] = {}
        for where, row in read_rows(path) if truths else ():
            names = [str(row.get(key)) for key in ("key", "id")] if isinstance(row, dict) else []
            name = next((name for name in names if name in truths), None)
            if name is None:
                continue
            digest = hash_of(row)
            if answered.get(name, digest) != digest:
                raise DataError(f"{where}: {visible(name)[:80]} occurs twice", hint=LABELS)
            if name in answered:
                continue
            answered[name] = digest
            of_answer = hash_of([digest.hex(), truths[name]])
            if of_answer in counted:
                continue
            new |= {of_answer, hash_of([name, truths[name]])}
            if row.get("error"):
                continue
            verdict = self.task.broken(row, truths[name])
            rows.update(verdict.keys())
            broken.update(promise for promise, wrong in verdict.items() if wrong)
        kept = {promise: (count, broken[promise]) for promise, count in rows.items()}
        return _Labelled(new, kept, answered.keys())


class _Row(dict[str, Any]):
    """A row that knows which column was asked for last."""

    column = ""

    def __getitem__(self, column: str) -> Any:
        self.column = column
        return super().__getitem__(column)


def _answer(
    row: Any, where: str, most: float, task: Task, decision: DecisionRecord
) -> tuple[str, str, float]:
    """Label, kind (`unfamiliar`, `abstain` or `answered`) and total uncertainty of a row, whatever
    kind of file it stands in.
    """
    if not isinstance(row, dict):
        raise DataError(f"{where}: is not an answer of a calibrated checkpoint", hint=HINT)
    named = _Row(row)
    try:
        label, total = task.counted(decision, named), task.unsure(named)
        unfamiliar = FLAGS[str(named["unfamiliar"]).strip().lower()]
        is_unsure = abstained(named)
    except (LookupError, TypeError, ValueError) as error:
        fault = "is missing"
        if named.column in row:
            fault = f"cannot be {visible(str(row[named.column]))[:80]!r}"
        raise DataError(f"{where}: {named.column} {fault}", hint=HINT) from error
    if not 0 <= total <= most:
        raise DataError(f"{where}: a total uncertainty of {total:g}", hint=DAMAGED)
    kind = "unfamiliar" if unfamiliar else "abstain" if is_unsure else "answered"
    return label, kind, total
