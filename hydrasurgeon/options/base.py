"""A record of options, and its other forms: a signature in Python, an entry of the history, a
command line.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hydrasurgeon.errors import HydraWarning, UsageError
from hydrasurgeon.files.atomic import claims
from hydrasurgeon.files.history import typed
from hydrasurgeon.files.untrusted import portable_entry, visible
from hydrasurgeon.lookup import did_you_mean

GROUPS = READ, CHOSEN, RUNS, WRITTEN, SPECIAL = (
    "What is read",
    "What is chosen",
    "How it runs",
    "What is written",
    "For some models only",
)
"""Groups of options, in the order of `--help`."""

KINDS = CHECKPOINTS, LABELLED, UNLABELLED = "checkpoints", "labelled data", "data"
"""Groups of inputs, by the kind of their values, and whether labels are needed."""
CRITERIA, RECIPES, ENGINES, FORMATS = "criteria", "recipes", "engines", "formats"
"""Further kinds of values."""
FRESH = "init:"
"""Prefix of a checkpoint with random weights."""
STDOUT = "-"
"""Name of standard output, for results, and of standard input, for data."""

EXPECTED = {
    "literal_error": "expected {expected}",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "string_too_short": "a name in the list is empty",
}
"""Descriptions of a wrong value, by pydantic's name of the error."""

NOTHING = FieldInfo()
"""Substitute for a field that a record does not have."""
PathLike = str | Path
"""A file, or `DIR/` as text, because a `Path` has no slash at its end."""
Result = TypeVar("Result")


def option(
    default: Any = ...,
    *,
    help: str,
    group: str = CHOSEN,
    metavar: str | None = None,
    unset: str | None = None,
    flags: Sequence[str] = (),
    recorded: bool = False,
    repeatable: bool = False,
    spread: bool = False,
    endings: tuple[str, ...] = (),
    reads: str | None = None,
    also: Sequence[str] = (),
    **bounds: Any,
) -> Any:
    """Return a field that is an option.

    `unset` describes the default where `default` does not show it; `flags` are the option's names
    if they differ from the field's; `recorded` options are kept in the history; a `repeatable`
    option may occur several times on the command line, and a `spread` one takes all words up to the
    next option; an option with `endings` prints, unless a file with such an ending is named; `also`
    lists other programs' names for it.
    """
    about: dict[str, Any] = {
        "group": READ if group in KINDS else group,
        "reads": reads or group,
        "metavar": metavar,
        "unset": unset,
        "flags": [*flags],
        "recorded": recorded,
        "repeatable": repeatable,
        "spread": spread,
        "endings": endings,
        "also": [*also],
    }
    return Field(default, description=help, json_schema_extra=about, **bounds)


def argument(*, help: str, metavar: str, default: Any = ..., reads: str | None = None) -> Any:
    """Return a field without a `--name`: it is positional on the command line, and may be
    positional in Python.
    """
    return Field(
        default,
        description=help,
        json_schema_extra={"argument": True, "metavar": metavar, "reads": reads},
    )


