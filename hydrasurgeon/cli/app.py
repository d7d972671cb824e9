"""The command line: which commands there are, and what becomes of errors."""

from __future__ import annotations

import errno
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from hydrasurgeon.cli.help import WIDEST, Pages, Plain
from hydrasurgeon.cli.typer_commands import add, regrouped
from hydrasurgeon.commands import COMMANDS, NAMED, Command
from hydrasurgeon.errors import HydraError, MissingDependency, OutputError, UsageError
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.lookup import INSTALLED_AS
from hydrasurgeon.options.base import about

PACKAGES = (
    *("torch", "torchvision", "transformers", "timm", "datasets", "pandas", "scipy", "open_clip"),
    *(
        "accelerate",
        "jaxtyping",
        "matplotlib",
        "jinja2",
        "safetensors",
        "huggingface_hub",
        "pyarrow",
    ),
    *("PIL", "filelock", "onnx", "onnxscript"),
)
"""Packages of a full installation that answering from a graph does without."""


def lacking(package: str, command: str) -> MissingDependency:
    """Return the error for a package that is not installed."""
    hint = (
        "Install everything: pip install hydrasurgeon. Without torch predict and serve run graphs."
    )
    message = f"{command} needs {INSTALLED_AS.get(package, package)}, which is not installed"
    return MissingDependency(message.strip(), hint=hint)


@cache
def application(command: Command | None) -> typer.Typer:
    """Build the command line. With a command it holds that one alone: importing the options of all
    takes longer than an answer.
    """
    app = typer.Typer(
        name="hydrasurgeon",
        cls=Pages,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
    )
    add(app, COMMANDS if command is None else (command,))
    app.callback()(start)
    app.command("demo", cls=Plain)(demo)
    app.command("help", cls=Plain)(help_of)
    return app


def _version(show_version: bool) -> None:
    if show_version:
        from hydrasurgeon import render
        from hydrasurgeon.files.history import installed

        render.raw(f"hydrasurgeon {installed('hydrasurgeon')}")
        raise typer.Exit


VERSION = typer.Option(
    "--version", help="Print the version and exit.", is_eager=True, callback=_version
)
"""The one option that stands before a command."""


def start(version: Annotated[bool, VERSION] = False) -> None:
    """Cut attention heads out of pretrained transformers, fuse what is left into Hydra ensembles, and calibrate them."""


def demo(
    folder: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Where the demo leaves its files.")
    ] = Path("hydra-demo"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
) -> None:
    """Build a hydra from a small ViT, stage by stage, and compare it with a mean and a Deep Ensemble."""
    from hydrasurgeon.cli.demo import demo as stage

    stage(folder, run=run, force=force)


def help_of(
    command: Annotated[str | None, typer.Argument(metavar="[COMMAND]", help="Of which.")] = None,
) -> None:
    """List a command's options, with examples."""
    raise typer.Exit(run([*([command] if command else []), "--help"]))


def run(arguments: list[str]) -> int:
    """Run one command in this process and return its exit code; a bug keeps its traceback."""
    from hydrasurgeon import render

    try:
        command = NAMED.get(arguments[0]) if arguments else None
        if command is not None and command.record:
            arguments = regrouped(arguments, command.options)
        # Help is the one text that typer prints itself.
        with render.writing(sys.stdout) if {"-h", "--help"} & {*arguments} else nullcontext():
            app = application(command)
            code = app(args=arguments, standalone_mode=False, prog_name="hydrasurgeon")
    except HydraError as error:
        render.failed(error)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in PACKAGES:
            raise
        render.failed(lacking(package, " ".join(arguments[:1])))
        return MissingDependency.exit_code
    except typer.Abort:
        return 130
    except TyperException as error:
        if not arguments:  # the whole help
            error.show()  # type: ignore[attr-defined]
        else:
            render.failed(_misused(command, error))
        return UsageError.exit_code
    except OSError as error:
        # Outputs say so themselves: this is what libraries and stages lay aside while they work.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        import tempfile

        where = visible(str(error.filename or tempfile.gettempdir()))
        hint = "Free some of it, or set TMPDIR to a folder with room for temporary files."
        render.failed(OutputError(f"{where}: the disk is full", hint=hint))
        return OutputError.exit_code
    return code if isinstance(code, int) else 0


def _misused(command: Command | None, error: Any) -> UsageError:
    """Turn typer's error about a misspelt command line into one of ours."""
    name = "" if command is None else f" {command.name}"
    message = str(error.format_message())
    word = getattr(error, "option_name", "").lstrip("-")
    hint = f"`hydrasurgeon{name} -h` lists the options."
    if command is not None and command.record:
        record = command.options
        for field in record.model_fields:
            if word in about(record.model_fields[field]).get("also", ()):
                message = f"No such option: --{word} Did you mean {record.flag(field)}?"
    return UsageError(message, hint=hint)


def main() -> int:
    """Run the command that this process was started with; return its exit code."""
    from hydrasurgeon import render

    try:
        render.prepare_streams()
        code = run(sys.argv[1:])
        render.finish_streams()
    except HydraError as error:  # of the streams themselves
        render.failed(error)
        code = error.exit_code
    return code
