"""A decision state in a file of its own, as `calibrate --predictions` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from hydrasurgeon.errors import Disagreement, ManifestError
from hydrasurgeon.files import decided
from hydrasurgeon.files.decided import MAX_MEMBERS, calibrated_by, shapes_of, silent_of
from hydrasurgeon.files.manifest import (
    HEADER_KEY,
    MAX_BYTES,
    Name,
    Record,
    Sha256,
    Step,
    TaskName,
    first_mistake,
)
from hydrasurgeon.files.tensors import TensorFile, Tensors, weights_sha256
from hydrasurgeon.files.untrusted import parse_json

FORMAT = "hydrasurgeon.decision/1"
"""Format identifier of a decision file."""
AGAIN = "Write it with calibrate --predictions F -o decision.safetensors."
"""Hint about how to write a decision file."""


class Header(Record):
    """Header of a decision file, beside its tensors."""

    format: Literal["hydrasurgeon.decision/1"]
    classes: int = Field(ge=1, le=1 << 24)
    members: int = Field(ge=1, le=MAX_MEMBERS)
    names: tuple[Name, ...] | None = None
    """The classes, where the predictions named them."""
    task: TaskName = "single_label"
    decision: decided.DecisionRecord
    weights_sha256: Sha256
    history: tuple[Step, ...]

    _silent = silent_of("names", "task")


@dataclass(frozen=True)
class DecisionFile:
    """A decision file whose tensors agree with its header."""

    path: Path
    header: Header
    tensors: Tensors


def is_decision_file(path: Path) -> bool:
    """Return True if a file is a decision file by its header."""
    return f'"{FORMAT}"' in TensorFile(path).metadata.get(HEADER_KEY, "")


def read_decision_file(path: Path) -> DecisionFile:
    """Read a decision file, and check its tensors against its header."""
    file = TensorFile(path)
    text = file.metadata.get(HEADER_KEY, "{}")
    raw = parse_json(text, str(path), most=MAX_BYTES, error=ManifestError)
    try:
        header = Header.model_validate_json(text, strict=True)
    except ValidationError as error:
        why = f"{path}: {first_mistake(error)}{calibrated_by(raw)}"
        raise ManifestError(why, hint=AGAIN) from error
    tensors, record = Tensors([file]), header.decision
    shapes = shapes_of(record, header.classes)
    actual = {name: info.shape for name, info in tensors.items() if info.dtype == "F32"}
    fits = len(record.ood.members) in (0, header.members) and record.cascade is None
    fits = fits and record.counts(header.classes)
    fits = fits and (record.words is None or record.words.outputs == header.classes)
    fits = fits and len(header.names or range(header.classes)) == header.classes
    if actual != shapes or len(tensors) != len(shapes) or not fits:
        raise Disagreement(
            f"{path}: its tensors are not those of the decision that it describes", hint=AGAIN
        )
    if weights_sha256(tensors, tensors.digests()) != header.weights_sha256:
        raise Disagreement(f"{path}: the decision belongs to other tensors", hint=AGAIN)
    return DecisionFile(path, header, tensors)