class Options(BaseModel):
    """Options of a command; the docstring of a subclass is the command's help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True
    )

    requires: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Options of which an option requires one, by that option."""
    conflicts: ClassVar[Sequence[tuple[str, str]]] = ()
    """Pairs of options that exclude each other."""
    writes_manifest: ClassVar[bool] = False
    """True for commands whose manifest repeats their options, which must then be UTF-8."""

    @classmethod
    def of(cls, *inputs: Any, **options: Any) -> Self:
        """Return a record of a caller's values: arguments by position, options by name."""
        names = cls.arguments()
        if len(inputs) > len(names):
            raise TypeError(f"takes {len(names)} positional arguments, {len(inputs)} were given")
        values = dict(zip(names, inputs, strict=False)) | options
        fields = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next((name for name in values if name not in fields), None)
        if unknown is not None:
            raise TypeError(f"unexpected keyword argument {unknown!r}")
        try:
            return cls(**values)
        except ValidationError as error:
            raise UsageError(cls.wrong(error)) from None

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        rules = [vars(base) for base in type(self).__mro__]
        chosen = {name for name in self.model_fields_set if _is_given(getattr(self, name))}
        for name, alternatives in (
            pair for rule in rules for pair in rule.get("requires", {}).items()
        ):
            if name in chosen and not chosen & {*alternatives}:
                needed = " or ".join(map(self.flag, alternatives))
                raise UsageError(f"{self.flag(name)} requires {needed}.")
        for one, other in (pair for rule in rules for pair in rule.get("conflicts", ())):
            if {one, other} <= chosen:
                message = f"{self.flag(one)} conflicts with {self.flag(other)}."
                raise UsageError(message, hint="Give one of them.")
        return self

    @model_validator(mode="after")
    def _check_encoding(self) -> Self:
        """Refuse texts that a manifest cannot hold: names of files may be any bytes."""
        for name in self.model_fields_set if self.writes_manifest else ():
            for text in _texts_of(getattr(self, name)):
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise UsageError(
                        f"{self.flag(name)} {visible(text)}: is not UTF-8",
                        hint="Rename the file, or link to it.",
                    ) from None
        return self

    @property
    def sources(self) -> list[Any]:
        """Inputs of the command, which no output may replace."""
        fields = {name: about(field) for name, field in type(self).model_fields.items()}
        read = [
            getattr(self, n)
            for n, description in fields.items()
            if description.get("argument") or description.get("group") in (READ, SPECIAL)
        ]
        return [value for value in read if isinstance(value, str | Path | tuple)]

    def reading(self, *kinds: str) -> list[str]:
        """Return the inputs of these kinds, as the user wrote them."""
        fields = type(self).model_fields.items()
        values = [
            getattr(self, name) for name, field in fields if about(field).get("reads") in kinds
        ]
        lists = [value if isinstance(value, tuple) else (value,) for value in values]
        return [str(entry) for value in lists for entry in value if entry is not None]

    def named(self, kind: str) -> list[tuple[str, str]]:
        """Return options of a kind, as they are typed, with their values."""
        fields = type(self).model_fields.items()
        names = [name for name, field in fields if about(field).get("reads") == kind]
        return [(self.flag(n), str(getattr(self, n))) for n in names if _is_given(getattr(self, n))]

    def printing(self, line: Callable[[str], None], *, json: bool) -> Self:
        """Return the options of a command line that prints, by `line`, results without a file."""
        return self

    def but(self, **changed: Any) -> Self:
        """Return a copy with some fields changed, whose values the caller has validated."""
        return self.model_copy(update=changed)

    @classmethod
    def ordered(cls) -> dict[str, FieldInfo]:
        """Return the fields: this record's first, then those that it shares with other commands."""
        homes = {
            name: at
            for at, base in reversed([*enumerate(cls.__mro__)])
            for name in vars(base).get("__annotations__", ())
        }
        return dict(sorted(cls.model_fields.items(), key=lambda item: homes[item[0]]))

    @classmethod
    def arguments(cls) -> list[str]:
        """Return the names of positional arguments."""
        return [name for name, field in cls.model_fields.items() if about(field).get("argument")]

    @classmethod
    def flag(cls, name: str) -> str:
        """Return the option as it is typed."""
        if about(cls.model_fields.get(name, NOTHING)).get("argument"):
            return str(about(cls.model_fields[name])["metavar"])
        return cls.flags(name)[-1]

    @classmethod
    def flags(cls, name: str) -> list[str]:
        """Return all names by which an option may be typed; an argument has none."""
        description = about(cls.model_fields.get(name, NOTHING))
        return (
            []
            if description.get("argument")
            else description.get("flags") or [f"--{name.replace('_', '-')}"]
        )

    @classmethod
    def wrong(cls, error: ValidationError) -> str:
        """Describe the first error of a record in one line."""
        first, *more = error.errors()
        name = str(first["loc"][0])
        field = next(f for n, f in cls.model_fields.items() if name in (n, f.alias))
        description = about(field)
        shown = str(description["metavar"]) if description.get("argument") else cls.flag(name)
        if first["type"] == "missing":
            return f"{shown} is required"
        if more:  # a union says what each of its parts would have been
            return f"{shown} {first['input']}: expected {description['metavar']}"
        context = first.get("ctx", {})
        reason = EXPECTED.get(first["type"], first["msg"]).format(**context)
        if first["type"] == "literal_error":
            reason += did_you_mean(str(first["input"]), re.findall(r"'(\w+)'", context["expected"]))
        value = f" {first['input']}".rstrip()
        return f"{shown}{value}: {reason}".replace("'", "")

    def recorded(self) -> dict[str, Any]:
        """Return the values that history keeps, with data, checkpoints and recipes named without
        folders.

        Empty values, such as `()`, are omitted like None.
        """
        kept: dict[str, Any] = {}
        for name, field in self.ordered().items():
            value, description = getattr(self, name), about(field)
            if (
                not description.get("recorded")
                or value is None
                or value is False
                or value in ((), {})
            ):
                continue
            if description.get("reads") in (*KINDS, RECIPES):
                several = value if isinstance(value, tuple) else (value,)
                names = [portable_entry(str(entry)) for entry in several]
                kept[name] = names if isinstance(value, tuple) else names[0]
            else:
                kept[name] = [*value] if isinstance(value, tuple) else value
        return kept

    @classmethod
    def recalled(cls, args: Mapping[str, Any]) -> Self:
        """Return a record from the values that history keeps; ValueError for options that this
        command does not record.
        """
        fields = cls.model_fields
        unknown = next(
            (name for name in args if not about(fields.get(name, NOTHING)).get("recorded")), None
        )
        if unknown is not None:
            raise ValueError(f"{unknown}: is not an option that {cls.__name__.lower()} records")
        # They become words of a shell script: nothing in them may end a line or speak to a
        # terminal.
        if not all(word.isprintable() for word in words(args, cls)):
            raise ValueError("holds control characters")
        # Inputs and outputs are not among the options; where they lie is said elsewhere.
        places = {
            name: () if name in ("members", "checkpoints") else ""
            for name, field in fields.items()
            if field.is_required()
        }
        # Histories list defaults too: what was left at its default was not given.
        changed = {name: value for name, value in args.items() if value != fields[name].default}
        try:
            return cls(**{**places, **changed})
        except ValidationError as error:
            raise ValueError(cls.wrong(error)) from None

    @classmethod
    def call_signature(cls) -> inspect.Signature:
        """Return the signature of the stage in Python, for `help` and editors."""
        names, empty = cls.arguments(), inspect.Parameter.empty
        parameters = [
            inspect.Parameter(
                field.alias or name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD
                if name in names
                else inspect.Parameter.KEYWORD_ONLY,
                default=empty if field.default is PydanticUndefined else field.default,
                annotation=field.annotation,
            )
            for name, field in cls.ordered().items()
        ]
        parameters.sort(key=lambda p: (p.kind, p.kind is p.KEYWORD_ONLY and p.default is not empty))
        return inspect.Signature(parameters)


