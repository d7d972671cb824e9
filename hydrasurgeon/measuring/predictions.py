"""The predictions file: logits of one model on all data sets, as safetensors, so that metrics need
no model.

OOD scores that are no functions of the logits are stored beside them; a method that gives only
scores on OOD data needs no logits there. Several files form a Deep Ensemble.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy import ndarray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError, model_validator
from safetensors.numpy import save

from hydrasurgeon.data import Samples
from hydrasurgeon.data.labels import class_names
from hydrasurgeon.data.samples import UNLABELLED
from hydrasurgeon.errors import CheckpointError, DataError
from hydrasurgeon.files.atomic import write_bytes
from hydrasurgeon.files.decided import DecisionRecord
from hydrasurgeon.files.manifest import Input, TaskName, first_mistake, usual_task
from hydrasurgeon.files.tensors import ArrayFile, TensorFile, Tensors, typed, weights_sha256
from hydrasurgeon.files.untrusted import is_name, parse_json
from hydrasurgeon.lookup import format_number
from hydrasurgeon.measuring.results import TIMES, Cost, Count, summed_costs
from hydrasurgeon.measuring.sets import DataSets
from hydrasurgeon.options.shared import Run
from hydrasurgeon.run.bag_of_words import MOST, WordIds
from hydrasurgeon.run.shapes import Float, Int
from hydrasurgeon.runtime.answering import collected, numbered
from hydrasurgeon.statistics.metrics import DIGITS
from hydrasurgeon.statistics.probabilities import in_pieces, yes_or_no
from hydrasurgeon.statistics.scores.fitted import EnsembleScore
from hydrasurgeon.tasks import SINGLE, TASKS
from hydrasurgeon.tasks.base import Outputs, Task

Group = Literal["near", "far"]
Shift = tuple[str, int | None]
"""The name and the severity of a shifted set."""

ABOUT = "hydrasurgeon.predictions"
"""Header key of the file's description."""
MAX_ABOUT = 1 << 24
"""Maximum size of the description in bytes."""
READERS = dict.fromkeys(("cascade", "words", "seen"))
"""Fields of a decision state that are dropped when it is written, because the complete model has
answered.
"""
MAX_LISTED = 1 << 28
"""Maximum size of ids or names in bytes."""
OF_SET = re.compile(r"ood\.(.+?)(?:\.scores\..+|\.logits|\.probabilities)", re.DOTALL)
"""Pattern of an OOD set's tensor names."""
FLOATS = ("F16", "BF16", "F32", "F64")
"""Dtypes of logits and scores."""
VALUES = "values"
"""Name of the tensor with answers of a model of numbers: [sample] or [sample, member]."""
INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")
"""Dtypes of labels."""
SMALLEST = 1e-6
"""Smallest probability whose logarithm is taken: a forest gives 0 where no tree votes for a
class.
"""
HALF_DIGIT = 0.005
"""Rounding error of one probability with two digits, by which the sum of a row may differ from 1
...
"""
ROUNDED = (0.03, 0.5)
"""... and limits of that difference, for few and for many classes."""


@dataclass(frozen=True)
class Predictions:
    """Outputs of one model on an ID set, OOD sets and shifted sets."""

    name: str
    kind: str
    outputs: Outputs
    ood: Mapping[str, Outputs] = field(default_factory=dict)
    """Outputs by OOD set; those of a set with scores alone have logits of no member."""
    near: Collection[str] = ()
    """Names of the OOD sets that resemble the ID set."""
    shift: Mapping[Shift, Outputs] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, Float[ndarray, " sample"]]] = field(default_factory=dict)
    """Scores by OOD set ("" is the ID set) that came with the logits; they take precedence over
    scores computed from these.
    """
    cost: Cost | None = None
    decision: DecisionRecord | None = None
    """Decision state of the model."""
    task: Task = SINGLE
    source: Any = None
    """File name and hash."""
    ids: list[Any] | None = None
    """Names of the samples."""
    names: tuple[str, ...] | None = None
    """Names of the classes."""
    read: WordIds | None = None
    """Word ids of each sample, for a bag-of-words model."""

    def __len__(self) -> int:
        return len(self.outputs.logits)

    def group(self, name: str) -> Group:
        """Return the group of an OOD set."""
        return "near" if name in self.near else "far"


