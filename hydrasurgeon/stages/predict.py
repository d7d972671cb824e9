"""predict: one row for each sample, in their order: label, set, doubts, and whether to answer at all."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import CheckpointError, DataError, UsageError
from hydrasurgeon.files.atomic import output_file
from hydrasurgeon.files.growing import Growing, write_csv, write_lines, write_parquet
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
    "probability": "number",
    **dict.fromkeys(("top", "set"), "json"),
    **dict.fromkeys(("total", "aleatoric", "epistemic", "ood_score"), "number"),
    "unfamiliar": "flag",
    "members_run": "whole",
    **dict.fromkeys(("answer", "error"), "text"),
}
"""All that an answer may hold, and what kind of value it is."""
ENDINGS = (".jsonl", ".csv", ".parquet")
"""What an output may end in."""
ID = "id"
"""The column that names the rows, unless --id-column says otherwise."""
SHARD = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")
"""`--shard`, as it is given: which part of how many."""


@dataclass(frozen=True)
class Predicted:
    """What came out, in numbers; the rows are where they were asked to be."""

    path: Path | None
    """None: every row was handed to the caller."""
    rows: int
    answers: dict[str, int]
    """How many were `answered`, `abstain`, `unfamiliar`, and could not be read (`error`)."""
    notes: tuple[str, ...] = ()
    resumed: int = 0
    """Rows that an interrupted run had left."""


@stage(PredictOptions)
def predict(arguments: PredictOptions) -> Predicted:
    """Answer for every sample of a data set; rows are written into `out`, or handed to `each` as lines of JSON."""
    _check(arguments)
    place, streams = None, arguments.data == "-"
    if arguments.out is not None:
        place = output_file(arguments.out, option="-o", force=arguments.force, inputs=arguments.sources)
    opened = open_checkpoint(arguments.checkpoint, arch=arguments.arch)
    opened = classifying(opened, arguments, None if streams else arguments.data)
    need_classes(opened)
    opened.digests()
    answering, counts, resumed = _Answering(opened, arguments), Counter[str](), 0
    if place is None:
        for rows in answering.rows(0):
            counts.update(map(_outcome, rows))
            for row in rows if arguments.each else ():
                arguments.each(_line(row))  # type: ignore[misc]
    else:
        growing = Growing(place, answering.identity, step=answering.batch, force=arguments.force or streams)
        resumed = growing.done
        counts.update(_outcome(json.loads(line)) for line in growing.lines())
        try:
            for rows in answering.rows(resumed):
                counts.update(map(_outcome, rows))
                growing.add([_line(row) for row in rows])
            growing.finish(answering.writer(place.suffix))
        finally:
            growing.close()
    return Predicted(place, sum(counts.values()), dict(sorted(counts.items())), answering.notes, resumed)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


def _outcome(row: dict[str, Any]) -> str:
    if "error" in row:
        return "error"
    return row["answer"] if row["answer"] in ("abstain", "unfamiliar") else "answered"


def _check(arguments: PredictOptions) -> None:
    """Options that go together."""
    if arguments.out is not None and Path(arguments.out).suffix not in ENDINGS:
        raise UsageError(f"-o {arguments.out}: must end in {', '.join(ENDINGS)}", hint="The ending says the format.")
    if arguments.shard is not None:
        match = SHARD.fullmatch(arguments.shard)
        if match is None or int(match[1]) > int(match[2]):
            raise UsageError(f"--shard {arguments.shard}: not I/N with I from 1 to N", hint="Such as --shard 1/4.")
    of_files = ("shard", "limit", "id_column", "keep_columns")
    wrong = [arguments.flag(name) for name in of_files if getattr(arguments, name) is not None]
    if arguments.data == "-" and wrong:
        raise UsageError(f"--data - conflicts with {wrong[0]}", hint="Leave it out, or give a file as --data.")


class _Answering:
    """One checkpoint and one data set: rows, batch by batch."""

    def __init__(self, opened: Checkpoint, arguments: PredictOptions) -> None:
        from hydrasurgeon.data.batches import batch_size_of
        from hydrasurgeon.runtime.classifier import as_classifier

        self.arguments = arguments
        self.batch = batch_size_of(arguments.batch_size)
        self.model: Classifier = as_classifier(opened, device=arguments.device, dtype=arguments.dtype, lean=True)
        self.names, self.classes = opened.manifest.model.labels, opened.manifest.model.num_classes
        keep = [name.strip() for name in (arguments.keep_columns or "").split(",") if name.strip()]
        # The name of an answer's own field is taken: what the data calls so is told apart.
        self.kept = {f"data_{name}" if name in KINDS else name: name for name in keep}
        self.id_column = arguments.id_column or ID
        self.samples = None if arguments.data == "-" else _samples(arguments, keep)
        # This shard's samples, cut where batches are; none of stdin.
        count = 0 if self.samples is None else len(self.samples)
        number, shards = map(int, (arguments.shard or "1/1").split("/"))
        batches = -(-count // self.batch)
        self.first, self.last = (min(count, self.batch * (batches * at // shards)) for at in (number - 1, number))
        self.notes: tuple[str, ...] = (opened.note,) if opened.note else ()
        cascade = None if self.model.state is None else self.model.state.record.cascade
        check_cascades([opened] if arguments.cascade else [])
        self.in_steps = cascade is not None and arguments.cascade is not False
        if self.model.state is None:
            nothing = "probabilities are not calibrated, and nothing is set aside; run calibrate"
            self.notes += (f"{opened.name} has no decision state: {nothing}",)
        self.identity = {
            "weights_sha256": opened.manifest.weights_sha256,
            "recorded": opened.recorded,
            "data": Path(arguments.data).name,
            "rows": [self.first, self.last],
            "batch": self.batch,
            "columns": [self.id_column, *keep],
            "labels": self.names,
            **{name: getattr(arguments, name) for name in ("dtype", "top", "limit", "seed", "skip_bad")},
            **({"cascade": False} if cascade is not None and not self.in_steps else {}),
        }

    def rows(self, done: int) -> Iterator[list[dict[str, Any]]]:
        """Rows in the order of the samples, without the `done` first."""
        if self.samples is not None:
            yield from self._over(self.samples, self.first + done, self.last)
            return
        from hydrasurgeon.data.samples import Rows

        at = 0
        while texts := [line.rstrip("\n") for line in islice(sys.stdin, self.batch * AHEAD)]:
            for rows in self._over(Rows("stdin", texts, "text"), 0, len(texts)):
                yield [{**row, "id": row["id"] + at} for row in rows]
            at += len(texts)

    def _over(self, samples: Samples, start: int, stop: int) -> Iterator[list[dict[str, Any]]]:
        from hydrasurgeon.data import Batches, moved
        from hydrasurgeon.decision.state import rows_of

        if start >= stop:
            return
        run, weight = self.arguments, next(self.model.parameters())
        batches = Batches(
            samples, self.model.transform, batch_size=self.batch, order=range(start, stop), skip_bad=run.skip_bad
        )
        failures = iter(batches.skipped)
        at = start
        for number, batch in enumerate(batches, 1):
            decided = _decided(self.model, moved(batch.inputs, weight.device, weight.dtype), cascade=self.in_steps)
            index = batch.index.tolist()
            begun = [self._named(samples, i) for i in index]
            answers = dict(zip(index, rows_of(decided, begun, names=self.names, top=run.top), strict=True))
            # What could not be read before the last sample of this batch has a message each, in order.
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

    def _named(self, samples: Samples, i: int) -> dict[str, Any]:
        """What a row begins with: which sample it is of, and what is kept of the data."""
        has_id = self.id_column in samples.columns
        return {
            "id": plain(samples.carried(self.id_column, i)) if has_id else samples.name(i),
            **{key: plain(samples.carried(name, i)) for key, name in self.kept.items()},
        }

    def writer(self, ending: str) -> Callable[[IO[bytes], Iterator[str]], None]:
        """What writes rows into a file with this ending."""
        kinds = {"id": "text", **dict.fromkeys(self.kept, "text"), **KINDS}
        if ending == ".jsonl":
            return write_lines
        if ending == ".parquet":
            return write_parquet(kinds)
        count = min(self.arguments.top, self.classes)
        tops = [name for n in range(1, count + 1) for name in (f"top{n}", f"p{n}")]
        columns = [each for name in kinds for each in (tops if name == "top" else [name])]
        return write_csv(columns, spread)


def _samples(arguments: PredictOptions, keep: list[str]) -> Samples:
    """The data, with the columns that are carried over."""
    from hydrasurgeon.data import open_data

    carried = (arguments.id_column or ID, *keep)
    samples = open_data(arguments.data, limit=arguments.limit, seed=arguments.seed, carried=carried)
    wanted = [("--id-column", arguments.id_column), *(("--keep-columns", name) for name in keep)]
    for option, name in wanted:
        if name and name not in samples.columns:
            hint = "Columns are those of a .csv, .jsonl, .parquet or hf: table; names are case-sensitive."
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
    cells = {key: f"{row[key]:.6g}" if KINDS.get(key) == "number" and row[key] is not None else row[key] for key in row}
    for number, (label, p) in enumerate(cells.pop("top", ()), 1):
        cells |= {f"top{number}": label, f"p{number}": f"{p:.6g}"}
    if cells.get("set") is not None:
        cells["set"] = "|".join(map(str, cells["set"]))
    return cells


def _decided(model: Classifier, inputs: Any, *, cascade: bool) -> Prediction:
    """By the decision state, or by nothing but the mean of the members' probabilities."""
    import torch

    from hydrasurgeon.decision.state import undecided

    with torch.inference_mode():
        plain = model.state is None
        decided = undecided(model(inputs).float().cpu()) if plain else model.decide(inputs, cascade=cascade)
    if not torch.isfinite(decided.probs).all():
        hint = "The model overflows: use --dtype float32, or start from a sound one."
        raise CheckpointError(f"{model.name}: its logits hold NaN or infinity", hint=hint)
    return decided
