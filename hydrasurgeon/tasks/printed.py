"""Rows of answers that print themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.lookup import need

if TYPE_CHECKING:
    import pandas as pd


SHOWN = (
    "id",
    "label",
    "probability",
    "value",
    "low",
    "high",
    "entities",
    "total",
    "ood_score",
    "unfamiliar",
    "answer",
    "error",
)
"""Columns of a printed table."""
MOST = 10
"""Maximum number of rows of a printed table."""
WIDEST = 40
"""Maximum number of characters of a cell."""


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
        """Return a data frame with a row for each sample."""
        need("pandas", purpose="to_pandas")
        import pandas as pd

        return pd.DataFrame(list(self._rows))


def _cell(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(entity, dict) for entity in value):
        value = ", ".join(f"{entity.get('text', '')} {entity['answer']}" for entity in value)
    text = (
        "" if value is None else f"{value:.3f}" if isinstance(value, float) else visible(str(value))
    )
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
