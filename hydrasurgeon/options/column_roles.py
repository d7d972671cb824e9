"""Columns of tables: named once, and written behind every data set, so that files remember them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from pydantic import BeforeValidator, model_validator

from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.options.base import (
    LABELLED,
    READ,
    UNLABELLED,
    Options,
    PathLike,
    about,
    option,
)

ROLES = ("text", "text_pair", "label", "image", "group")
"""Roles of a column."""
LABELS = "labels"
"""Key beside the roles: the meaning of labels that are numbers."""
PART = "part"
"""Key beside the roles: the rows to use, `0-33`, in percent of a fixed random order."""
SPLIT = "split"
"""Beside the roles: which rows of each class, `80-100`, in percent of their order by a hash of the content."""
WITHOUT = "without"
"""Key beside the roles: a table whose rows are left out, matched by content and label."""
SELECTING = (SPLIT, PART, WITHOUT)
"""Keys beside the roles that select rows, in the order in which they apply."""
CROSS = "cross"
"""Value of --val for cross-fitting: models of folds answer for the rows that they were not fitted to."""
SHARE = re.compile(r"[0-9]*\.?[0-9]+")
"""A fraction as text."""
PARTS = re.compile(r"([0-9]{1,3})-([0-9]{1,3})")
"""Pattern of a part."""
OF_LABELLED = ("label", "group", LABELS)
"""Roles for which OOD data has no columns."""


def _roles(value: Any) -> Any:
    """Parse ROLE=NAME texts as a mapping."""
    if value is None:
        return None
    entries = value
    if not isinstance(value, Mapping):
        entries = dict(entry.partition("=")[::2] for entry in str(value).split(","))
    columns = {}
    for role, name in entries.items():
        role, name = str(role).strip(), str(name).strip()
        role = "label" if role == LABELS else role
        if role not in ROLES or not name:
            near = did_you_mean(role, ROLES)
            raise UsageError(
                f"--columns {role}={name}: expected ROLE=NAME{near}",
                hint=f"Roles are {', '.join(ROLES)}.",
            )
        columns[role] = name
    return columns


class DataSpec(NamedTuple):
    """Location of data with the roles of its columns; `PLACE#ROLE,NAME#ROLE,NAME` as text."""

    place: str
    columns: Mapping[str, str]
    """Names of columns by role; `labels` holds the meaning of labels that are numbers, `part` the
    rows to use.
    """

    @classmethod
    def parse(cls, text: str) -> DataSpec:
        """Parse a spec; a # may also be part of a file's name."""
        if "#" not in text or os.path.exists(text):
            return cls(text, {})
        place, *parts = text.split("#")
        columns = {}
        for part in parts:
            role, _, name = part.partition(",")
            if role not in (*ROLES, LABELS, *SELECTING) or not name:
                raise UsageError(
                    f"{text}: #{part} names no column",
                    hint="Write --columns text=NAME,label=NAME; or behind one data set "
                    "#text,NAME#label,NAME.",
                )
            columns[role] = unquote(name)
        for role in columns.keys() & {SPLIT, PART}:
            # A part of a part is one: `50-100+0-33`.
            if not all(map(_is_part, columns[role].split("+"))):
                raise UsageError(
                    f"{text}: #{role},{columns[role]} is not a part of a data set",
                    hint=f"Such as #{role},0-33, in percent.",
                )
        return cls(place, columns)

    def __str__(self) -> str:
        # A dot would look like the ending of a file.
        names = {
            role: quote(name, safe="+").replace(".", "%2E") for role, name in self.columns.items()
        }
        parts = [f"#{role},{names[role]}" for role in (*ROLES, LABELS, *SELECTING) if role in names]
        return "".join([self.place, *parts])

    def reading(self, columns: Mapping[str, str]) -> DataSpec:
        """Return the spec with these columns, unless it names its own."""
        return (
            self
            if {*self.columns} - {*SELECTING}
            else DataSpec(self.place, {**columns, **self.columns})
        )

    def options(self, *, labelled: bool = True) -> list[str]:
        """Return the options by which a command reads another table with these columns."""
        unused = SELECTING if labelled else (*SELECTING, *OF_LABELLED)
        named = {role: name for role, name in self.columns.items() if role not in unused}
        labels = named.pop(LABELS, None)
        pairs = ",".join(f"{role}={name}" for role, name in named.items())
        return [
            *(["--columns", pairs] if pairs else []),
            *(["--labels", labels] if labels else []),
        ]

    def part(self, first: int, last: int) -> DataSpec:
        """Return the rows between these percentages of a fixed random order."""
        return self._narrowed(PART, first, last)

    def split(self, first: int, last: int) -> DataSpec:
        """Return the rows of each class between these percentages of their order by content."""
        return self._narrowed(SPLIT, first, last)

    def without(self, table: str | None) -> DataSpec:
        """Return the spec without the rows of another table; with all rows for None."""
        columns = {role: name for role, name in self.columns.items() if role != WITHOUT}
        if table is not None:
            columns[WITHOUT] = table
        return DataSpec(self.place, columns)

    def _narrowed(self, role: str, first: int, last: int) -> DataSpec:
        part = f"{first}-{last}"
        if role in self.columns:
            part = f"{self.columns[role]}+{part}"
        return DataSpec(self.place, {**self.columns, role: part})


