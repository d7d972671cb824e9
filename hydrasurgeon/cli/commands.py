"""The commands, and how a record of options becomes one: its fields are the options, its stage does
the work, and what the stage returns is shown.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from hydrasurgeon.cli.help import Page
from hydrasurgeon.cli.signals import go_on, speaking
from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import imported
from hydrasurgeon.options.base import CHECKPOINTS, LABELLED, UNLABELLED, Options, about
from hydrasurgeon.options.deciding import (
    CalibrateOptions,
    MonitorOptions,
    PredictOptions,
    ServeOptions,
)
from hydrasurgeon.options.making import (
    BuildOptions,
    FinetuneOptions,
    FuseOptions,
    PruneOptions,
    ScoreOptions,
)
from hydrasurgeon.options.measuring import (
    BenchOptions,
    CompareOptions,
    EvaluateOptions,
    ExportOptions,
    InspectOptions,
    ProbeOptions,
    ReplayOptions,
    VerifyOptions,
)

STDOUT = "-"
"""Where an output goes that is printed, and where data comes from that is typed."""
FRESH = "init:"
"""What a checkpoint begins with that is made of random weights."""
NAMED = re.compile(r"[^=/]*=")
"""What a data set is called, in front of it."""
PATTERN = {*"{*?["}
"""What is in a spec of several files."""


@dataclass(frozen=True)
class Command:
    """One command: what it can be told, what does the work, and what shows the result."""

    name: str
    record: type[Options]
    stage: str
    """`module:function` in hydrasurgeon.stages."""
    shown: str
    """The function in hydrasurgeon.render."""
    then: Callable[[Any], None] | None = None
    """What is done with the result at last: checks that the user asked for."""


def _keep_limits(evaluation: Any) -> None:
    imported("hydrasurgeon.measuring.asserts:require")(evaluation.report.asserts or ())


def _must_hold(result: Any) -> None:
    imported("hydrasurgeon.checkpoints.checks:must_hold")(str(result.path), result.checks)


def _as_stopped(result: Any) -> None:
    if result.stop is not None:
        raise result.stop


COMMANDS = (
    Command("score", ScoreOptions, "score:score", "scored"),
    Command("prune", PruneOptions, "prune:prune", "pruned"),
    Command("finetune", FinetuneOptions, "finetune:finetune", "finetuned"),
    Command("fuse", FuseOptions, "fuse:fuse", "fused"),
    Command("build", BuildOptions, "build:build", "built"),
    Command("calibrate", CalibrateOptions, "calibrate:calibrate", "calibrated"),
    Command("predict", PredictOptions, "predict:predict", "predicted"),
    Command("serve", ServeOptions, "serve:serve", "served", _as_stopped),
    Command(
        "monitor", MonitorOptions, "monitor:monitor", "monitored", lambda result: result.require()
    ),
    Command("eval", EvaluateOptions, "evaluate:evaluate", "evaluated", _keep_limits),
    Command("bench", BenchOptions, "bench:bench", "benched"),
    Command("inspect", InspectOptions, "inspect:inspect", "inspected"),
    Command("compare", CompareOptions, "compare:compare", "compared"),
    Command("probe", ProbeOptions, "probe:probe", "probed"),
    Command("verify", VerifyOptions, "verify:verify", "verified", _must_hold),
    Command("replay", ReplayOptions, "replay:replay", "replayed", _must_hold),
    Command("export", ExportOptions, "export:export", "exported"),
)
"""All commands but `schema`, `demo` and `help`, which take next to nothing."""


def add(app: typer.Typer) -> None:
    """Give the application its commands."""
    for command in COMMANDS:
        app.command(command.name, cls=type("Page", (Page,), {"record": command.record}))(
            _function(command)
        )


def _function(command: Command) -> Callable[..., None]:
    """The function that Typer calls, with the record's fields as its parameters."""
    record = command.record
    parameters = [
        _parameter(name, field) for name, field in record.ordered().items() if about(field)
    ]
    names = {p.name for p in parameters}
    if "json_" not in names:
        parameters.append(_flag("as_json", "--json", help="The result as JSON on stdout."))
    parameters.append(_flag("quiet", "--quiet", "-q", help="No progress and no notes."))
    parameters.sort(key=lambda p: p.default is not p.empty)

    def called(*, quiet: bool, as_json: bool = False, **values: Any) -> None:
        from hydrasurgeon import render

        options = {
            record.model_fields[n].alias or n: value
            for n, value in values.items()
            if value not in (None, [])
        }
        read = record.of(**options)
        _look(read)
        options = {name: getattr(read, "json_" if name == "json" else name) for name in options}
        printed = _printed(options)
        if printed == "json":
            as_json = True
        if record is PredictOptions and options.get("out") is None:
            if as_json:
                raise UsageError(
                    "--json requires -o: rows on stdout are JSON already", hint="Give -o F too."
                )
            options["each"] = render.raw
        how = {"shell": options.pop("shell", False)} if record is ReplayOptions else {}
        with speaking(lambda: go_on(read)), render.progress(quiet) as tick:
            if "progress" in record.model_fields:
                options["progress"] = tick
            if "say" in record.model_fields and not quiet:
                options["say"] = render.say
            result = imported(f"hydrasurgeon.stages.{command.stage}")(**options)
        getattr(render, command.shown)(result, json=as_json, quiet=quiet, **how)
        if command.then is not None:
            command.then(result)

    called.__name__, called.__doc__ = command.name, record.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _look(options: Options) -> None:
    """Refuse names of nothing at once: stages take seconds to import, and may read the second file
    after an hour.
    """
    from hydrasurgeon.checkpoints.folder import find, present
    from hydrasurgeon.checkpoints.hub import is_hub_id
    from hydrasurgeon.criteria import criterion
    from hydrasurgeon.data.places import is_there, located
    from hydrasurgeon.options.columns import DataSpec
    from hydrasurgeon.tuning.recipes import load_recipe

    for name in ("method", "criteria"):
        for key in (getattr(options, name, None) or "").split(","):
            if key:
                criterion(key.strip(), option=f"--{name}")
    for name in ("recipe", "tune"):
        if getattr(options, name, None) not in (None, "auto"):
            load_recipe(str(getattr(options, name)), {})
    for text in options.reading(CHECKPOINTS):
        if not (text.startswith(FRESH) or is_hub_id(text) or present(Path(text))):
            find(text.partition("#")[0])
    for text in options.reading(LABELLED, UNLABELLED):
        spec = text if text.startswith("text:") or is_there(Path(text)) else NAMED.sub("", text)
        if not (spec == STDOUT or PATTERN & {*spec} or spec.endswith(".tar")):
            located(DataSpec.parse(spec).place)


