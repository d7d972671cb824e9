"""The predictions file: logits of one model on all data sets, as safetensors, so that metrics need
no model.

OOD scores that are no functions of the logits stand beside them; a method that gives nothing else
on OOD data needs no logits there. Several files are a Deep Ensemble.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
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
from hydrasurgeon.files.foreign import is_name, parse_json
from hydrasurgeon.files.manifest import Input, ProblemName, first_mistake, usual_problem
from hydrasurgeon.files.tensors import ArrayFile, TensorFile, Tensors, weights_sha256
from hydrasurgeon.measuring.results import Cost, Count
from hydrasurgeon.measuring.sets import DataSets
from hydrasurgeon.options.shared import Run
from hydrasurgeon.problems import PROBLEMS, SINGLE
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.run.shapes import Float, Int
from hydrasurgeon.run.words import MOST, WordIds
from hydrasurgeon.runtime.answering import collected, numbered
from hydrasurgeon.statistics.metrics import DIGITS
from hydrasurgeon.statistics.probabilities import in_pieces, yes_or_no
from hydrasurgeon.statistics.scores.fitted import EnsembleScore

Group = Literal["near", "far"]
Shift = tuple[str, int | None]
"""The name and the severity of a shifted set."""
Fits = Callable[[tuple[int, ...]], bool]
"""Whether a tensor has a shape that it may have."""

ABOUT = "hydrasurgeon.predictions"
"""Header key of what the file says of itself."""
MAX_ABOUT = 1 << 20
"""Bytes of it."""
MAX_LISTED = 1 << 28
"""Bytes of ids or names."""
OF_SET = re.compile(r"ood\.(.+?)(?:\.scores\..+|\.logits|\.probabilities)", re.DOTALL)
"""The name of a tensor of an OOD set."""
FLOATS = ("F16", "BF16", "F32", "F64")
"""Dtypes of logits and scores."""
VALUES = "values"
"""Answers of a model of numbers: [sample] or [sample, member]."""
INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")
"""Dtypes of labels."""
SMALLEST = 1e-6
"""What a probability is at least, where its logarithm is taken: a forest says 0 of what no tree said."""
HALF_DIGIT = 0.005
"""What each probability of a row may add to how far its sum is from 1: they may have two digits ..."""
ROUNDED = (0.03, 0.5)
"""... and between what that lies, for few and for many classes."""


@dataclass(frozen=True)
class Predictions:
    """What one model said about an ID set, OOD sets and shifted sets."""

    name: str
    kind: str
    outputs: Outputs
    ood: Mapping[str, Outputs] = field(default_factory=dict)
    """By the set's name; logits of no member where only scores are known."""
    near: Collection[str] = ()
    """The OOD sets that resemble the ID set."""
    shift: Mapping[Shift, Outputs] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, Float[ndarray, " sample"]]] = field(default_factory=dict)
    """OOD scores that came with the logits, before what these would give, by OOD set; "" is the ID
    set.
    """
    cost: Cost | None = None
    problem: Problem = SINGLE
    source: Any = None
    """What the file is called, and hashes to."""
    ids: list[Any] | None = None
    """What the samples are called."""
    names: tuple[str, ...] | None = None
    """The classes."""
    read: WordIds | None = None
    """What a reader of words reads of each sample."""

    def __len__(self) -> int:
        return len(self.outputs.logits)

    def group(self, name: str) -> Group:
        """Of an OOD set."""
        return "near" if name in self.near else "far"


