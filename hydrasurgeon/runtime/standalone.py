"""A decision state in a file of its own: what any model's logits, and perhaps features, mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from hydrasurgeon.decision.printed import Decisions
from hydrasurgeon.decision.state import State, decide
from hydrasurgeon.errors import DataError, Disagreement, ManifestError
from hydrasurgeon.files import decided
from hydrasurgeon.files.atomic import replacing
from hydrasurgeon.files.decided import MAX_MEMBERS, shapes_of
from hydrasurgeon.files.foreign import parse_json
from hydrasurgeon.files.manifest import (
    HEADER_KEY,
    MAX_BYTES,
    UNKNOWN,
    Name,
    Record,
    Sha256,
    Step,
    first_mistake,
)
from hydrasurgeon.files.tensors import TensorFile, Tensors, weights_sha256, write_tensors
from hydrasurgeon.runtime.classifier import state_of
from hydrasurgeon.runtime.tensors import plan_tensors

FORMAT = "hydrasurgeon.decision/1"
"""Format identifier of a decision file."""
AGAIN = "Write it with calibrate --predictions F -o decision.safetensors."
"""How one comes by a decision file."""


class Header(Record):
    """What a decision file says of itself, beside its tensors."""

    format: Literal["hydrasurgeon.decision/1"]
    classes: int = Field(ge=2, le=1 << 24)
    members: int = Field(ge=1, le=MAX_MEMBERS)
    names: tuple[Name, ...] | None = None
    """The classes, where the predictions named them."""
    decision: decided.Decision
    weights_sha256: Sha256
    history: tuple[Step, ...]


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
        path = Path(path)
        file = TensorFile(path)
        text = file.metadata.get(HEADER_KEY)
        raw = (
            None
            if text is None
            else parse_json(text, str(path), most=MAX_BYTES, error=ManifestError)
        )
        if text is None or not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise ManifestError(f"{path}: is not a decision file (format {FORMAT})", hint=AGAIN)
        try:
            header = Header.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise ManifestError(f"{path}: {first_mistake(error)}", hint=AGAIN) from error
        tensors, record = Tensors([file]), header.decision
        shapes = shapes_of(record, header.classes)
        actual = {name: info.shape for name, info in tensors.items() if info.dtype == "F32"}
        fits = len(record.ood.members) in (0, header.members) and record.cascade is None
        fits = fits and (record.seen is None or len(record.seen.predicted) == header.classes)
        fits = fits and len(header.names or range(header.classes)) == header.classes
        if actual != shapes or len(tensors) != len(shapes) or not fits:
            raise Disagreement(
                f"{path}: its tensors are not those of the decision that it describes", hint=AGAIN
            )
        if weights_sha256(tensors, tensors.digests()) != header.weights_sha256:
            raise Disagreement(f"{path}: the decision belongs to other tensors", hint=AGAIN)
        state = state_of(record, tensors, path)
        return cls(state, header.classes, header.members, path.name, header.names)

    def save(self, path: Path, entry: Step) -> None:
        """Write it, with the step that made it; hydrasurgeon.decision/1."""

        def header(sha256: str | None) -> dict[str, str]:
            said = Header(
                format=FORMAT,
                classes=self.classes,
                members=self.members,
                names=self.names,
                decision=self.state.record,
                weights_sha256=sha256 or UNKNOWN,
                history=(entry.wrote(sha256 or UNKNOWN),),
            )
            unnamed = {"names"} if self.names is None else None
            return {HEADER_KEY: said.model_dump_json(exclude=unnamed)}

        with replacing(path) as (part,):
            write_tensors(part, plan_tensors(self.state.tensors()), header)

    def decide(self, logits: Any, features: Any = None) -> Decisions:
        """What it makes of logits, [sample, class] or [sample, member, class], and features,
        [sample, width] or [sample, member, width]; arrays or tensors.
        """
        width = self.state.record.ood.width
        said = self._checked("logits", logits, self.classes)
        if width is None:
            return self._decided(said, None)
        if features is None:
            score = self.state.record.ood.score
            raise DataError(
                f"{self.name}: its OOD score, {score}, requires features",
                hint="Give them with the logits.",
            )
        read = self._checked("features", features, width)
        if len(read) != len(said):
            raise DataError(f"{self.name}: {len(said)} rows of logits, {len(read)} of features")
        return self._decided(said, read)

    def _decided(self, logits: Tensor, features: Tensor | None) -> Decisions:
        return Decisions(
            **vars(decide(self.state, logits, features)),
            ids=range(len(logits)),
            names=self.names,
        )

    def _checked(self, what: str, values: Any, width: int) -> Tensor:
        """As decisions are taken: float32 on the CPU, [sample, member, width], finite."""
        tensor = torch.as_tensor(values).detach().float().cpu()
        tensor = tensor[:, None] if tensor.dim() == 2 else tensor
        if tensor.shape[1:] != (self.members, width):
            expected = f"expected [sample, {self.members}, {width}]"
            raise DataError(
                f"{self.name}: {what} of shape {[*torch.as_tensor(values).shape]}, {expected}"
            )
        if len(broken := (~tensor.isfinite()).flatten(1).any(dim=1).nonzero()):
            raise DataError(f"{self.name}: row {int(broken[0])} of {what} holds NaN or infinity")
        return tensor
