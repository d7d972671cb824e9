"""A decision state in a file of its own, as `calibrate --predictions` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from hydrasurgeon.errors import Disagreement, ManifestError
from hydrasurgeon.files import decided
from hydrasurgeon.files.decided import MAX_MEMBERS, decides_no_more, shapes_of
from hydrasurgeon.files.foreign import parse_json
from hydrasurgeon.files.manifest import (
    HEADER_KEY,
    MAX_BYTES,
    Name,
    ProblemName,
    Record,
    Sha256,
    Step,
    first_mistake,
)
from hydrasurgeon.files.tensors import TensorFile, Tensors, weights_sha256

FORMAT = "hydrasurgeon.decision/1"
"""Format identifier of a decision file."""
AGAIN = "Write it with calibrate --predictions F -o decision.safetensors."
"""How one comes by a decision file."""


class Header(Record):
    """What a decision file says of itself, next to its tensors."""

    format: Literal["hydrasurgeon.decision/1"]
    classes: int = Field(ge=1, le=1 << 24)
    members: int = Field(ge=1, le=MAX_MEMBERS)
    names: tuple[Name, ...] | None = None
    """The classes, where the predictions named them."""
    problem: ProblemName = "single_label"
    decision: decided.Decision
    weights_sha256: Sha256
    history: tuple[Step, ...]


@dataclass(frozen=True)
class DecisionFile:
    """One that holds what it says."""

    path: Path
    header: Header
    tensors: Tensors


def is_decision_file(path: Path) -> bool:
    """Whether a file says that it is one."""
    return _raw(TensorFile(path)).get("format") == FORMAT


def _raw(file: TensorFile) -> dict[str, Any]:
    text = file.metadata.get(HEADER_KEY, "{}")
    raw = parse_json(text, str(file.path), most=MAX_BYTES, error=ManifestError)
    return raw if isinstance(raw, dict) else {}


def read_decision_file(path: Path) -> DecisionFile:
    """The file, its tensors held against what the header says of them."""
    file = TensorFile(path)
    if _raw(file).get("format") != FORMAT:
        raise ManifestError(f"{path}: is not a decision file (format {FORMAT})", hint=AGAIN)
    raw = _raw(file)
    if gone := decides_no_more(raw, str(raw.get("problem"))):
        raise ManifestError(f"{path}: {gone}", hint=AGAIN)
    try:
        header = Header.model_validate_json(file.metadata[HEADER_KEY], strict=True)
    except ValidationError as error:
        raise ManifestError(f"{path}: {first_mistake(error)}", hint=AGAIN) from error
    tensors, record = Tensors([file]), header.decision
    shapes = shapes_of(record, header.classes)
    actual = {name: info.shape for name, info in tensors.items() if info.dtype == "F32"}
    fits = len(record.ood.members) in (0, header.members) and record.cascade is None
    fits = fits and record.counts(header.classes)
    fits = fits and len(header.names or range(header.classes)) == header.classes
    if actual != shapes or len(tensors) != len(shapes) or not fits:
        raise Disagreement(
            f"{path}: its tensors are not those of the decision that it describes", hint=AGAIN
        )
    if weights_sha256(tensors, tensors.digests()) != header.weights_sha256:
        raise Disagreement(f"{path}: the decision belongs to other tensors", hint=AGAIN)
    return DecisionFile(path, header, tensors)
