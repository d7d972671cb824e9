"""A decision state in a file of its own, as `calibrate --predictions` writes it: what any model's
logits, and perhaps features, mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray
from pydantic import Field, ValidationError

from hydrasurgeon.decision.cascaded import Said, single
from hydrasurgeon.decision.state import State, decide, state_of
from hydrasurgeon.errors import DataError, Disagreement, ManifestError
from hydrasurgeon.files import decided
from hydrasurgeon.files.atomic import replacing
from hydrasurgeon.files.decided import MAX_MEMBERS, calibrated_by, shapes_of
from hydrasurgeon.files.foreign import parse_json
from hydrasurgeon.files.manifest import (
    HEADER_KEY,
    MAX_BYTES,
    UNKNOWN,
    Name,
    ProblemName,
    Record,
    Sha256,
    Step,
    first_mistake,
)
from hydrasurgeon.files.tensors import TensorFile, Tensors, planned, weights_sha256, write_tensors
from hydrasurgeon.problems import PROBLEMS
from hydrasurgeon.problems.base import Prediction
from hydrasurgeon.run.words import WordIds, Words

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
    return f'"{FORMAT}"' in TensorFile(path).metadata.get(HEADER_KEY, "")


def read_decision_file(path: Path) -> DecisionFile:
    """The file, its tensors held against what the header says of them."""
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


@dataclass(frozen=True)
class Decision:
    """A decision state that needs no model: it is told logits and features."""

    state: State
    classes: int
    members: int
    name: str = "the decision"
    names: tuple[str, ...] | None = None
    """The classes."""

    @classmethod
    def load(cls, path: str | Path) -> Decision:
        """The decision in a file that `calibrate --predictions` wrote."""
        read = read_decision_file(Path(path))
        header, problem = read.header, PROBLEMS[read.header.problem]
        state = state_of(header.decision, read.tensors, read.path, problem)
        return cls(state, header.classes, header.members, read.path.name, header.names)

    def save(self, path: Path, entry: Step) -> None:
        """Write it, with the step that made it; hydrasurgeon.decision/1."""

        def header(sha256: str | None) -> dict[str, str]:
            said = Header(
                format=FORMAT,
                classes=self.classes,
                members=self.members,
                names=self.names,
                problem=self.state.problem.name,
                decision=self.state.record,
                weights_sha256=sha256 or UNKNOWN,
                history=(entry.wrote(sha256 or UNKNOWN),),
            )
            fields = Header.model_fields
            usual = {k for k in ("names", "problem") if getattr(said, k) == fields[k].default}
            return {HEADER_KEY: said.model_dump_json(exclude=usual)}

        with replacing(path) as (part,):
            write_tensors(part, planned(self.state.tensors()), header)

    def decide(
        self,
        logits: Any,
        features: Any = None,
        words: Sequence[str] | Sequence[Sequence[int]] | WordIds | None = None,
    ) -> Prediction:
        """What it makes of logits, [sample, class] or [sample, member, class], of features,
        [sample, width] or [sample, member, width], and of texts or their tokens, where it reads
        them; arrays or tensors.
        """
        width = self.state.record.ood.width
        said = self._checked("logits", logits, self.classes)
        if width is None:
            return self._decide(said, None, words)
        if features is None:
            score = self.state.record.ood.score
            raise DataError(
                f"{self.name}: its OOD score, {score}, requires features",
                hint="Give them with the logits.",
            )
        read = self._checked("features", features, width)
        if len(read) != len(said):
            raise DataError(f"{self.name}: {len(said)} rows of logits, {len(read)} of features")
        return self._decide(said, read, words)

    def _decide(self, logits: ndarray, features: ndarray | None, words: Any) -> Prediction:
        said, reader = Said(np.arange(len(logits)), logits, features), self.state.words
        if isinstance(reader, Words) and self.state.record.words is not None:
            ids = (
                words if isinstance(words, WordIds) else WordIds.of([] if words is None else words)
            )
            alike = not ids.ids or ids.tokenizer == self.state.record.words.tokenizer
            if len(ids.ids) != len(logits) or not alike:
                hint = "Give what calibrate was given, texts or tokens: one for each row of logits."
                raise DataError(f"{self.name}: reads words beside the model's answers", hint=hint)
            said = said.beside(self.state, reader.outputs(ids.ids))
        return replace(decide(self.state, said.logits, said.features), names=self.names)

    def _checked(self, what: str, values: Any, width: int) -> ndarray:
        """As decisions are taken: float32, [sample, member, width], finite."""
        given = array = single(values)
        if width == 1 and array.ndim < 3:
            array = array[..., None]
        array = array[:, None] if array.ndim == 2 else array
        if array.shape[1:] != (self.members, width):
            expected = f"expected [sample, {self.members}, {width}]"
            raise DataError(f"{self.name}: {what} of shape {[*given.shape]}, {expected}")
        if len(broken := np.flatnonzero(~np.isfinite(array).all(axis=(1, 2)))):
            raise DataError(f"{self.name}: row {int(broken[0])} of {what} holds NaN or infinity")
        return array