def about(field: FieldInfo) -> Mapping[str, Any]:
    """Return the description that `option` or `argument` gave to a field; empty for a field of
    Python alone.
    """
    extra = field.json_schema_extra
    return extra if isinstance(extra, Mapping) else {}


def words(options: Mapping[str, Any], record: type[Options]) -> list[str]:
    """Return options as they are typed: a flag alone, several values and KEY=VALUE pairs one by
    one.
    """
    return [word for name, value in options.items() for word in typed(record.flag(name), value)]


def stage(record: type[Options]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate a function of a record, so that it takes the record or its fields.

    Outputs that the function claims are held until it returns. A caller who passes fields gets the
    notes of the result as warnings.
    """

    def decorated(function: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def called(*inputs: Any, **options: Any) -> Result:
            if inputs and isinstance(inputs[0], record):
                with claims():
                    return function(inputs[0])
            with claims():
                result = function(record.of(*inputs, **options))
            for note in getattr(result, "notes", ()):
                warnings.warn(note, HydraWarning, stacklevel=2)
            return result

        called.__signature__ = record.call_signature()  # type: ignore[attr-defined]
        return called

    return decorated


def _texts_of(value: Any) -> list[str]:
    """Return an option's value as texts: lists and KEY=VALUE pairs one by one."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return [str(entry) for entry in value] if isinstance(value, tuple) else [str(value)]


def _is_given(value: Any) -> bool:
    """Return True if an option has a value."""
    return value is not None and value is not False and value not in ((), [], {}, "")