def write_predictions(
    predictions: Predictions,
    path: Path,
    *,
    data: str | None = None,
    more: Mapping[str, ndarray] | None = None,
) -> None:
    """`data` hashes the samples that the logits are for; `more` is for whoever else reads the file."""
    outputs = predictions.outputs
    tensors = {"logits": outputs.logits, "labels": outputs.truth, **(more or {})}
    if outputs.groups is not None:
        tensors["groups"] = outputs.groups
    for name, said in predictions.ood.items():
        if said.logits.size:
            tensors[f"ood.{name}.logits"] = said.logits
    for name, scores in predictions.scores.items():
        prefix = f"ood.{name}.scores" if name else "scores"
        tensors |= {f"{prefix}.{score}": values for score, values in scores.items()}
    for shift, said in predictions.shift.items():
        key = f"shift.{_key(*shift)}"
        tensors |= {f"{key}.logits": said.logits, f"{key}.labels": said.truth}
    usual = predictions.problem.name == usual_problem(outputs.logits.shape[-1])
    about: dict[str, Any] = {
        "name": predictions.name,
        "kind": predictions.kind,
        **({} if data is None else {"data": data}),
        **({} if usual else {"problem": predictions.problem.name}),
        "ood": [[name, predictions.group(name)] for name in predictions.ood],
        "shift": [*map(list, predictions.shift)],
    }
    if predictions.cost is not None:
        # A time is true of one machine at one moment, and would change the file on every run.
        about["cost"] = predictions.cost.model_dump(exclude={"latency_ms"})
    content = save(
        {name: np.ascontiguousarray(array) for name, array in tensors.items()},
        # One entry alone: safetensors writes several in an order that differs from file to file.
        metadata={ABOUT: json.dumps(about)},
    )
    write_bytes(path, content)


def _key(name: str, severity: int | None) -> str:
    return name if severity is None else f"{name}.{severity}"


def read_predictions(path: Path) -> Predictions:
    """Our own file, or anyone's with `logits`, `labels` and perhaps `ood.<name>.logits` or
    `.scores.<score>`.
    """
    file = _opened(path)
    about = _about(path, file)
    contents, logits = _told(path, file, about)
    shifts = {}
    for shift in about.shift:
        key = f"shift.{_key(*shift)}"
        said = contents.logits(f"{key}.logits", like=logits)
        shifts[shift] = Outputs(said, None, contents.labels(f"{key}.labels", of=said))
    labels = contents.labels("labels", of=logits)
    scores = {"": contents.scores("scores.", rows=len(logits))}
    ood = {}
    for name in dict.fromkeys([*dict(about.ood), *contents.ood_names()]):
        ood[name], scores[name] = contents.ood_set(name, like=logits)
    return Predictions(
        name=about.name or path.name.removesuffix(".safetensors"),
        kind=about.kind,
        outputs=Outputs(logits, None, labels, groups=contents.groups(len(logits))),
        ood=ood,
        near=[name for name, group in about.ood if group == "near"],
        shift=shifts,
        scores=scores,
        cost=about.cost,
        problem=contents.problem,
    )


def _told(path: Path, file: TensorFile, about: _About) -> tuple[_Contents, ndarray]:
    """A file whose kind of problem it says, or its answers tell; and these."""
    named = SINGLE if about.problem is None else PROBLEMS[about.problem]
    contents = _Contents(path, file, named)
    logits = contents.logits("logits")
    usual = "number" if VALUES in file.infos else usual_problem(logits.shape[-1])
    return replace(contents, problem=PROBLEMS[about.problem or usual]), logits


def read_outputs(path: Path, *, labelled: bool = False, like: Outputs | None = None) -> Predictions:
    """Logits, probabilities or `values` of numbers, `features`, `ids` and `names` where there are some, and the labels
    that are wanted; with as many members, classes and features as `like`.
    """
    file = _opened(path)
    (contents, logits), tensors = _told(path, file, _about(path, file)), Tensors([file])
    if like is not None:
        contents.check_like("logits", logits, like.logits)
    if logits.shape[-1] < 2 and contents.problem.scores:
        hint = "Of one logit z make two, 0 and z; of a probability p make two, 1 - p and p."
        raise DataError(
            f"{path}: answers of one class, which leave nothing to choose between", hint=hint
        )
    features = contents.features(logits) if "features" in file.infos else None
    outputs = Outputs(logits, features, contents.labels("labels", of=logits) if labelled else None)
    widths = [
        None if each is None or each.features is None else each.features.shape[-1]
        for each in (outputs, like)
    ]
    if like is not None and widths[0] != widths[1]:
        width, expected = (
            "no features" if each is None else f"features of width {each}" for each in widths
        )
        raise DataError(f"{path}: expected {expected}, as the other files have, found {width}")
    source = Input(name=path.name, sha256=weights_sha256(tensors, tensors.digests()))
    names = contents.listed("names", logits.shape[-1], "classes")
    if names is not None:
        names = list(class_names(str(path), names))
        if len(set(names)) < len(names):
            raise DataError(f"{path}: names holds a name twice")
    return Predictions(
        path.stem,
        "unknown",
        outputs,
        problem=contents.problem,
        source=source,
        ids=contents.listed("ids", len(logits), "rows"),
        names=None if names is None else tuple(names),
        read=contents.words(len(logits)),
    )