def write_predictions(
    predictions: Predictions,
    path: Path,
    *,
    data: str | None = None,
    more: Mapping[str, ndarray] | None = None,
) -> None:
    """Write a predictions file; `data` is the hash of the samples, `more` holds tensors for other
    readers.
    """
    outputs = predictions.outputs
    tensors = {"logits": outputs.logits, "labels": outputs.truth, **(more or {})}
    if outputs.groups is not None:
        tensors["groups"] = outputs.groups
    for name, outputs_of_set in predictions.ood.items():
        if outputs_of_set.logits.size:
            tensors[f"ood.{name}.logits"] = outputs_of_set.logits
    for name, scores in predictions.scores.items():
        prefix = f"ood.{name}.scores" if name else "scores"
        tensors |= {f"{prefix}.{score}": values for score, values in scores.items()}
    for shift, outputs_of_set in predictions.shift.items():
        key = f"shift.{_key(*shift)}"
        tensors |= {f"{key}.logits": outputs_of_set.logits, f"{key}.labels": outputs_of_set.truth}
    usual = predictions.task.name == usual_task(outputs.logits.shape[-1])
    about: dict[str, Any] = {
        "name": predictions.name,
        "kind": predictions.kind,
        **({} if data is None else {"data": data}),
        **({} if usual else {"task": predictions.task.name}),
        "ood": [[name, predictions.group(name)] for name in predictions.ood],
        "shift": [*map(list, predictions.shift)],
    }
    if predictions.cost is not None:
        about["cost"] = predictions.cost.model_dump(exclude={*TIMES})
    if predictions.decision is not None:
        about["decision"] = predictions.decision.model_copy(update=READERS).model_dump(mode="json")
    content = save(
        {name: np.ascontiguousarray(array) for name, array in tensors.items()},
        # One entry alone: safetensors writes several in an order that differs from file to file.
        metadata={ABOUT: json.dumps(about)},
    )
    write_bytes(path, content)


def _key(name: str, severity: int | None) -> str:
    return name if severity is None else f"{name}.{severity}"


def read_predictions(path: Path) -> Predictions:
    """Read a predictions file: our own, or any file with `logits`, `labels` and optionally
    `ood.<name>.logits` or `.scores.<score>`.
    """
    contents = _Contents(path)
    about, logits = contents.about, contents.answers
    shifts = {}
    for shift in about.shift:
        key = f"shift.{_key(*shift)}"
        shift_logits = contents.logits(f"{key}.logits")
        shifts[shift] = Outputs(
            shift_logits, None, contents.labels(f"{key}.labels", of=shift_logits)
        )
    labels = contents.labels("labels", of=logits)
    scores = {"": contents.scores("scores.", rows=len(logits))}
    ood = {}
    stored = [match[1] for match in map(OF_SET.fullmatch, sorted(contents.file.infos)) if match]
    for name in dict.fromkeys([*dict(about.ood), *contents.names(stored, "a set")]):
        ood[name], scores[name] = contents.ood_set(name)
    return Predictions(
        name=about.name or path.name.removesuffix(".safetensors"),
        kind=about.kind,
        outputs=Outputs(logits, None, labels, groups=contents.groups(len(logits))),
        ood=ood,
        near=[name for name, group in about.ood if group == "near"],
        shift=shifts,
        scores=scores,
        cost=about.cost,
        decision=about.decision,
        task=contents.task,
    )


def read_outputs(path: Path, *, labelled: bool = False, like: Outputs | None = None) -> Predictions:
    """Read the outputs of any model: logits, probabilities or `values` of numbers,
    optional `features`, `ids` and `names`, and labels if they are wanted. Members, classes and
    features must be as many as those of `like`.
    """
    contents = _Contents(path)
    logits, rows = contents.answers, len(contents.answers)
    if logits.shape[-1] < 2 and contents.task.scores:
        hint = "Replace one logit z by two, 0 and z, or one probability p by two, 1 - p and p."
        raise DataError(f"{path}: has only one class", hint=hint)
    outputs = Outputs(logits, contents.features())
    if labelled:
        outputs = replace(outputs, labels=contents.labels("labels", of=logits))
    sizes, expected = (_sizes_of(answers) for answers in (outputs, like or outputs))
    if sizes != expected:
        raise DataError(f"{path}: expected {expected}, as the other files have, found {sizes}")
    names = None
    if (listed := contents.listed("names", logits.shape[-1], "classes")) is not None:
        names = class_names(str(path), listed)
        if len(set(names)) < len(names):
            raise DataError(f"{path}: names holds a name twice")
    return Predictions(
        path.stem,
        "unknown",
        outputs,
        task=contents.task,
        source=contents.source,
        ids=contents.listed("ids", rows, "rows"),
        names=names,
        read=contents.words(rows),
    )


