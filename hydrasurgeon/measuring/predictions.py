"""The predictions file: logits of one model on all data sets, as safetensors, so that metrics need no model.

OOD scores that are no functions of the logits stand beside them; a method that gives nothing else on OOD data needs no
logits there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from safetensors.torch import save
from torch import Tensor

from hydrasurgeon.errors import CheckpointError, DataError
from hydrasurgeon.files.atomic import write_bytes
from hydrasurgeon.files.foreign import is_name, parse_json
from hydrasurgeon.files.manifest import MAX_CLASSES
from hydrasurgeon.files.mixture import Mixture, check_mixture
from hydrasurgeon.files.tensors import TensorFile, TensorInfo
from hydrasurgeon.measuring.conditions import Provenance
from hydrasurgeon.measuring.report import Cost
from hydrasurgeon.measuring.stray import OOD, SCORED, instead, stray, stray_note
from hydrasurgeon.runtime.tensors import to_tensor
from hydrasurgeon.visible import visible

Group = Literal["near", "far"]

# Header key of what the file says of itself.
ABOUT = "hydrasurgeon.predictions"
LOGITS = (
    "Add it, as [sample, class] or [sample, member, class]: accuracy and calibration come from logits, and only OOD"
    " sets may have scores in their place."
)
"""What to do about a file of scores alone."""
# Bytes of it.
MAX_ABOUT = 1 << 20
# OOD sets, and shifted sets, of one file.
MAX_SETS = 1000
# Members of one model.
MAX_MEMBERS = 1000
# OOD scores of one set.
MAX_SCORES = 100
# Logits that are looked at at a time: what is made of them in passing takes several times their size.
ELEMENTS = 1 << 20
FLOATS = ("F16", "BF16", "F32", "F64")
"""Dtypes of logits."""
INTEGERS = {
    "I8": "<i1",
    "U8": "<u1",
    "I16": "<i2",
    "U16": "<u2",
    "I32": "<i4",
    "U32": "<u4",
    "I64": "<i8",
    "U64": "<u8",
}
"""Dtypes of labels, and numpy's names of them."""


@dataclass(frozen=True)
class OodSet:
    name: str
    group: Group
    logits: Float[Tensor, "sample member klass"] | None
    """None where there are scores alone."""
    scores: Mapping[str, Float[Tensor, " sample"]] = field(default_factory=dict)
    """OOD scores that were given with the logits, by name; they come before what logits would give."""

    def __len__(self) -> int:
        return len(next(iter(self.scores.values())) if self.logits is None else self.logits)


@dataclass(frozen=True)
class ShiftSet:
    name: str
    severity: int | None
    logits: Float[Tensor, "sample member klass"]
    labels: Int[Tensor, " sample"]


@dataclass(frozen=True)
class Predictions:
    """What one model said about an ID set, OOD sets and shifted sets."""

    name: str
    kind: str
    logits: Float[Tensor, "sample member klass"]
    labels: Int[Tensor, " sample"]
    ood: tuple[OodSet, ...] = ()
    shift: tuple[ShiftSet, ...] = ()
    cost: Cost | None = None
    scores: Mapping[str, Float[Tensor, " sample"]] = field(default_factory=dict)
    """The same of the ID set."""
    mixture: Mixture | None = None
    """The weights that its members have in their mean; None where all count alike."""
    notes: tuple[str, ...] = ()
    """What of the file was not read."""
    provenance: Provenance | None = None
    """How the model was trained and calibrated; None where only its answers are known."""

    @property
    def members(self) -> int:
        return self.logits.shape[1]


def write_predictions(predictions: Predictions, path: Path) -> None:
    tensors = {"logits": predictions.logits, "labels": predictions.labels}
    tensors |= {f"ood.{s.name}.logits": s.logits for s in predictions.ood if s.logits is not None}
    tensors |= {f"scores.{name}": values for name, values in predictions.scores.items()}
    tensors |= {f"ood.{s.name}.scores.{name}": values for s in predictions.ood for name, values in s.scores.items()}
    for s in predictions.shift:
        key = f"shift.{_key(s.name, s.severity)}"
        tensors |= {f"{key}.logits": s.logits, f"{key}.labels": s.labels}
    about: dict[str, Any] = {
        "name": predictions.name,
        "kind": predictions.kind,
        "ood": [[s.name, s.group] for s in predictions.ood],
        "shift": [[s.name, s.severity] for s in predictions.shift],
    }
    if predictions.cost is not None:
        # A time is true of one machine at one moment, and would change the file on every run.
        about["cost"] = predictions.cost.model_dump(exclude={"latency_ms"})
    if predictions.mixture is not None:
        about["weights"] = predictions.mixture
    content = save(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
        # One entry alone: safetensors writes several in an order that differs from file to file.
        metadata={ABOUT: json.dumps(about)},
    )
    write_bytes(path, content)


