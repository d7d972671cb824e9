"""Tensors of probabilities and decisions that print themselves as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hydrasurgeon.decision.answers import Answers
from hydrasurgeon.decision.cascaded import Said, together
from hydrasurgeon.decision.problems import PROBLEMS
from hydrasurgeon.decision.state import Decided, rows_of, undecided

if TYPE_CHECKING:
    import pandas as pd

TOP = 5
"""Most probable labels that a row lists."""


class Printed:
    """What prints its rows."""

    @property
    def rows(self) -> Answers:
        """A row for each sample."""
        raise NotImplementedError

    # torch's own passes the keyword.
    def __repr__(self, *, tensor_contents: object = None) -> str:
        return repr(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with a row for each sample."""
        return self.rows.to_pandas()


class Probabilities(Printed, Tensor):  # type: ignore[misc]
    """Class probabilities to compute with, of no decision state."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    parts: Sequence[Said]
    """What the members said."""
    names: Sequence[str] | None
    """The classes."""
    problem: str

    @classmethod
    def of(
        cls, probs: Tensor, parts: Sequence[Said], names: Sequence[str] | None, problem: str = "single_label"
    ) -> Probabilities:
        """Probabilities, and what they were made of."""
        made = probs.as_subclass(cls)
        made.parts, made.names, made.problem = parts, names, problem
        return made

    @property
    def rows(self) -> Answers:
        parts = [part.on_cpu() for part in self.parts]
        plain = together(parts, [undecided(PROBLEMS[self.problem].choices(part.logits)) for part in parts])
        begun = [{"id": i} for i in range(len(self))]
        return Answers(rows_of(plain, begun, names=self.names, top=TOP, problem=self.problem))


@dataclass(frozen=True, repr=False)
class Decisions(Printed, Decided):
    """What a decision state makes of samples, as tensors."""

    ids: Sequence[str | int]
    """What the samples are called."""
    names: Sequence[str] | None
    """The classes."""
    problem: str = "single_label"

    @property
    def rows(self) -> Answers:
        begun = [{"id": i} for i in self.ids]
        return Answers(rows_of(self, begun, names=self.names, top=TOP, problem=self.problem))