def _sizes_of(outputs: Outputs) -> str:
    """Describe the sizes that files of one model must share."""
    members, classes = outputs.logits.shape[1], outputs.logits.shape[-1]
    features = "no features"
    if outputs.features is not None:
        features = f"features of width {outputs.features.shape[-1]}"
    return f"{members} members, {classes} classes and {features}"


def is_predictions(spec: str | Path) -> bool:
    """Return True if a file holds answers instead of weights."""
    path = Path(spec)
    if path.suffix not in (".safetensors", ".npz") or not path.is_file():
        return False
    return bool({"logits", "probabilities", VALUES} & _opened(path).infos.keys())


def read_answers(path: Path, samples: Samples) -> tuple[ndarray, Input]:
    """Return the logits of exactly these samples, in their order; DataError if the file is for
    others.
    """
    contents = _Contents(path)
    logits, rows, data = contents.answers, len(contents.answers), contents.about.data
    alike = True
    if "labels" in contents.file.infos and samples.labels is not None:
        labels = contents.labels("labels", of=logits)
        alike = labels.tolist() == np.asarray(samples.labels).tolist()
    if rows != len(samples) or not alike or data not in (None, samples.fingerprint()["sha256"]):
        raise DataError(
            (
                f"{path}: holds answers for {rows} other samples than the {len(samples)} of "
                f"{samples.spec}"
            ),
            hint=(
                "Write it with eval --predictions on the training data, with the same --limit "
                "and --seed."
            ),
        )
    return logits, contents.source


def _opened(path: Path) -> TensorFile:
    if path.suffix == ".npz":
        return ArrayFile(path)
    try:
        return TensorFile(path)
    except CheckpointError as error:
        raise DataError(
            f"{path}: not a readable predictions file ({error.message.removeprefix(f'{path}: ')})",
            hint="Write one with eval --predictions, or with numpy's savez or safetensors' save_file.",
        ) from error


def _named(text: str) -> str:
    if not is_name(text):
        raise ValueError(
            "is not a valid name: it must be short, of one line, and without control characters"
        )
    return text


Name = Annotated[str, AfterValidator(_named)]


def _untimed(cost: Any) -> Any:
    """Return a cost without times, which belong to another run and perhaps to another machine."""
    if not isinstance(cost, dict):
        return cost
    return {key: value for key, value in cost.items() if key not in TIMES}


class _About(BaseModel):
    """Description of a file, from its header."""

    name: Name | None = None
    kind: Name = "unknown"
    data: Name | None = None
    ood: list[tuple[Name, Group]] = []
    shift: list[tuple[Name, Count | None]] = []
    cost: Annotated[Cost, BeforeValidator(_untimed)] | None = None
    decision: DecisionRecord | None = None
    task: TaskName | None = None
    """Task; absent if the number of classes implies it."""

    @model_validator(mode="after")
    def _each_once(self) -> _About:
        keys = [name for name, _ in self.ood], [_key(*shift) for shift in self.shift]
        if any(len(set(names)) != len(names) for names in keys):
            raise ValueError("names a set twice")
        return self