def _key(name: str, severity: int | None) -> str:
    return name if severity is None else f"{name}.{severity}"


def read_predictions(path: Path) -> Predictions:
    """Our own file, or anyone's with `logits`, `labels` and perhaps `ood.<name>.logits` or `.scores.<score>`.

    Other tensors are left alone, with a note.
    """
    try:
        file = TensorFile(path)
    except CheckpointError as error:
        raise DataError(
            f"{path}: not a readable predictions file ({error.message.removeprefix(f'{path}: ')})",
            hint="Write one with eval --predictions.",
        ) from error
    about = _about(path, file.metadata.get(ABOUT))
    beyond = stray(file.infos, [f"shift.{_key(*shift)}" for shift in about.shift])
    contents = _Contents(path, file, beyond)
    logits = contents.logits("logits")
    groups = dict(about.ood)
    groups |= {name: "far" for name in contents.ood_names() if name not in groups}
    if max(len(groups), len(about.shift)) > MAX_SETS:
        raise DataError(f"{path}: holds more than {MAX_SETS:,} sets")
    shifts = []
    for name, severity in about.shift:
        key = f"shift.{_key(name, severity)}"
        shifted = contents.logits(f"{key}.logits", like=logits)
        shifts.append(ShiftSet(name, severity, shifted, contents.labels(f"{key}.labels", of=shifted)))
    return Predictions(
        name=about.name or path.name.removesuffix(".safetensors"),
        kind=about.kind,
        logits=logits,
        labels=contents.labels("labels", of=logits),
        ood=tuple(contents.ood_set(name, group, like=logits) for name, group in groups.items()),
        shift=tuple(shifts),
        cost=None if about.cost is None else Cost(**about.cost.model_dump(), latency_ms=None),
        scores=contents.scores("scores.", rows=len(logits)),
        mixture=about.mixture_of(logits.shape[1], path),
        notes=tuple(stray_note(visible(path.name), beyond, file.infos)),
    )


def _named(text: str) -> str:
    if not is_name(text):
        raise ValueError("is no name: it must be short, of one line, and without control characters")
    return text


