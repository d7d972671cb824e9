"""Which columns of tables are read: named once, written behind every data set, so that files
remember it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BeforeValidator, model_validator

from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.options.base import LABELLED, READ, UNLABELLED, Options, about, option

ROLES = ("text", "text_pair", "label", "image", "group")
"""What a column can be."""
PLACED = ("text", "label")
"""Roles that are known by their place behind a spec, and have options of their own."""
OF_LABELLED = ("label", "group", "labels")
"""Roles that OOD data has no columns for."""


def _roles(value: Any) -> Any:
    """ROLE=NAME texts as a mapping."""
    if value is None:
        return None
    entries = (
        value.items()
        if isinstance(value, Mapping)
        else (e.partition("=")[::2] for e in str(value).split(","))
    )
    columns = {str(role).strip(): str(name).strip() for role, name in entries}
    columns = {"label" if role == "labels" else role: name for role, name in columns.items()}
    for role, name in columns.items():
        if role not in ROLES or not name:
            what = (
                f"{role} is no role of a column{did_you_mean(role, ROLES)}"
                if role not in ROLES
                else "names none"
            )
            hint = f"Write ROLE=NAME,ROLE=NAME; roles are {', '.join(ROLES)}."
            raise UsageError(f"--columns {role}={name}: {what}", hint=hint)
    return columns


def named(spec: str, columns: Mapping[str, str]) -> str:
    """A spec that says which columns of a table are read: `D#TEXT#LABEL`, or
    `D#ROLE,NAME#ROLE,NAME`.
    """
    if "#" in spec or not columns:
        return spec
    names = {role: quote(name, safe="").replace(".", "%2E") for role, name in columns.items()}
    if names.keys() <= set(PLACED):
        return "#".join([spec, *(names.get(role, "") for role in PLACED)]).rstrip("#")
    return "#".join(
        [spec, *(f"{role},{names[role]}" for role in (*ROLES, "labels") if role in names)]
    )


class Columns(Options):
    """Which columns of tables are read."""

    text_column: str | None = option(
        None,
        metavar="NAME",
        unset="text or sentence",
        group=READ,
        help="The column of tables that holds the texts.",
    )
    label_column: str | None = option(
        None,
        metavar="NAME",
        unset="label or labels",
        group=READ,
        help="The column of tables that holds the labels.",
    )
    columns: Annotated[Mapping[str, str] | str | None, BeforeValidator(_roles)] = option(
        None,
        metavar="ROLE=NAME,…",
        group=READ,
        help=(
            "Columns by what they hold: text, text_pair, label, image, group; "
            "text=premise,text_pair=hypothesis."
        ),
    )

    labels: Literal["names", "positions", "sorted"] | None = option(
        None,
        metavar="names|positions|sorted",
        unset="names where all are the model's",
        group=READ,
        help=(
            "What labels that are numbers mean: class names, or positions from 0; folders: "
            "positions (by number) or sorted (as text)."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _named_columns(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Each data set says which of its columns are read: so do history, fingerprints and replay."""
        columns = dict(_roles(values.get("columns")) or {})
        columns |= {
            role: values[f"{role}_column"] for role in PLACED if values.get(f"{role}_column")
        }
        if values.get("labels") is not None:
            columns["labels"] = values["labels"]
        fields = cls.model_fields if columns else {}
        changed = {}
        for name in fields.keys() & values.keys():
            kind, value = about(fields[name]).get("reads"), values[name]
            if kind not in (LABELLED, UNLABELLED) or value in (None, "-"):
                continue
            there = {
                role: column
                for role, column in columns.items()
                if kind == LABELLED or role not in OF_LABELLED or (role, name) == ("group", "data")
            }
            changed[name] = (
                named(value, there)
                if isinstance(value, str)
                else [named(each, there) for each in value]
            )
        return values | changed
