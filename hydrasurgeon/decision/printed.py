"""Tensors of probabilities and decisions that print themselves as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from hydrasurgeon.decision.cascaded import Said, together
from hydrasurgeon.decision.problems import PROBLEMS
from hydrasurgeon.decision.state import Decided, rows_of, undecided
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.lookup import need

if TYPE_CHECKING:
    import pandas as pd

TOP = 5
"""Most probable labels that a row lists."""


SHOWN = (
    "id",
    "label",
    "probability",
    "rank",
    "total",
    "ood_score",
    "unfamiliar",
    "answer",
    "error",
)
"""Columns of a printed table."""
MOST = 10
"""Rows of it."""
WIDEST = 40
"""Characters of one of its cells."""


class Answers(Sequence[dict[str, Any]]):
    """Rows as `predict` writes them, one for each sample."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, i: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, i: slice) -> Answers: ...
    def __getitem__(self, i: int | slice) -> dict[str, Any] | Answers:
        return Answers(self._rows[i]) if isinstance(i, slice) else self._rows[i]

    def __repr__(self) -> str:
        shown = self._rows[:MOST]
        names = [name for name in SHOWN if any(row.get(name) is not None for row in shown)]
        grid = [names, *([_cell(row.get(name)) for name in names] for row in shown)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines = ["  ".join(map(str.rjust, cells, widths)) for cells in grid]
        hidden = len(self) - len(shown)
        lines += [f"… and {hidden} more"] if hidden else []
        if shown and all(row.get("ood_score") is None for row in shown):
            lines.append("not calibrated: no decision state was used")
        return "\n".join(lines) if shown else "no answers"

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with a row for each sample."""
        need("pandas", purpose="to_pandas")
        import pandas as pd

        return pd.DataFrame(list(self._rows))


def _cell(value: Any) -> str:
    text = (
        "" if value is None else f"{value:.3f}" if isinstance(value, float) else visible(str(value))
    )
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


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
        cls,
        probs: Tensor,
        parts: Sequence[Said],
        names: Sequence[str] | None,
        problem: str = "single_label",
    ) -> Probabilities:
        """Probabilities, and what they were made of."""
        made = probs.as_subclass(cls)
        made.parts, made.names, made.problem = parts, names, problem
        return made

    @property
    def rows(self) -> Answers:
        parts = [part.on_cpu() for part in self.parts]
        plain = together(
            parts, [undecided(PROBLEMS[self.problem].choices(part.logits)) for part in parts]
        )
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
