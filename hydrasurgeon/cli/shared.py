"""What several commands share, declared once: a command takes it as one mapping, on the command line it is options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_args

import typer

from hydrasurgeon.cli import options
from hydrasurgeon.errors import UsageError
from hydrasurgeon.run import RunKeywords

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.class_names import ClassNamesKeywords
    from hydrasurgeon.measuring.showing import ShowingKeywords
    from hydrasurgeon.sharing.measured_card import CardKeywords
    from hydrasurgeon.sharing.output import OutputKeywords
else:  # `--help` needs their names, not the modules they come from
    CardKeywords = ClassNamesKeywords = OutputKeywords = ShowingKeywords = dict


def run_options(
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.BatchSize = "auto",
    skip_bad: options.SkipBad = False,
) -> RunKeywords:
    """How a model runs over samples."""
    return {
        "limit": limit,
        "seed": seed,
        "device": device,
        "dtype": dtype,
        "batch_size": options.batch(batch_size),
        "skip_bad": skip_bad,
    }


def tuning_options(
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="Instead of the recipe's.")
    ] = None,
    skip_bad: options.SkipBad = False,
) -> RunKeywords:
    """The same for training, whose recipe says how large a batch is."""
    return {**run_options(limit, seed, device, dtype, skip_bad=skip_bad), "batch_size": batch_size}


def check_options(
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.BatchSize = "auto",
) -> RunKeywords:
    """The same for a comparison, which leaves nothing out."""
    return run_options(limit, seed, device, dtype, batch_size)


def proof_options(
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: Annotated[
        str, typer.Option("--dtype", help="float64 or float32: what outputs are compared in.")
    ] = "float64",
    batch_size: options.BatchSize = "auto",
) -> RunKeywords:
    """The same for a proof, in the precision that it needs."""
    return run_options(limit, seed, device, dtype, batch_size)


def class_name_options(classes: options.Classes = None, template: options.Template = None) -> ClassNamesKeywords:
    """What a zero-shot model is told of the classes."""
    return {"classes": classes, "template": template or []}


class Quantisation(TypedDict):
    """The part of `export` that is about int8, and about the data that a file is tried on."""

    int8: bool
    check: str | None
    ood: list[str]
    tolerance: float
    limit: int | None


def quantisation_options(
    int8: Annotated[bool, typer.Option("--int8", help="onnx: weights in 8 bits, if answers stay as good.")] = False,
    check: Annotated[
        str | None, typer.Option("--check", metavar="D", help="onnx, pt2: labelled data to compare answers on.")
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood", metavar="[near|far:]NAME=D", help="--check: foreign data to be told as well as before; repeatable."
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", metavar="X", help="--check: by how much accuracy, ECE and AUROC may be worse."),
    ] = 0.01,
    limit: options.Limit = None,
) -> Quantisation:
    """Whether weights get 8 bits, and how far answers on the user's data may change."""
    return {"int8": int8, "check": check, "ood": ood or [], "tolerance": tolerance, "limit": limit}


def output_options(
    force: options.Force = False,
    max_shard_size: options.ShardSize = None,
    push_to_hub: options.PushToHub = None,
    private: options.Private = False,
) -> OutputKeywords:
    """How a checkpoint is written."""
    return {"force": force, "max_shard_size": max_shard_size, "push_to_hub": push_to_hub, "private": private}


def showing_options(
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="F|-", help="Write the report as one page that opens offline; - is stdout."),
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option("--markdown", metavar="F|-", help="Write verdicts and tables as Markdown; - is stdout."),
    ] = None,
    latex: Annotated[
        str | None, typer.Option("--latex", metavar="F|-", help="Write the tables as LaTeX; - is stdout.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="NAME", help="The result that reports compare with; else the first."),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="NAME[:PROJECT]", help="Log a run for each result: wandb, mlflow or trackio."),
    ] = None,
) -> ShowingKeywords:
    """How a report is shown."""
    return {"html": html, "markdown": markdown, "latex": latex, "reference": reference, "log": log}


def card_options(
    card: Annotated[
        bool, typer.Option("--card", help="Write each directory's own result into its model card, README.md.")
    ] = False,
    push_to_hub: options.PushToHub = None,
) -> CardKeywords:
    """Where else a checkpoint's own result goes."""
    return {"card": card, "push_to_hub": push_to_hub}


def check_stdout(*, json: str | None, showing: ShowingKeywords) -> None:
    """Two results on one stream are none."""
    places = {"--json": json, **{f"--{kind}": showing.get(kind) for kind in ("html", "markdown", "latex")}}
    printed = [option for option, place in places.items() if place == "-"]
    if len(printed) > 1:
        raise UsageError(f"{printed[0]} -, {printed[1]} -: both would be printed", hint="Give one of them a file.")


CardOptions = Annotated[CardKeywords, card_options]
RunOptions = Annotated[RunKeywords, run_options]
TuningOptions = Annotated[RunKeywords, tuning_options]
CheckOptions = Annotated[RunKeywords, check_options]
ProofOptions = Annotated[RunKeywords, proof_options]
QuantisationOptions = Annotated[Quantisation, quantisation_options]
ClassNameOptions = Annotated[ClassNamesKeywords, class_name_options]
OutputOptions = Annotated[OutputKeywords, output_options]
ShowingOptions = Annotated[ShowingKeywords, showing_options]


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """A command for Typer: where it takes shared options as one mapping, they stand one by one, as their function
    declares them."""
    parameters: list[inspect.Parameter] = []
    shared: dict[str, Callable[..., object]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        made_by = _made_by(parameter.annotation)
        if made_by is not None:
            shared[parameter.name] = made_by
        declared = [parameter] if made_by is None else _parameters(made_by)
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in declared]

    def expanded_command(**options: Any) -> None:
        for name, made_by in shared.items():
            options[name] = made_by(**{p.name: options.pop(p.name) for p in _parameters(made_by)})
        command(**options)

    expanded_command.__name__, expanded_command.__doc__ = command.__name__, command.__doc__
    expanded_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded_command.__annotations__ = {p.name: p.annotation for p in parameters}
    return expanded_command


def _made_by(annotation: Any) -> Callable[..., object] | None:
    """The function that makes one mapping of shared options."""
    return next((made_by for made_by in get_args(annotation)[1:] if inspect.isfunction(made_by)), None)


def _parameters(made_by: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(made_by, eval_str=True).parameters.values())


@contextmanager
def progress(run: RunKeywords, *, quiet: bool) -> Iterator[RunKeywords]:
    """A run that shows how far it is, unless it is to be quiet."""
    from hydrasurgeon import render

    with render.progress(quiet) as tick:
        yield {**run, "progress": tick}