def is_predictions(spec: str | Path) -> bool:
    """Whether a file holds answers, not weights."""
    path = Path(spec)
    if path.suffix not in (".safetensors", ".npz") or not path.is_file():
        return False
    return bool({"logits", "probabilities", VALUES} & _opened(path).infos.keys())


def read_answers(path: Path, samples: Samples) -> tuple[ndarray, Input]:
    """Logits for exactly these samples, in their order; DataError where they are for others."""
    given = read_outputs(
        path, labelled="labels" in _opened(path).infos and samples.labels is not None
    )
    outputs = given.outputs
    data, rows = _about(path, _opened(path)).data, len(outputs.logits)
    alike = outputs.labels is None or outputs.labels.tolist() == np.asarray(samples.labels).tolist()
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
    return outputs.logits, given.source


def _about(path: Path, file: TensorFile) -> _About:
    """What a file says of itself, if anything."""
    where, text = f"{path}: its description", file.metadata.get(ABOUT)
    if text is None:
        return _About()
    try:
        return _About.model_validate(parse_json(text, where, most=MAX_ABOUT, error=DataError))
    except ValidationError as error:
        hint = "Write the file again with eval --predictions."
        raise DataError(f"{where}: {first_mistake(error)}", hint=hint) from error


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
            "is no name: it must be short, of one line, and without control characters"
        )
    return text


Name = Annotated[str, AfterValidator(_named)]


def _untimed(cost: Any) -> Any:
    """Times are not written: they are another one on every machine."""
    return {**cost, "latency_ms": None} if isinstance(cost, dict) else cost


class _About(BaseModel):
    """What a file says of itself."""

    name: Name | None = None
    kind: Name = "unknown"
    data: Name | None = None
    ood: list[tuple[Name, Group]] = []
    shift: list[tuple[Name, Count | None]] = []
    cost: Annotated[Cost, BeforeValidator(_untimed)] | None = None
    problem: ProblemName | None = None
    """Absent where the number of classes tells it."""

    @model_validator(mode="after")
    def _each_once(self) -> _About:
        keys = [name for name, _ in self.ood], [_key(*shift) for shift in self.shift]
        if any(len(set(names)) != len(names) for names in keys):
            raise ValueError("names a set twice")
        return self


