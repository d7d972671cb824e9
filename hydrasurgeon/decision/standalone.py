"""A decision state in a file of its own: what any model's logits, and perhaps features, mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.decision.state import Said, State, decide, single, state_of
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.atomic import replacing
from hydrasurgeon.files.decision_file import FORMAT, Header, read_decision_file
from hydrasurgeon.files.manifest import HEADER_KEY, UNKNOWN, Step
from hydrasurgeon.files.tensors import planned, write_tensors
from hydrasurgeon.run.bag_of_words import WordIds
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tasks.base import Prediction


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
        """Load the decision from a file that `calibrate --predictions` wrote."""
        read = read_decision_file(Path(path))
        header, task = read.header, TASKS[read.header.task]
        state = state_of(header.decision, read.tensors, read.path, task)
        return cls(state, header.classes, header.members, read.path.name, header.names)

    def save(self, path: Path, entry: Step) -> None:
        """Write it, with the step that made it; hydrasurgeon.decision/1."""

        def header(sha256: str | None) -> dict[str, str]:
            file_header = Header(
                format=FORMAT,
                classes=self.classes,
                members=self.members,
                names=self.names,
                task=self.state.task.name,
                decision=self.state.record,
                weights_sha256=sha256 or UNKNOWN,
                history=(entry.wrote(sha256 or UNKNOWN),),
            )
            return {HEADER_KEY: file_header.model_dump_json()}

        with replacing(path) as (part,):
            write_tensors(part, planned(self.state.tensors()), header)

    def decide(
        self,
        logits: Any,
        features: Any = None,
        words: Sequence[str] | Sequence[Sequence[int]] | WordIds | None = None,
    ) -> Prediction:
        """Decide about logits, [sample, class] or [sample, member, class].

        Features are [sample, width] or [sample, member, width]; `words` are texts or their tokens,
        for a decision with a bag-of-words model. All may be arrays or tensors.
        """
        width = self.state.record.ood.width
        checked_logits = self._checked("logits", logits, self.classes)
        if width is None:
            return self._decide(checked_logits, None, words)
        if features is None:
            score = self.state.record.ood.score
            raise DataError(
                f"{self.name}: its OOD score, {score}, requires features",
                hint="Give them with the logits.",
            )
        read = self._checked("features", features, width)
        if len(read) != len(checked_logits):
            raise DataError(
                f"{self.name}: {len(checked_logits)} rows of logits but {len(read)} rows of features"
            )
        return self._decide(checked_logits, read, words)

    def _decide(self, logits: ndarray, features: ndarray | None, words: Any) -> Prediction:
        outputs, reader = Said(np.arange(len(logits)), logits, features), self.state.words
        if reader is not None and self.state.record.words is not None:
            ids = (
                words if isinstance(words, WordIds) else WordIds.of([] if words is None else words)
            )
            alike = not ids.ids or ids.tokenizer == self.state.record.words.tokenizer
            if len(ids.ids) != len(logits) or not alike:
                hint = "Give what calibrate was given, texts or tokens: one for each row of logits."
                raise DataError(f"{self.name}: uses a bag-of-words model", hint=hint)
            outputs = outputs.blended(self.state, reader.outputs(ids.ids))
        with np.errstate(all="ignore"):  # what overflows is refused below
            answers = decide(self.state, outputs.logits, outputs.features)
        if name := answers.overflow():
            raise DataError(f"{self.name}: its answers hold NaN or infinity ({name})")
        return replace(answers, names=self.names)

    def _checked(self, name: str, values: Any, width: int) -> ndarray:
        """Return values as float32, [sample, member, width]; refuse other shapes and NaN."""
        original = array = single(values)
        if width == 1 and array.ndim < 3:
            array = array[..., None]
        array = array[:, None] if array.ndim == 2 else array
        if array.shape[1:] != (self.members, width):
            expected = f"expected [sample, {self.members}, {width}]"
            raise DataError(f"{self.name}: {name} of shape {[*original.shape]}, {expected}")
        if len(broken := np.flatnonzero(~np.isfinite(array).all(axis=(1, 2)))):
            raise DataError(f"{self.name}: row {int(broken[0])} of {name} holds NaN or infinity")
        return array
