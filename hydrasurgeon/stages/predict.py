"""predict: one row for each sample, in their order: label, set, doubts, and whether to answer at
all.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.decision.printed import Answers
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.atomic import check_ending, output_file
from hydrasurgeon.files.rows import line, writing
from hydrasurgeon.measuring.sets import check_cascades
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.deciding import PredictOptions

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples
    from hydrasurgeon.decision.state import Prediction
    from hydrasurgeon.runtime.classifier import Classifier

# Batches of lines of stdin that are read at once.
AHEAD = 16
KINDS = {
    **dict.fromkeys(("id", "label"), "text"),
    **dict.fromkeys(("probability", "logit"), "number"),
    "rank": "whole",
    **dict.fromkeys(("labels", "top", "set"), "json"),
    **dict.fromkeys(("total", "aleatoric", "epistemic", "ood_score"), "number"),
    "unfamiliar": "flag",
    "members_run": "whole",
    **dict.fromkeys(("answer", "error"), "text"),
}
"""All that an answer may hold, and what kind of value it is."""
OTHERS = {
    "single_label": ("logit", "labels", "rank"),
    "one_logit": ("label", "labels", "top", "set"),
    "multi_label": ("label", "probability", "logit", "rank"),
}
"""Kind of problem → what its answers do not hold."""
ENDINGS = (".jsonl", ".csv", ".parquet")
"""What an output may end in."""
ID = "id"
"""The column that names the rows, unless --id-column says otherwise."""
SHARD = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")
"""`--shard`, as it is given: which part of how many."""


@dataclass(frozen=True, repr=False)
class Predicted(Answers):
    """What came out, in numbers; and the rows, where they went neither into a file nor to `each`."""

    path: Path | None
    """None: no file was written."""
    rows: int
    answers: dict[str, int]
    """How many were `answered`, `abstain`, `unfamiliar`, and could not be read (`error`)."""
    notes: tuple[str, ...] = ()
    _rows: Sequence[dict[str, Any]] = ()

    def __repr__(self) -> str:
        return super().__repr__() if self.path is None else f"{self.path}: {self.rows} rows"


@stage(PredictOptions)
def predict(arguments: PredictOptions) -> Predicted:
    """Answer for every sample of a data set; rows are written into `out`, handed to `each` in JSON,
    or returned.

    >>> answers = hs.predict("backbone", data="demo:test", limit=3)
    >>> answers
      id  label  probability  total  answer
    1236      6        0.915  0.454       6
    1380      6        0.881  0.576       6
    1946      6        0.903  0.503       6
    not calibrated: no decision state was used
    >>> answers.to_pandas()["label"].tolist()
    [6, 6, 6]
    """
    _check(arguments)
    place = None
    if arguments.out is not None:
        place = output_file(
            arguments.out, option="-o", force=arguments.force, inputs=arguments.sources
        )
    answering = _Alone(arguments) if arguments.predictions is not None else _answering(arguments)
    counts = Counter[str]()
    returned: list[dict[str, Any]] = []
    keep: Callable[[list[dict[str, Any]]], None] = returned.extend
    with ExitStack() as stack:
        if place is not None:
            keep = stack.enter_context(writing(place, answering.columns(place.suffix), spread))
        elif arguments.each is not None:
            keep = partial(_hand_on, arguments.each)
        for rows in answering.rows():
            counts.update(map(_outcome, rows))
            keep(rows)
    return Predicted(
        place, sum(counts.values()), dict(sorted(counts.items())), answering.notes, returned
    )


def _hand_on(each: Callable[[str], None], rows: list[dict[str, Any]]) -> None:
    for row in rows:
        each(line(row))


def _answering(arguments: PredictOptions) -> _Answering:
    checkpoint, data = arguments.needed()
    opened = open_checkpoint(checkpoint, arch=arguments.arch)
    opened = classifying(opened, arguments, None if data == "-" else data)
    need_classes(opened.manifest, opened.path)
    opened.digests()
    return _Answering(opened, data, arguments)


def _outcome(row: dict[str, Any]) -> str:
    if "error" in row:
        return "error"
    return row["answer"] if row["answer"] in ("abstain", "unfamiliar") else "answered"


def _check(arguments: PredictOptions) -> None:
    """Options that go together."""
    if arguments.out is not None:
        check_ending(arguments.out, *ENDINGS, option="-o", hint="The ending says the format.")
    if arguments.shard is not None:
        match = SHARD.fullmatch(arguments.shard)
        if match is None or int(match[1]) > int(match[2]):
            raise UsageError(
                f"--shard {arguments.shard}: not I/N with I from 1 to N",
                hint="Such as --shard 1/4.",
            )
    of_files = ("shard", "limit", "id_column", "keep_columns")
    wrong = [arguments.flag(name) for name in of_files if getattr(arguments, name) is not None]
    if arguments.data == "-" and wrong:
        raise UsageError(
            f"--data - conflicts with {wrong[0]}", hint="Leave it out, or give a file as --data."
        )


class _Answering:
    """One checkpoint and one data set: rows, batch by batch."""

    def __init__(self, opened: Checkpoint, data: str, arguments: PredictOptions) -> None:
        from hydrasurgeon.data.batches import batch_size_of
        from hydrasurgeon.runtime.classifier import as_classifier

        self.arguments = arguments
        self.batch = batch_size_of(arguments.batch_size)
        self.model: Classifier = as_classifier(
            opened, device=arguments.device, dtype=arguments.dtype, lean=True
        )
        model = opened.manifest.model
        self.names, self.classes, self.problem = model.labels, model.num_classes, model.problem
        keep = [name.strip() for name in (arguments.keep_columns or "").split(",") if name.strip()]
        # The name of an answer's own field is taken: what the data calls so is told apart.
        self.kept = {
            f"data_{name}" if name in kinds_of(self.problem) else name: name for name in keep
        }
        self.id_column = arguments.id_column or ID
        self.samples = None if data == "-" else _samples(data, arguments, keep)
        # This shard's samples, cut where batches are; none of stdin.
        count = 0 if self.samples is None else len(self.samples)
        number, shards = map(int, (arguments.shard or "1/1").split("/"))
        batches = -(-count // self.batch)
        self.first, self.last = (
            min(count, self.batch * (batches * at // shards)) for at in (number - 1, number)
        )
        self.notes: tuple[str, ...] = (opened.note,) if opened.note else ()
        cascade = None if self.model.state is None else self.model.state.record.cascade
        check_cascades([opened] if arguments.cascade else [])
        self.in_steps = cascade is not None and arguments.cascade is not False
        if self.model.state is None:
            self.notes += (without_state(opened.name),)

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """Rows in the order of the samples."""
        groups = (
            None if self.samples is None or self.problem != "one_logit" else self.samples.groups
        )
        if groups is not None:
            yield self._ranked(groups)
            return
        if self.samples is not None:
            yield from self._over(self.samples, self.first, self.last)
            return
        from hydrasurgeon.data.samples import Rows
        from hydrasurgeon.data.sources import text_pairs

        at, paired = 0, self.model.manifest.model.inputs == "text_pair"
        while texts := [line.rstrip("\n") for line in islice(sys.stdin, self.batch * AHEAD)]:
            pairs = (
                text_pairs("stdin", [line.partition("\t")[::2] for line in texts])
                if paired
                else None
            )
            for rows in self._over(pairs or Rows("stdin", texts, "text"), 0, len(texts)):
                yield [{**row, "id": row["id"] + at} for row in rows]
            at += len(texts)

    def _over(self, samples: Samples, start: int, stop: int) -> Iterator[list[dict[str, Any]]]:
        from hydrasurgeon.data import Batches, moved

        if start >= stop:
            return
        run, weight = self.arguments, next(self.model.parameters())
        batches = Batches(
            samples,
            self.model.transform,
            batch_size=self.batch,
            order=range(start, stop),
            skip_bad=run.skip_bad,
        )
        failures = iter(batches.skipped)
        at = start
        for number, batch in enumerate(batches, 1):
            decided = self.model.answered(
                moved(batch.inputs, weight.device, weight.dtype), cascade=self.in_steps
            )
            index = batch.index.tolist()
            begun = [self._named(samples, i) for i in index]
            answers = dict(zip(index, self._rows(decided, begun), strict=True))
            # What could not be read before the last sample of this batch has a message each, in
            # order.
            end = min(stop, start + self.batch * (1 + (max(answers) - start) // self.batch))
            yield [
                answers[i] if i in answers else {**self._named(samples, i), "error": next(failures)}
                for i in range(at, end)
            ]
            at = end
            if self.samples is not None:
                run.tick(samples.spec, number, len(batches))
        rest = [{**self._named(samples, i), "error": next(failures)} for i in range(at, stop)]
        if rest:
            yield rest

    def _rows(self, decided: Prediction, begun: list[dict[str, Any]]) -> list[dict[str, Any]]:
        from hydrasurgeon.decision.state import rows_of

        return rows_of(
            decided, begun, names=self.names, top=self.arguments.top, problem=self.problem
        )

    def _ranked(self, groups: Sequence[str]) -> list[dict[str, Any]]:
        """All rows, each with its place among those of its group; the first of equals comes first."""
        assert self.samples is not None
        cut = {*groups[self.first : self.last]} & {*groups[: self.first], *groups[self.last :]}
        if cut:
            what = (
                f"--shard {self.arguments.shard}: cuts the group {min(cut)[:60]!r}, of which "
                "each row has a rank"
            )
            raise UsageError(what, hint="Leave it out, or split the data between groups.")
        rows = [row for part in self._over(self.samples, self.first, self.last) for row in part]
        answered = [at for at, row in enumerate(rows) if "error" not in row]
        places = Counter[str]()
        for at in sorted(answered, key=lambda at: -rows[at]["logit"]):
            group = groups[self.first + at]
            places[group] += 1
            rows[at]["rank"] = places[group]
        return rows

    def _named(self, samples: Samples, i: int) -> dict[str, Any]:
        """What a row begins with: which sample it is of, and what is kept of the data."""
        has_id = self.id_column in samples.columns
        return {
            "id": plain(samples.carried(self.id_column, i)) if has_id else samples.name(i),
            **{key: plain(samples.carried(name, i)) for key, name in self.kept.items()},
        }

    def columns(self, ending: str) -> dict[str, str]:
        """The columns of a table with this ending, and what they hold."""
        top = min(self.arguments.top, self.classes)
        columns = _columns(ending, self.kept, top, self.problem)
        if not self.arguments.skip_bad:
            del columns["error"]
        return columns


class _Alone:
    """A decision in a file of its own, and what any model answered."""

    batch = 1024
    notes: tuple[str, ...] = ()

    def __init__(self, arguments: PredictOptions) -> None:
        from hydrasurgeon.measuring.predictions import read_outputs
        from hydrasurgeon.runtime.standalone import Decision

        assert arguments.decision is not None
        assert arguments.predictions is not None
        self.decision, self.top = Decision.load(arguments.decision), arguments.top
        given = read_outputs(Path(arguments.predictions))
        self.outputs, self.ids = given.outputs, given.ids or range(len(given.outputs.logits))
        self.names = self.decision.names or given.names
        if given.names not in (None, self.names):
            raise DataError(
                f"{arguments.predictions}: its classes are other ones than those of "
                f"{arguments.decision}",
                hint="Give predictions whose names stand in the same order.",
            )
        self.decision.decide(
            self.outputs.logits[:0],
            None if self.outputs.features is None else self.outputs.features[:0],
        )

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """Rows in the order of the predictions."""
        from hydrasurgeon.decision.state import rows_of

        count = len(self.outputs.logits)
        for start in range(0, count, self.batch):
            some = self.outputs.at(slice(start, start + self.batch))
            begun = [{"id": name} for name in self.ids[start : start + self.batch]]
            decided = self.decision.decide(some.logits, some.features)
            yield rows_of(decided, begun, names=self.names, top=self.top)

    def columns(self, ending: str) -> dict[str, str]:
        """The columns of a table with this ending, and what they hold."""
        columns = _columns(ending, {}, min(self.top, self.decision.classes), "single_label")
        del columns["error"]
        return columns


def kinds_of(problem: str) -> dict[str, str]:
    """What an answer to such a problem may hold, and what kind of value it is."""
    return {name: kind for name, kind in KINDS.items() if name not in OTHERS[problem]}


def _columns(ending: str, kept: Mapping[str, str], top: int, problem: str) -> dict[str, str]:
    """The columns of a table; CSV has two for each of the `top` labels."""
    columns = {"id": "text", **dict.fromkeys(kept, "text"), **kinds_of(problem)}
    if ending != ".csv":
        return columns
    tops: dict[str, str] = {}
    for number in range(1, top + 1):
        tops |= {f"top{number}": "text", f"p{number}": "number"}
    spread_out: dict[str, str] = {}
    for name, kind in columns.items():
        spread_out |= tops if name == "top" else {name: kind}
    return spread_out


def _samples(data: str, arguments: PredictOptions, keep: list[str]) -> Samples:
    """The data, with the columns that are carried over."""
    from hydrasurgeon.data import open_data
    from hydrasurgeon.data.sources import text_pairs

    if arguments.text_pair is not None:
        return text_pairs(data, [(arguments.text, arguments.text_pair)])
    carried = (arguments.id_column or ID, *keep)
    samples = open_data(data, limit=arguments.limit, seed=arguments.seed, carried=carried)
    wanted = [("--id-column", arguments.id_column), *(("--keep-columns", name) for name in keep)]
    for option, name in wanted:
        if name and name not in samples.columns:
            hint = (
                "Columns are those of a .csv, .jsonl, .parquet or hf: table; names are "
                "case-sensitive."
            )
            raise DataError(f"{option} {name}: {samples.spec} has no such column", hint=hint)
    return samples


def plain(value: Any) -> Any:
    """A value of a table as JSON has it; what JSON has no word for as text."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=str))
    except (TypeError, ValueError):
        return str(value)


def spread(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a spreadsheet reads it: no lists, and numbers with six digits."""
    cells = {
        key: f"{row[key]:.6g}" if KINDS.get(key) == "number" and row[key] is not None else row[key]
        for key in row
    }
    for number, (label, p) in enumerate(cells.pop("top", ()), 1):
        cells |= {f"top{number}": label, f"p{number}": f"{p:.6g}"}
    if cells.get("labels") is not None:
        cells["labels"] = "|".join(f"{pair[0]}:{pair[1]:.6g}" for pair in cells["labels"])
    for name in ("set", "answer"):
        if isinstance(cells.get(name), list):
            cells[name] = "|".join(map(str, cells[name]))
    return cells


def without_state(name: str) -> str:
    """A note on a checkpoint that was not calibrated."""
    return (
        f"{name} has no decision state: probabilities are not calibrated, and nothing is set "
        "aside; run calibrate"
    )