@dataclass(frozen=True)
class _Contents:
    """The tensors of a predictions file; what the header says of one is checked before it is read."""

    path: Path
    file: TensorFile
    problem: Problem = SINGLE

    def ood_names(self) -> list[str]:
        """The sets that tensors are called after."""
        matches = map(OF_SET.fullmatch, sorted(self.file.infos))
        return self._names([match[1] for match in matches if match is not None], "a set")

    def ood_set(self, name: str, *, like: ndarray) -> tuple[Outputs, dict[str, ndarray]]:
        """Logits, scores, or both, of as many samples."""
        logits, prefix = f"ood.{name}.logits", f"ood.{name}.scores."
        scored = [each for each in self.file.infos if each.startswith(prefix)]
        if self._stored(logits) in self.file.infos or not scored:
            said = self.logits(logits, like=like)
        else:
            shape = self.file.infos[scored[0]].shape
            said = np.zeros((shape[0] if shape else 0, 0, 0))
        return Outputs(said, None), self.scores(prefix, rows=len(said))

    def scores(self, prefix: str, *, rows: int) -> dict[str, Float[ndarray, " sample"]]:
        """Finite, one for each of the `rows`."""
        names = [
            name.removeprefix(prefix) for name in sorted(self.file.infos) if name.startswith(prefix)
        ]
        wanted = f"floating-point, one for each of {rows}"
        return {
            name: self._finite(
                prefix + name, lambda shape: shape == (rows,) != (0,), wanted
            ).astype(np.float64)
            for name in self._names(names, "a score")
        }

    def _names(self, names: Sequence[str], of: str) -> list[str]:
        """Names that tensors are called after, each once."""
        for name in names:
            if not is_name(name):
                raise DataError(f"{self.path}: {name[:80]!r} is no name of {of}")
        return list(dict.fromkeys(names))

    def logits(
        self, name: str, *, like: ndarray | None = None
    ) -> Float[ndarray, "sample member *klass"]:
        """Finite, for one member or several; with as many members and classes as `like`."""
        if name not in self.file.infos and VALUES in self.file.infos:
            wanted = "floating-point [sample] or [sample, member]"
            values = self._finite(VALUES, lambda shape: len(shape) in (1, 2) and all(shape), wanted)
            return values.reshape(len(values), -1, 1)
        axes = self.problem.axes
        wanted, most = f"floating-point [{', '.join(axes)}]", len(axes)
        stored = self._stored(name)
        logits = self._finite(
            stored, lambda shape: len(shape) in (most - 1, most) and all(shape), wanted
        )
        logits = logits if logits.ndim == most else logits[:, None]
        if stored != name:
            logits = self._logarithms(stored, logits)
        elif self._distributions(logits):
            raise DataError(
                f"{self.path}: {name} holds probabilities: each row is of 0 to 1 and sums to 1",
                hint=f"Call it {name.replace('logits', 'probabilities')}, or give logarithms.",
            )
        if like is not None:
            self.check_like(stored, logits, like)
        return logits

    def check_like(self, name: str, logits: ndarray, like: ndarray) -> None:
        """Refuse answers of other members or classes."""
        members, classes = logits.shape[1], logits.shape[-1]
        if (members, classes) != (like.shape[1], like.shape[-1]):
            raise DataError(
                f"{self.path}: {name} has {members} members and {classes} classes, logits has "
                f"{like.shape[1]} and"
                f" {like.shape[-1]}"
            )

    def _stored(self, name: str) -> str:
        """What holds these logits: themselves, or the probabilities they would give."""
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
        """Whether each row is one, perhaps of rounded numbers, and says more than a single class."""
        classes, (least, most) = logits.shape[-1], ROUNDED
        within = bool(((logits >= 0) & (logits <= 1)).all()) and classes > 1
        rounded = min(max(least, HALF_DIGIT * classes), most)
        return within and bool(
            (np.abs(logits.astype(np.float64).sum(axis=-1) - 1) <= rounded).all()
        )

    def listed(self, name: str, count: int, of: str) -> list[Any] | None:
        """One text or integer for each of so many; None where the file has none."""
        text, info = self.file.metadata.get(name), self.file.infos.get(name)
        values: Any = None
        if text is not None:
            values = parse_json(text, f"{self.path}: {name}", most=MAX_LISTED, error=DataError)
        elif info is not None:
            dtype = self._checked(name, INTEGERS, lambda shape: len(shape) == 1, "text or integers")
            values = self.file.read(name).view(f"<{dtype[0].lower()}{int(dtype[1:]) // 8}").tolist()
        else:
            return None
        plain = isinstance(values, list) and all(type(value) in (str, int) for value in values)
        if not plain or len(values) != count:
            raise DataError(f"{self.path}: {name} must be a list, one for each of {count} {of}")
        return values

    def words(self, rows: int) -> WordIds | None:
        """Ids of each row's `tokens`, which negative numbers fill up, or of the words of its `texts`."""
        texts = self.listed("texts", rows, "rows")
        if texts is not None:
            return WordIds.of([str(text) for text in texts])
        if "tokens" not in self.file.infos:
            return None
        wanted = f"integer [{rows}, longest]"
        ids = self._integers("tokens", lambda at: len(at) == 2 and at[0] == rows, wanted)
        if ids.max(initial=0) >= MOST:
            raise DataError(f"{self.path}: tokens must lie below {MOST:,}")
        return WordIds.of(ids)

    def features(self, logits: ndarray) -> Float[ndarray, "sample member width"]:
        """What the classifier of each member read."""
        rows, members = logits.shape[:2]
        shapes = (rows, members) if members > 1 else (rows,), (rows, members)
        wanted = f"floating-point [{rows}, {members}, width]"
        features = self._finite(
            "features", lambda shape: shape[:-1] in shapes and shape[-1] > 0, wanted
        )
        return features if features.ndim == 3 else features[:, None]

    def groups(self, rows: int) -> Int[ndarray, " sample"] | None:
        """Which query each row belongs to."""
        if "groups" not in self.file.infos:
            return None
        self._checked(
            "groups", ("I64",), lambda shape: shape == (rows,), f"int64, one for each of {rows}"
        )
        return self.file.read("groups").view("<i8")

    def labels(self, name: str, *, of: ndarray) -> ndarray:
        """Class numbers, −1 for a word that has none; or numbers."""
        problem, info = self.problem, self.file.infos.get(name)
        sizes = dict(zip(problem.axes, of.shape, strict=True))
        shape = tuple(sizes[axis] for axis in problem.label_axes)
        words = "word" in problem.label_axes  # of which labels may know more than logits

        def fits(found: tuple[int, ...]) -> bool:
            longer = words and len(found) == 2 and found[1] > shape[1]
            return found == shape or (longer and found[0] == shape[0])

        rows = "x".join(map(str, shape))
        low, high = problem.numbers or (UNLABELLED if words else 0, sizes["class"] - 1)
        if problem.numbers is None or (info is not None and info.dtype in INTEGERS):
            values = self._integers(
                name, fits, f"integer, one for each of the {rows} rows of logits"
            )
        else:
            values = self._finite(
                name, fits, f"floating-point, one for each of the {rows} rows of logits"
            )
        wrong = np.argwhere((values < low) | (values > high))
        if len(wrong):
            row, value = wrong[0][0], values[tuple(wrong[0])]
            raise DataError(
                f"{self.path}: {name}: row {row} has the label {value:g}; labels must lie in "
                f"{low:g} to {high:g}"
            )
        return values if problem.numbers is None else values.astype(np.float64)

    def _integers(self, name: str, fits: Fits, wanted: str) -> ndarray:
        dtype = self._checked(name, INTEGERS, fits, wanted)
        values = self.file.read(name).view(f"<{dtype[0].lower()}{int(dtype[1:]) // 8}")
        return values.astype("i8").reshape(self.file.infos[name].shape)

    def _checked(self, name: str, dtypes: Sequence[str], fits: Fits, wanted: str) -> str:
        """The dtype of a tensor that is there, and as it should be."""
        info = self.file.infos.get(name)
        if info is None:
            hint = (
                "Accuracy and calibration need logits, and the true class of each row; only "
                "OOD sets may have scores"
            )
            raise DataError(f"{self.path}: tensor {name} is missing", hint=f"{hint} instead.")
        if info.dtype not in dtypes or not fits(info.shape):
            raise DataError(
                f"{self.path}: {name} must be {wanted}, found {info.dtype} {info.shape}"
            )
        return info.dtype

    def _finite(self, name: str, fits: Fits, wanted: str) -> ndarray:
        dtype = self._checked(name, FLOATS, fits, wanted)
        tensor = _floats(self.file.read(name), dtype)
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