class _Contents:
    """Tensors of a predictions file; each one's header entry is checked before it is read."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, _opened(path)
        where, text = f"{path}: its description", self.file.metadata.get(ABOUT)
        self.about = _About()
        try:
            if text is not None:
                content = parse_json(text, where, most=MAX_ABOUT, error=DataError)
                self.about = _About.model_validate(content)
        except ValidationError as error:
            hint = "Write the file again with eval --predictions."
            raise DataError(f"{where}: {first_mistake(error)}", hint=hint) from error
        self.task = TASKS[self.about.task or SINGLE.name]
        if "logits" not in self.file.infos and VALUES in self.file.infos:
            usual: TaskName = "regression"
            self.answers = self._finite(VALUES, ("sample", "member"), {})[..., None]
        else:
            self.answers = self._logits("logits", {})
            usual = usual_task(self.answers.shape[-1])
        self.task = TASKS[self.about.task or usual]
        labels = self.about.decision and self.about.decision.labels
        classes = self.answers.shape[-1]
        if labels and {len(labels.temperatures), len(labels.thresholds)} != {classes}:
            raise DataError(f"{where}: its decision is not for {classes} labels")

    @property
    def source(self) -> Input:
        """File name and hash."""
        tensors = Tensors([self.file])
        return Input(name=self.path.name, sha256=weights_sha256(tensors, tensors.digests()))

    def ood_set(self, name: str) -> tuple[Outputs, dict[str, ndarray]]:
        """Return the outputs and the scores of an OOD set; one of the two may be absent."""
        logits, prefix = f"ood.{name}.logits", f"ood.{name}.scores."
        scored = [key for key in self.file.infos if key.startswith(prefix)]
        if self._stored(logits) in self.file.infos or not scored:
            ood_logits = self.logits(logits)
        else:
            ood_logits = np.zeros((next(iter(self.file.infos[scored[0]].shape), 0), 0, 0))
        return Outputs(ood_logits, None), self.scores(prefix, rows=len(ood_logits))

    def scores(self, prefix: str, *, rows: int) -> dict[str, Float[ndarray, " sample"]]:
        """Return the scores with this prefix: finite, one for each of the `rows`."""
        names = [
            name.removeprefix(prefix) for name in sorted(self.file.infos) if name.startswith(prefix)
        ]
        return {
            name: self._finite(prefix + name, ("sample",), {"sample": rows}).astype(np.float64)
            for name in self.names(names, "a score")
        }

    def names(self, names: Sequence[str], of: str) -> list[str]:
        """Return the distinct names; DataError if one is not a valid name."""
        for name in names:
            if not is_name(name):
                raise DataError(f"{self.path}: {name[:80]!r} is not a name of {of}")
        return list(dict.fromkeys(names))

    def logits(self, name: str) -> Float[ndarray, "sample member *klass"]:
        """Return the logits of another set, with as many members and classes as the file's own."""
        shape = self.answers.shape
        return self._logits(name, {"member": shape[1], "class": shape[-1]})

    def _logits(self, name: str, sizes: Mapping[str, int]) -> ndarray:
        stored = self._stored(name)
        logits = self._finite(stored, self.task.axes, sizes)
        if stored != name:
            return self._logarithms(stored, logits)
        if self._distributions(logits):
            raise DataError(
                f"{self.path}: {name} holds probabilities: each row is of 0 to 1 and sums to 1",
                hint=f"Call it {name.replace('logits', 'probabilities')}, or give logarithms.",
            )
        return logits

    def _stored(self, name: str) -> str:
        """Return the name of the tensor that gives these logits: themselves, or their
        probabilities.
        """
        of_probs = name.replace("logits", "probabilities")
        return of_probs if name not in self.file.infos and of_probs in self.file.infos else name

    def _logarithms(self, name: str, probs: ndarray) -> ndarray:
        if not self._distributions(probs):
            raise DataError(
                f"{self.path}: {name} must be of 0 to 1, and sum to 1 in each row",
                hint="Normalise the rows; call it logits if it holds logits.",
            )
        # Those of float32 are left as they are: what is rounded sums to another number.
        sums = probs.astype(np.float64).sum(axis=-1, keepdims=True)
        exact = np.abs(sums - 1) < SMALLEST
        return np.log(np.maximum(np.where(exact, probs, probs / sums), SMALLEST))

    @staticmethod
    def _distributions(logits: ndarray) -> bool:
        """Return True if each row is a probability distribution, up to rounding, of several
        classes.
        """
        classes, (least, most) = logits.shape[-1], ROUNDED
        within = bool(((logits >= 0) & (logits <= 1)).all()) and classes > 1
        rounded = min(max(least, HALF_DIGIT * classes), most)
        return within and bool(
            (np.abs(logits.astype(np.float64).sum(axis=-1) - 1) <= rounded).all()
        )

    def listed(self, name: str, count: int, of: str) -> list[Any] | None:
        """Return a list with one text or integer for each of `count` things; None if the file has
        none.
        """
        text, info = self.file.metadata.get(name), self.file.infos.get(name)
        values: Any = None
        if text is not None:
            values = parse_json(text, f"{self.path}: {name}", most=MAX_LISTED, error=DataError)
        elif info is not None:
            values = self._array(name, INTEGERS, (of,), {}).tolist()
        else:
            return None
        plain = isinstance(values, list) and all(type(value) in (str, int) for value in values)
        if not plain or len(values) != count:
            raise DataError(f"{self.path}: {name} must be a list, one for each of {count} {of}")
        return values

    def words(self, rows: int) -> WordIds | None:
        """Return the ids of each row's `tokens` (negative numbers are padding), or of the words of
        its `texts`.
        """
        texts = self.listed("texts", rows, "rows")
        if texts is not None:
            return WordIds.of([str(text) for text in texts])
        if "tokens" not in self.file.infos:
            return None
        ids = self._array("tokens", INTEGERS, ("row", "token"), {"row": rows})
        if ids.max(initial=0) >= MOST:
            raise DataError(f"{self.path}: tokens must lie below {MOST:,}")
        return WordIds.of(ids)

    def features(self) -> Float[ndarray, "sample member width"] | None:
        """Return the inputs of each member's classifier; None if the file has none."""
        if "features" not in self.file.infos:
            return None
        rows, members = self.answers.shape[:2]
        sizes = {"sample": rows, "member": members}
        return self._finite("features", ("sample", "member", "width"), sizes)

    def groups(self, rows: int) -> Int[ndarray, " sample"] | None:
        """Return the group of each row; None if the file has none."""
        if "groups" not in self.file.infos:
            return None
        return self._array("groups", ("I64",), ("sample",), {"sample": rows})

    def labels(self, name: str, *, of: ndarray) -> ndarray:
        """Return class numbers, −1 for a word without a class; or numbers."""
        task, info = self.task, self.file.infos.get(name)
        sizes = dict(zip(task.axes, of.shape, strict=True))
        words = "word" in task.label_axes
        low, high = task.numbers or (UNLABELLED if words else 0, sizes["class"] - 1)
        if task.numbers is None or (info is not None and info.dtype in INTEGERS):
            values = self._array(name, INTEGERS, task.label_axes, sizes).astype("i8")
        else:
            values = self._finite(name, task.label_axes, sizes)
        wrong = np.argwhere((values < low) | (values > high))
        if len(wrong):
            row, value = wrong[0][0], values[tuple(wrong[0])]
            raise DataError(
                f"{self.path}: {name}: row {row} has the label {format_number(value, 6)}; labels must lie in "
                f"{format_number(low, 6)} to {format_number(high, 6)}"
            )
        return values if task.numbers is None else values.astype(np.float64)

    def _array(
        self, name: str, dtypes: Sequence[str], axes: Sequence[str], sizes: Mapping[str, int]
    ) -> ndarray:
        """Read a tensor and check its dtype and shape.

        No axis may be empty, those in `sizes` have these sizes, and the axis of a single member may
        be absent.
        """
        info = self.file.infos.get(name)
        if info is None:
            hint = (
                "Accuracy and calibration need logits, and the true class of each row; only "
                "OOD sets may have scores"
            )
            raise DataError(f"{self.path}: tensor {name} is missing", hint=f"{hint} instead.")
        shape = info.shape
        if "member" in axes and len(shape) == len(axes) - 1:
            shape = (*shape[:1], 1, *shape[1:])
        # Labels may know more words than logits.
        fits = len(shape) == len(axes) and all(
            size > 0 and (size == sizes.get(axis, size) or (axis == "word" and size > sizes[axis]))
            for axis, size in zip(axes, shape, strict=True)
        )
        if info.dtype not in dtypes or not fits:
            kind = "floating-point" if dtypes is FLOATS else "integer"
            expected_shape = ", ".join(
                f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes
            )
            raise DataError(
                f"{self.path}: {name} must be {kind} [{expected_shape}], found {info.dtype} {info.shape}"
            )
        return typed(self.file.read(name).reshape(shape), info.dtype)

    def _finite(self, name: str, axes: Sequence[str], sizes: Mapping[str, int]) -> ndarray:
        tensor = self._array(name, FLOATS, axes, sizes)
        # In float32: sums and quotients of float64's largest numbers would overflow.
        with np.errstate(over="ignore"):
            parts = (part.astype(np.float32) for part in in_pieces(tensor, 1 << 12))
            finite = all(np.isfinite(part).all() for part in parts)
        if not finite:
            hint = "The model that gave them overflowed, or its weights hold NaN."
            if bool((tensor[~np.isfinite(tensor)] == -math.inf).all()):
                hint = (
                    "-inf is the logarithm of a probability of 0: clip it first, as in "
                    "np.log(p.clip(1e-6)), or give p itself as probabilities."
                )
            raise DataError(f"{self.path}: {name} holds values that are not finite", hint=hint)
        return tensor