def _printed(options: dict[str, Any]) -> str | None:
    """Which report goes to stdout; `--json -` is the command line's own, the others the stage
    prints.
    """
    printed = [name for name in ("json", "html", "markdown") if options.get(name) == STDOUT]
    if len(printed) > 1:
        what = f"--{printed[0]} - conflicts with --{printed[1]} -: both would be printed"
        raise UsageError(what, hint="Give one of them a file.")
    if printed == ["json"]:
        del options["json"]
    return printed[0] if printed else None


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """A field as Typer wants it; values are texts, flags and lists, which the record reads."""
    said = about(field)
    kind = list[str] if said.get("repeatable") else _kind(field.annotation)
    if said.get("argument"):
        info: Any = typer.Argument(metavar=said["metavar"], help=field.description)
    else:
        flags = said["flags"] or (f"--{name.replace('_', '-')}",)
        info = typer.Option(*flags, metavar=said["metavar"], help=field.description)
    if field.is_required():
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info]
        )
    default = (
        field.default
        if kind is bool
        else None
        if field.default in (None, ())
        else str(field.default)
    )
    annotation = Annotated[kind | None, info]  # type: ignore[valid-type]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _flag(name: str, *flags: str, help: str) -> inspect.Parameter:
    annotation = Annotated[bool, typer.Option(*flags, help=help)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation
    )


def _kind(annotation: Any) -> Any:
    """What the command line gives for a field of this type: a flag, several texts, or one."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = {
            str(_kind(each)): _kind(each) for each in get_args(annotation) if each is not type(None)
        }
        return next(iter(kinds.values())) if len(kinds) == 1 else str
    if annotation is bool:
        return bool
    if get_origin(annotation) in (tuple, Mapping):
        return list[str]
    return str
