"""Rows that are left out because another table lists them, such as `suspects.csv` of `build`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.places import TABLES, ending, located
from hydrasurgeon.data.samples import Samples
from hydrasurgeon.data.tables import ColumnSelection, first_words, joined, read_tables
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.untrusted import portable, visible

NAME, TEXTS, LABEL = "name", ("text", "text_pair"), "label"
"""Columns that rows are matched by: the name of an image or the texts, and the label."""
HINT = "Rows are matched by text (images by name) and label: give suspects.csv of a build of this table."
"""Hint for a list of other rows."""
Key = tuple[str, ...]
"""Texts or name of a row, and its label."""


@dataclass(frozen=True)
class Listed:
    """The rows of a list."""

    spec: str
    keys: frozenset[Key]

    @classmethod
    def read(cls, spec: str) -> Listed:
        """Read a table with a label, and a text or a name, in each row."""
        columns, paths = ColumnSelection(carried=(NAME,)), located(spec)
        if not paths or not all(ending(path) in TABLES for path in paths):
            raise DataError(f"{visible(spec)}: is not a table", hint=HINT)
        tables = [table for path in paths for table in read_tables(spec, path, columns)]
        table = joined(spec, tables, columns)
        names = [name for name in (NAME, *TEXTS) if name in table.columns]
        if not names or LABEL not in table.columns:
            missing = "label" if names else "text or name"
            raise DataError(f"{visible(spec)}: has no column {missing}", hint=HINT)
        cells = zip(*(table.columns[name] for name in (*names, LABEL)), strict=True)
        keys = frozenset(tuple(map(str, row)) for row in cells)
        if not keys:
            raise DataError(f"{visible(spec)}: lists no rows", hint="Leave this file out.")
        return cls(spec, keys)

    def rows_of(self, samples: Samples) -> NDArray[np.bool_]:
        """Return True for each sample that is listed."""
        column = samples.written
        if column is None or column.names is None or column.labels.ndim != 1:
            raise DataError(
                f"{visible(samples.spec)}: rows can be left out only of data with one label for each row",
                hint="Delete the rows from the table, or name its labels: --columns label=NAME.",
            )
        keys = (key_of(samples, row) for row in range(len(samples)))
        return np.fromiter((key in self.keys for key in keys), bool, len(samples))

    def check(self, samples: Samples) -> None:
        """Refuse a list that holds none of the samples, or all of them."""
        count = int(self.rows_of(samples).sum())
        if count in (0, len(samples)):
            share = "none" if count == 0 else "all"
            raise DataError(
                f"{visible(self.spec)}: lists {share} of the {len(samples):,} rows of {visible(samples.spec)}",
                hint=HINT,
            )

    def left_out_of(self, samples: Samples) -> Samples:
        """Return the samples that are not listed; `left_out` names the others."""
        is_listed = self.rows_of(samples)
        rest, name = samples.at(np.flatnonzero(~is_listed)), visible(portable(self.spec))
        reasons = [
            f"row {samples.row(row)} is in {name} ({first_words(key_of(samples, row)[0])})"
            for row in np.flatnonzero(is_listed).tolist()
        ]
        rest.left_out = (*samples.left_out, *reasons)
        return rest


def key_of(samples: Samples, row: int) -> Key:
    """Return what a list matches: the texts or the name of a sample, and its label as the data
    write it.
    """
    assert samples.written is not None
    assert samples.written.names is not None
    label = samples.written.names[int(samples.written.labels[row])]
    content: Any = samples.read(row) if samples.kind == "text" else str(samples.name(row))
    texts: Sequence[Any] = (content,) if isinstance(content, str) else content
    return (*map(str, texts), label)