def _floats(raw: ndarray, dtype: str) -> ndarray:
    """Bytes of a file in their own precision; bfloat16, which numpy has not, in float32."""
    if dtype == "BF16":
        return (raw.astype("u4") << 16).view("f4")
    return raw.view(f"<f{int(dtype[1:]) // 8}")


def ensembled(files: Sequence[tuple[Path, Predictions]]) -> Predictions:
    """All their members as one model's; DataError where they did not answer for the same samples."""
    (first_path, first), *others = files
    for path, other in others:
        for what, mine in _samples_of(first).items():
            if mine != _samples_of(other)[what]:
                raise DataError(
                    f"--ensemble: {first_path} and {path} have other {what}",
                    hint="Write both with eval --predictions on the same data, in the same order, "
                    "with the same --limit"
                    " and --seed.",
                )
    every = [predictions for _, predictions in files]
    if not all(said.logits.size for p in every for said in p.ood.values()):
        raise DataError(
            "--ensemble: the files hold scores without logits, of which no ensemble can be made"
        )
    costs = [p.cost for p in every if p.cost is not None]
    cost = None
    if len(costs) == len(every):
        params, macs = sum(each.params for each in costs), sum(each.macs for each in costs)
        cost = Cost(params=params, macs=macs, latency_ms=None, tokens=costs[0].tokens)
    return Predictions(
        name=" + ".join(predictions.name for predictions in every),
        kind="ensemble",
        problem=first.problem,
        outputs=_joined([each.outputs for each in every]),
        ood={name: _joined([each.ood[name] for each in every]) for name in first.ood},
        near=first.near,
        shift={key: _joined([each.shift[key] for each in every]) for key in first.shift},
        cost=cost,
    )