Name = Annotated[str, AfterValidator(_named)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class _AboutCost(BaseModel):
    params: Count
    macs: Count
    tokens: Count | None = None


class _About(BaseModel):
    """What a file says of itself."""

    name: Name | None = None
    kind: Name = "unknown"
    ood: list[tuple[Name, Group]] = []
    shift: list[tuple[Name, Count | None]] = []
    cost: _AboutCost | None = None
    weights: Annotated[tuple[float, ...], AfterValidator(check_mixture)] | None = None

    @model_validator(mode="after")
    def _each_once(self) -> _About:
        keys = [name for name, _ in self.ood], [_key(*shift) for shift in self.shift]
        if any(len(set(names)) != len(names) for names in keys):
            raise ValueError("names a set twice")
        return self

    def mixture_of(self, members: int, path: Path) -> Mixture | None:
        if self.weights is not None and len(self.weights) != members:
            raise DataError(
                f"{path}: its description has {len(self.weights)} weights, logits has {members} members",
                hint="Write the file again with eval --predictions.",
            )
        return self.weights


def _about(path: Path, text: str | None) -> _About:
    if text is None:
        return _About()
    where = f"{path}: its description"
    content = parse_json(text, where, most=MAX_ABOUT, error=DataError)
    try:
        return _About.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise DataError(
            f"{where}: {place}: {first['msg']}", hint="Write the file again with eval --predictions."
        ) from error


def _check_finite(logits: Float[Tensor, "sample member klass"], where: str) -> None:
    """Say how many are not, of which kind, and where the first one is."""
    nans = infinite = rows = start = 0
    first: list[int] = []
    for piece in logits.split(max(1, ELEMENTS // logits[0].numel())):
        # In float32: sums and quotients of float64's largest numbers would overflow.
        values = piece.float()
        spoiled = ~torch.isfinite(values)
        if spoiled.any():
            count = int(values.isnan().sum())
            nans, infinite = nans + count, infinite + int(spoiled.sum()) - count
            rows += int(spoiled.flatten(1).any(dim=1).sum())
            if not first:
                first = spoiled.nonzero()[0].tolist()
                first[0] += start
        start += len(piece)
    if not first:
        return
    kinds = [f"{count:,} {kind}" for count, kind in ((nans, "NaN"), (infinite, "infinite")) if count]
    sample, member, klass = first
    raise DataError(
        f"{where} holds values that are not finite: {' and '.join(kinds)} of {logits.numel():,}, in {rows:,} of"
        f" {len(logits):,} rows; the first in row {sample}, member {member}, class {klass}",
        hint="The model that gave them overflowed, or its weights hold NaN.",
    )


@dataclass(frozen=True)
class _Contents:
    """The tensors of a predictions file; what the header says of one is checked before it is read."""

    path: Path
    file: TensorFile
    stray: tuple[str, ...]
    """Names that nothing asks for."""

    def ood_names(self) -> list[str]:
        """The sets that tensors are called after."""
        matches = [SCORED.fullmatch(name) or OOD.fullmatch(name) for name in sorted(self.file.infos)]
        names = list(dict.fromkeys(match[1] for match in matches if match is not None))
        for name in names:
            if not is_name(name):
                raise DataError(f"{self.path}: {name[:80]!r} is no name of a set")
        return names

    def ood_set(self, name: str, group: Group, *, like: Tensor) -> OodSet:
        """Logits, scores, or both, of as many samples."""
        logits, prefix = f"ood.{name}.logits", f"ood.{name}.scores."
        if logits in self.file.infos or not any(each.startswith(prefix) for each in self.file.infos):
            outside = self.logits(logits, like=like)
            return OodSet(name, group, outside, self.scores(prefix, rows=len(outside)))
        return OodSet(name, group, None, self.scores(prefix, rows=None))

    def scores(self, prefix: str, *, rows: int | None) -> dict[str, Float[Tensor, " sample"]]:
        """Finite, one for each of the `rows`; where these are not known, as many in each."""
        names = [name for name in sorted(self.file.infos) if name.startswith(prefix)]
        if len(names) > MAX_SCORES:
            raise DataError(f"{self.path}: holds more than {MAX_SCORES} scores {prefix}…")
        scores = {}
        for name in names:
            info, score = self.file.infos[name], name.removeprefix(prefix)
            if not is_name(score):
                raise DataError(f"{self.path}: {score[:80]!r} is no name of a score")
            rows = info.shape[0] if rows is None and len(info.shape) == 1 else rows
            if info.dtype not in FLOATS or info.shape != (rows,) or rows == 0:
                wanted = "" if rows is None else f", one for each of {rows} samples"
                raise DataError(
                    f"{self.path}: {name} must be floating-point [sample]{wanted}, found {info.dtype} {info.shape}"
                )
            scores[score] = to_tensor(self.file.read(name), info.dtype).double()
            if not torch.isfinite(scores[score]).all():
                raise DataError(
                    f"{self.path}: {name} holds values that are not finite",
                    hint="A score must be a number for every sample.",
                )
        return scores

    def logits(self, name: str, *, like: Tensor | None = None) -> Float[Tensor, "sample member klass"]:
        """Finite, for one member or several; with as many members and classes as `like`."""
        info = self._info(name)
        shape = (info.shape[0], 1, info.shape[1]) if len(info.shape) == 2 else info.shape
        if len(shape) != 3 or info.dtype not in FLOATS or not all(shape):
            raise DataError(
                f"{self.path}: {name} must be floating-point [sample, member, class], found {info.dtype} {info.shape}"
            )
        if shape[1] > MAX_MEMBERS or shape[2] > MAX_CLASSES:
            raise DataError(
                f"{self.path}: {name} has {shape[1]:,} members and {shape[2]:,} classes",
                hint=f"At most {MAX_MEMBERS:,} members and {MAX_CLASSES:,} classes are read.",
            )
        if like is not None and shape[1:] != like.shape[1:]:
            raise DataError(
                f"{self.path}: {name} has {shape[1]} members and {shape[2]} classes, logits has {like.shape[1]} and"
                f" {like.shape[2]}"
            )
        tensor = to_tensor(self.file.read(name), info.dtype).reshape(shape)
        _check_finite(tensor, f"{self.path}: {name}")
        return tensor

    def labels(self, name: str, *, of: Tensor) -> Int[Tensor, " sample"]:
        rows, klasses = len(of), of.shape[-1]
        if name not in self.file.infos:
            raise DataError(
                f"{self.path}: tensor {name} is missing{instead(name, self.stray)}: accuracy and calibration need the"
                f" true class of each of the {rows} rows",
                hint="Add it, as integers [sample]; foreign data needs none, as ood.NAME.logits.",
            )
        info = self._info(name)
        if info.shape != (rows,) or info.dtype not in INTEGERS:
            raise DataError(
                f"{self.path}: needs integer {name}, one for each of the {rows} rows of logits, found {info.dtype}"
                f" {info.shape}"
            )
        values = self.file.read(name).view(INTEGERS[info.dtype])
        wrong = ((values < 0) | (values >= klasses)).nonzero()[0]
        if len(wrong):
            raise DataError(
                f"{self.path}: {name}: row {wrong[0]} has the label {values[wrong[0]]}; labels must lie in"
                f" 0-{klasses - 1}"
            )
        return torch.from_numpy(values.astype("i8"))

    def _info(self, name: str) -> TensorInfo:
        info = self.file.infos.get(name)
        if info is None:
            raise DataError(
                f"{self.path}: tensor {name} is missing{instead(name, self.stray)}",
                hint=LOGITS if name == "logits" else None,
            )
        return info