def ensembled(files: Sequence[tuple[Path, Predictions]], *, name: str | None = None) -> Predictions:
    """Return one model with the members of all files; DataError if these are for different
    samples.
    """
    (first_path, first), *further = files
    for path, other in further:
        for key, samples in _samples_of(first).items():
            if samples != _samples_of(other)[key]:
                raise DataError(
                    f"--ensemble: {first_path} and {path} have other {key}",
                    hint="Write both with eval --predictions on the same data, in the same order, "
                    "with the same --limit"
                    " and --seed.",
                )
    members = [predictions for _, predictions in files]
    if not all(ood_outputs.logits.size for p in members for ood_outputs in p.ood.values()):
        raise DataError("--ensemble requires logits, and the files hold only scores")
    costs = [p.cost for p in members if p.cost is not None]
    cost = summed_costs(costs) if len(costs) == len(members) else None
    return Predictions(
        name=name or " + ".join(predictions.name for predictions in members),
        kind="ensemble",
        task=first.task,
        outputs=_joined([member.outputs for member in members]),
        ood={name: _joined([member.ood[name] for member in members]) for name in first.ood},
        near=first.near,
        shift={key: _joined([member.shift[key] for member in members]) for key in first.shift},
        cost=cost,
    )


def _joined(models: Sequence[Outputs]) -> Outputs:
    """Return the members of several models as one model's."""
    dtype = models[0].logits.dtype
    logits = [outputs.logits.astype(dtype, copy=False) for outputs in models]
    return replace(models[0], logits=np.concatenate(logits, axis=1))