def _joined(said: Sequence[Outputs]) -> Outputs:
    """All members as one model's."""
    dtype = said[0].logits.dtype
    logits = [each.logits.astype(dtype, copy=False) for each in said]
    return replace(said[0], logits=np.concatenate(logits, axis=1))


def _samples_of(predictions: Predictions) -> dict[str, Any]:
    """What the members of one ensemble have in common."""
    return {
        "classes": predictions.outputs.logits.shape[2],
        "problem": predictions.problem.name,
        "labels": predictions.outputs.truth.tolist(),
        "OOD sets": {
            name: (predictions.group(name), len(said.logits))
            for name, said in predictions.ood.items()
        },
        "shifted sets": {key: said.truth.tolist() for key, said in predictions.shift.items()},
    }


Said = tuple[Outputs, dict[str, ndarray]]
"""What a model said of some samples, and OOD scores that are no functions of it."""


def said_of(
    models: Sequence[Any],
    samples: Samples,
    run: Run,
    skipped: list[str],
    fitted: EnsembleScore | None = None,
) -> Said:
    """Logits and labels, and a score of the features, in one pass."""
    outputs = collected(models, samples, run, features=fitted is not None, skipped=skipped)
    if fitted is None or outputs.features is None:
        return outputs, {}
    score = fitted(outputs.features, yes_or_no(outputs.logits)).round(decimals=DIGITS)
    return replace(outputs, features=None), {fitted.kind: score}


def predicted(sets: DataSets, answer: Callable[[Any, bool], Said], **about: Any) -> Predictions:
    """What one model says of all sets; `answer` gives OOD scores where they are asked for."""
    outputs, scores = answer(sets.id, True)
    foreign = {name: answer(samples, True) for name, samples in sets.ood.items()}
    return Predictions(
        outputs=grouped(outputs, sets.id),
        ood={name: said for name, (said, _) in foreign.items()},
        near=sets.near,
        shift={shift: answer(samples, False)[0] for shift, samples in sets.shift.items()},
        scores={"": scores, **{name: scores for name, (_, scores) in foreign.items()}},
        **about,
    )


def grouped(outputs: Outputs, samples: Samples) -> Outputs:
    """With a number for the query of each sample, where data say so and all samples were read."""
    groups = samples.groups
    if groups is None or len(groups) != len(outputs.logits):
        return outputs
    sizes = Counter(groups)
    alone = next((row for row, group in enumerate(groups) if sizes[group] == 1), None)
    if alone is not None:
        raise DataError(
            f"{samples.spec}: row {alone} is alone in its group {groups[alone][:60]!r}",
            hint=(
                "A query needs rows to order: give each two or more, or leave the column group out."
            ),
        )
    return replace(outputs, groups=numbered(groups))
