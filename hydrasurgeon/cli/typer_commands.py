"""Commands of the command line, built from their options: fields become options, the stage does the
work, and a view shows the result.
"""

from __future__ import annotations

import gc
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from hydrasurgeon.cli.help import Page
from hydrasurgeon.commands import Command
from hydrasurgeon.lookup import imported
from hydrasurgeon.options.base import (
    CHECKPOINTS,
    CRITERIA,
    ENGINES,
    FRESH,
    LABELLED,
    RECIPES,
    STDOUT,
    UNLABELLED,
    Options,
    about,
)

NAMED = re.compile(r"[^=/]*=")
"""The name of a data set, in front of its place."""


def add(app: typer.Typer, commands: Iterable[Command]) -> None:
    """Give the application its commands."""
    for command in commands:
        if command.record:
            page = type("Page", (Page,), {"about": command})
            app.command(command.name, cls=page)(_function(command))


def _function(command: Command) -> Callable[..., None]:
    """Return the function that Typer calls, with the record's fields as its parameters."""
    record = command.options
    parameters = [
        _parameter(name, field) for name, field in record.ordered().items() if about(field)
    ]
    if "json_" not in record.model_fields:
        parameters.append(_flag("as_json", "--json", help="The result as JSON on stdout."))
    parameters.append(_flag("quiet", "--quiet", "-q", help="Nothing but errors and measurements."))
    parameters.sort(key=lambda p: p.default is not p.empty)

    def called(*, quiet: bool, as_json: bool = False, **values: Any) -> None:
        from hydrasurgeon import render

        settings = {
            record.model_fields[name].alias or name: value
            for name, value in values.items()
            if value not in (None, [])
        }
        options = record.of(**settings)
        _look(options)
        if getattr(options, "json_", None) == STDOUT:
            options, as_json = options.but(json_=None), True
        options = options.printing(render.raw, json=as_json)
        with render.progress(quiet) as tick:
            shown = {"progress": tick} if quiet else {"progress": tick, "say": render.say}
            shown = {name: value for name, value in shown.items() if name in record.model_fields}
            stage = imported(command.place)
            if not gc.isenabled():  # what is there now stays
                gc.freeze()
                gc.enable()
            result = stage(options.but(**shown))
        getattr(render, command.view)(result, json=as_json, quiet=quiet)
        if hasattr(result, "require"):
            result.require()

    called.__name__, called.__doc__ = command.name, record.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _look(options: Options) -> None:
    """Refuse names of nothing at once: stages take seconds to import, and may read the second file
    after an hour.
    """
    from hydrasurgeon.checkpoints.folder import find, parts_of, present
    from hydrasurgeon.checkpoints.hub import is_hub_id
    from hydrasurgeon.data.places import is_there, located
    from hydrasurgeon.options.column_roles import DataSpec, is_share

    for flag, names in options.named(CRITERIA):
        from hydrasurgeon.criteria import criterion

        for name in filter(None, names.split(",")):
            criterion(name.strip(), option=flag)
    for flag, name in options.named(ENGINES):
        from hydrasurgeon.engines import engine_named

        if name not in ("auto", "all"):
            engine_named(name, option=flag)
    for _, recipe in options.named(RECIPES):
        from hydrasurgeon.tuning.recipes import load_recipe

        load_recipe(recipe, {})
    for text in (part for spec in options.reading(CHECKPOINTS) for part in parts_of(spec)[1]):
        if not (text.startswith(FRESH) or is_hub_id(text) or present(Path(text))):
            find(text.partition("#")[0])
    for text in options.reading(LABELLED, UNLABELLED):
        spec = text if is_there(Path(text)) else NAMED.sub("", text)
        if spec != STDOUT and not is_share(spec):
            located(DataSpec.parse(spec).place)


def regrouped(words: list[str], record: type[Options]) -> list[str]:
    """Rewrite a command line for Typer: `--vs a b c` → `--vs a --vs b --vs c`, and `--markdown`
    without a file → `--markdown -`.
    """
    fields = {flag: about(f) for n, f in record.model_fields.items() for flag in record.flags(n)}
    several = {flag for flag, facts in fields.items() if facts.get("spread")}
    alone = {flag: facts["endings"] for flag, facts in fields.items() if facts.get("endings")}
    grouped: list[str] = []
    current = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-") and word != STDOUT:
            current = word if word in several else ""
        elif current:
            grouped.append(current)
        if word != current:
            grouped.append(word)
        if word in alone and following != STDOUT and not following.endswith(alone[word]):
            grouped.append(STDOUT)
    return grouped


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return a field as a parameter for Typer. Values are texts, flags and lists, which the record
    parses.
    """
    facts = about(field)
    kind = list[str] if facts.get("repeatable") else _kind(field.annotation)
    if facts.get("argument"):
        info: Any = typer.Argument(metavar=facts["metavar"], help=field.description)
    else:
        flags = facts["flags"] or (f"--{name.replace('_', '-')}",)
        info = typer.Option(*flags, metavar=facts["metavar"], help=field.description)
    required = field.is_required()
    default = field.default if kind is bool else None
    if required:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if required else kind | None, info],  # type: ignore[valid-type]
    )


def _flag(name: str, *flags: str, help: str) -> inspect.Parameter:
    annotation = Annotated[bool, typer.Option(*flags, help=help)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation
    )


def _kind(annotation: Any) -> Any:
    """Return the type that the command line gives for a field: a flag, several texts, or one."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = {
            str(_kind(kind)): _kind(kind) for kind in get_args(annotation) if kind is not type(None)
        }
        return next(iter(kinds.values())) if len(kinds) == 1 else str
    if annotation is bool:
        return bool
    if get_origin(annotation) in (tuple, Mapping):
        return list[str]
    return str