def _samples_of(predictions: Predictions) -> dict[str, Any]:
    """Return the properties that files of one ensemble must share, by their names in messages."""
    return {
        "classes": predictions.outputs.logits.shape[2],
        "task": predictions.task.name,
        "labels": predictions.outputs.truth.tolist(),
        "OOD sets": {
            name: (predictions.group(name), len(outputs.logits))
            for name, outputs in predictions.ood.items()
        },
        "shifted sets": {key: outputs.truth.tolist() for key, outputs in predictions.shift.items()},
    }


Said = tuple[Outputs, dict[str, ndarray]]
"""Outputs of a model for some samples, and OOD scores that are no functions of them."""


def said_of(
    models: Sequence[Any],
    samples: Samples,
    run: Run,
    skipped: list[str],
    fitted: EnsembleScore | None = None,
) -> Said:
    """Return logits and labels, and a score of the features, in one pass."""
    outputs = collected(models, samples, run, features=fitted is not None, skipped=skipped)
    if fitted is None or outputs.features is None:
        return outputs, {}
    score = fitted(outputs.features, yes_or_no(outputs.logits)).round(decimals=DIGITS)
    return replace(outputs, features=None), {fitted.kind: score}


def predicted(sets: DataSets, answer: Callable[[Any, bool], Said], **about: Any) -> Predictions:
    """Return the outputs of one model on all sets; `answer` computes outputs, and OOD scores on
    request.
    """
    outputs, scores = answer(sets.id, True)
    ood_answers = {name: answer(samples, True) for name, samples in sets.ood.items()}
    return Predictions(
        outputs=grouped(outputs, sets.id),
        ood={name: outputs_there for name, (outputs_there, _) in ood_answers.items()},
        near=sets.near,
        shift={shift: answer(samples, False)[0] for shift, samples in sets.shift.items()},
        scores={"": scores, **{name: scores for name, (_, scores) in ood_answers.items()}},
        **about,
    )


def grouped(outputs: Outputs, samples: Samples) -> Outputs:
    """Add the number of each sample's group, if the data have groups and all samples were read."""
    groups = samples.groups
    if groups is None or len(groups) != len(outputs.logits):
        return outputs
    return replace(outputs, groups=numbered(groups))