def is_share(text: str) -> bool:
    """Return True for what stands in place of validation data: `cross`, or a fraction of --data."""
    place = DataSpec.parse(text).place
    return place == CROSS or SHARE.fullmatch(place) is not None


def split_options(spec: str, options: tuple[str, str] = ("--data", "--val")) -> str:
    """Return how two options are typed that take the rows of one table apart."""
    parts = (DataSpec.parse(spec).split(*ends) for ends in ((0, 80), (80, 100)))
    return " ".join(
        f"{name} {shlex.quote(str(part))}" for name, part in zip(options, parts, strict=True)
    )


def _is_part(text: str) -> bool:
    match = PARTS.fullmatch(text)
    return match is not None and 0 <= int(match[1]) < int(match[2]) <= 100


class ColumnOptions(Options):
    """Choice of the columns of tables."""

    columns: Annotated[Mapping[str, str] | str | None, BeforeValidator(_roles)] = option(
        None,
        metavar="ROLE=NAME,…",
        group=READ,
        help=(
            "Names of the columns that hold text, text_pair, label, image or group, such as "
            "text=premise,text_pair=hypothesis."
        ),
    )

    labels: Literal["names", "positions", "sorted", "exact"] | None = option(
        None,
        metavar="HOW",
        unset="names, if all are the model's",
        group=READ,
        help=(
            "Meaning of labels. Numbers: names of classes, or positions from 0. Class folders: "
            "positions (sorted as numbers) or sorted (as text). exact: do not merge names that "
            "differ only in case or spaces."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _named_columns(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Write the columns behind each data set, so that history, fingerprints and replay include
        them.
        """
        columns = dict(_roles(values.get("columns")) or {})
        if values.get(LABELS) is not None:
            columns[LABELS] = values[LABELS]
        if not columns:
            return values
        unlabelled = {role: name for role, name in columns.items() if role not in OF_LABELLED}
        changed = {}
        for name in cls.model_fields.keys() & values.keys():
            kind, value = about(cls.model_fields[name]).get("reads"), values[name]
            if kind not in (LABELLED, UNLABELLED) or value in (None, "-", CROSS):
                continue
            read = columns if kind == LABELLED else unlabelled
            if name == "data" and "group" in columns:
                read = {**read, "group": columns["group"]}
            specs = [value] if isinstance(value, str) else value
            named = [str(DataSpec.parse(spec).reading(read)) for spec in specs]
            changed[name] = named[0] if isinstance(value, str) else named
        return values | changed


class Without(Options):
    """Training rows that are left out."""

    without: PathLike | None = option(
        None,
        metavar="F",
        group=READ,
        help="Leave out the training rows that this table lists, such as suspects.csv of build. Text and label must match.",
    )

    @model_validator(mode="before")
    @classmethod
    def _write_behind_data(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Write the table behind --data, so that history, fingerprints and replay include it."""
        data, table = values.get("data"), values.get("without")
        if data is None or table is None:
            return values
        return values | {"data": str(DataSpec.parse(data).without(str(table)))}
