"""suspects.csv: training rows whose label looks wrong, by probes that have not seen them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.building.members import MemberModel
from hydrasurgeon.building.work import WorkState
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, undecided
from hydrasurgeon.data import Samples
from hydrasurgeon.data.folds import NO_FOLD, folds_of
from hydrasurgeon.data.listed import LABEL, NAME, TEXTS, key_of
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.answering import collected
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.features import last_layers
from hydrasurgeon.statistics.confident_learning import find_label_issues
from hydrasurgeon.statistics.temperature import mean_logs
from hydrasurgeon.tasks.base import Outputs, Task
from hydrasurgeon.tasks.unfit import AGREEMENT, LITTLE_LEARNT, agreement_with_classes
from hydrasurgeon.tuning.probe import MOST, PENALTY, cross_fitted

FILE = "suspects.csv"
JUDGED = ("single_label", "binary")
"""Tasks with one class for each row."""
SURE = 0.8
"""Accuracy below which many of the listed rows are mistakes of the probe."""
PROPOSED = ("proposed_label", "label_probability", "proposed_probability")
"""Columns behind the label."""
CELLS = 4_000_000
"""Number of rows times classes that probes are fitted to."""
DIGITS = 6
"""Decimals of probabilities."""


@dataclass(frozen=True)
class Suspects:
    """A list of rows whose label looks wrong."""

    path: str
    rows: int
    """Number of rows that it lists."""
    judged: int
    """Number of rows that were judged: none if the probes answer no better than by chance."""
    right: float = 1.0
    """Fraction of the judged rows that the probes answer as their label says."""

    def to_json(self) -> dict[str, Any]:
        """Return where the list is, and how long."""
        return {"path": self.path, "rows": self.rows, "judged": self.judged}

    @property
    def _doubt(self) -> str:
        """Warning where the probes are often wrong themselves."""
        if self.right >= SURE:
            return ""
        return f". The probe that lists them is right on {self.right:.0%} only: read them first, many are just hard"

    @property
    def note(self) -> str:
        """One line on the list, and how to leave its rows out."""
        if not self.judged:
            return LITTLE_LEARNT
        if not self.rows:
            return f"none of {self.judged:,} labels looks wrong"
        verb = "looks" if self.rows == 1 else "look"
        return (
            f"{self.rows:,} of {self.judged:,} rows {verb} mislabelled: see {self.path}; "
            f"--without {self.path} trains on the others{self._doubt}"
        )


def can_be_judged(task: Task, table: Samples) -> bool:
    """Return True if each row of a table has the name of one class."""
    column = table.written
    if task.name not in JUDGED or column is None or column.names is None:
        return False
    return column.chances is None and column.labels.ndim == 1


@dataclass(frozen=True)
class LabelCheck:
    """A table, and the probes that judge its labels."""

    table: Samples
    """Rows with labels as the data write them."""
    samples: Samples
    """The same rows with the model's classes."""
    options: BuildOptions
    state: WorkState
    task: Task

    def run(self, probe: MemberModel, crossed: Callable[[], Outputs]) -> None:
        """Write the list of a build once; `crossed` returns the answers of a build that cross-fits."""
        path = self.options.work / FILE
        if path.exists() and "suspects" in self.state.record:
            return
        if self.options.crossed:
            rows, outputs = np.flatnonzero(folds_of(self.samples) != NO_FOLD), crossed()
        else:
            judged = self._judged(probe)
            if judged is None:
                return
            rows, outputs = judged
        if not len(rows):
            return
        read = self.task.outputs(outputs)
        answers = mean_logs(read.logits)
        right = float((answers.argmax(axis=-1) == read.truth).mean())
        if agreement_with_classes(answers, read.truth) < AGREEMENT:
            rows = rows[:0]
        self.state.keep(
            suspects=asdict(
                Suspects(str(path), self._write(path, rows, read), len(rows), round(right, 6))
            )
        )

    def _judged(self, probe: MemberModel) -> tuple[ndarray, Outputs] | None:
        """Return rows that belong to a fold, and the answers of probes of the other folds; None if
        the classifier cannot be cross-fitted.
        """
        opened = undecided(open_checkpoint(probe.file, arch_of_bare=True))
        model = as_classifier(opened, device=self.options.device, dtype=self.options.dtype)
        (layers,) = last_layers(model)
        if len(layers) > 1:
            return None
        rows = self._judged_rows()
        samples, numbers = self.samples.at(rows), np.arange(len(rows))
        outputs = collected([model], samples, self.options, features=True, inputs=numbers)
        assert outputs.inputs is not None
        samples, rows = samples.at(outputs.inputs), rows[outputs.inputs]  # those that could be read
        return rows[folds_of(samples) != NO_FOLD], cross_fitted(model, outputs, samples, (PENALTY,))

    def _write(self, path: Path, rows: ndarray, read: Outputs) -> int:
        """Write the rows whose label looks wrong, the most suspicious first; return their number."""
        task = self.task
        probs = task.answers(read.logits, task.fitted(read))
        labels, likeliest = read.truth, probs.argmax(axis=1)
        issues = find_label_issues(labels, probs) if len(rows) else rows
        spelled, table, is_text = self._spellings(), self.table, self.table.kind == "text"
        heads = TEXTS[: 1 + (table.inputs == "text_pair")] if is_text else (NAME,)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["row", *heads, LABEL, *PROPOSED])
        for issue in issues.tolist():
            row, proposed = int(rows[issue]), int(likeliest[issue])
            chances = [f"{probs[issue, k]:.{DIGITS}f}" for k in (labels[issue], proposed)]
            *content, label = key_of(table, row)
            writer.writerow(
                [table.row(row), *content, label, spelled[proposed], chances[0], chances[1]]
            )
        write_text(path, text.getvalue())
        return len(issues)

    def _spellings(self) -> Mapping[int, str]:
        """Return the name of each class as the data write it first."""
        assert self.samples.labels is not None
        classes = np.asarray(self.samples.labels).round().astype(np.int64)
        _, first = np.unique(classes, return_index=True)
        names = dict(enumerate(self.samples.classes or ()))
        return names | {int(classes[row]): key_of(self.table, row)[-1] for row in first.tolist()}

    def _judged_rows(self) -> ndarray:
        """Return all rows; of a large table those with the smallest hashes."""
        samples = self.samples
        count = min(MOST, CELLS // max(2, len(samples.classes or ())))
        if len(samples) <= count:
            return np.arange(len(samples))
        return np.sort(np.argsort(samples.digests, kind="stable")[:count])
