"""One record per command is its options, its signature in Python, and its entry in the history."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import hydrasurgeon as hs
from hydrasurgeon.cli.app import application, run
from hydrasurgeon.cli.help import takes_one_value
from hydrasurgeon.commands import COMMANDS, Command
from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import imported
from hydrasurgeon.options.base import Options, about, words
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.options.making import FinetuneOptions, FuseOptions, PruneOptions

WITH_OPTIONS = [command for command in COMMANDS if command.record]


@pytest.mark.parametrize("command", WITH_OPTIONS, ids=lambda command: command.name)
def test_help_is_made_of_the_record(command: Command) -> None:
    printed = (
        CliRunner()
        .invoke(application(None), [command.name, "--help"], env={"COLUMNS": "400"})
        .output
    )
    text = " ".join(printed.split())
    for name, field in command.options.model_fields.items():
        said = about(field)
        if said and not said.get("argument"):
            flag = said["flags"][0] if said["flags"] else f"--{name.replace('_', '-')}"
            assert flag.split("/")[0] in text
            for part in str(field.description).split("{choices}"):
                assert " ".join(part.split()) in text
    first, *_ = (command.options.__doc__ or "").split("\n\n")
    assert " ".join(first.split()) in text


@pytest.mark.parametrize("command", WITH_OPTIONS, ids=lambda command: command.name)
def test_a_stage_takes_what_the_command_takes(command: Command) -> None:
    signature = inspect.signature(imported(command.place))
    fields = {field.alias or name for name, field in command.options.model_fields.items()}
    assert fields <= {*signature.parameters}


def test_a_misspelt_keyword_is_no_option() -> None:
    with pytest.raises(TypeError, match="sed"):
        hs.prune("vit", method="random", keep=2, sed=1)


@pytest.mark.parametrize(
    ("record", "given", "says"),
    [
        (
            FuseOptions,
            {"members": ["a"], "out": "x", "mlp": "mean"},
            "--mlp mean: expected average or separate",
        ),
        (FuseOptions, {"members": ["a"]}, "--out is required"),
        (FuseOptions, {"members": ["a"], "out": "x", "limit": 3}, "--limit requires --check."),
        (
            FuseOptions,
            {"members": ["a"], "out": "x", "tolerance": -1},
            "--tolerance -1: must be 0.0 or more",
        ),
        (PruneOptions, {"checkpoint": "a", "keep": "ten"}, "--keep ten: expected K|auto"),
        (
            PruneOptions,
            {"checkpoint": "a", "seed": 2**63},
            f"--seed {2**63}: must be {2**63 - 1} or less",
        ),
        (PruneOptions, {"checkpoint": "a", "remove": "²"}, "--remove ²: expected a whole number"),
        (
            CalibrateOptions,
            {
                "checkpoint": "a",
                "data": "d",
                "out": "o",
                "cascade": True,
                "predictions": "p",
            },
            "--predictions conflicts with --cascade.",
        ),
        (
            FinetuneOptions,
            {"checkpoint": "a", "data": "d", "out": "o", "set": ["lr"]},
            "--set lr: not KEY=VALUE",
        ),
    ],
)
def test_one_message_says_what_is_wrong(
    record: type[Options], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        record.of(**given)
    assert str(caught.value) == says


@pytest.mark.parametrize("command", WITH_OPTIONS, ids=lambda command: command.name)
def test_an_option_with_one_value_is_refused_twice(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second value would silently replace the first."""
    parameters = get_command(application(None)).commands[command.name].params  # type: ignore[attr-defined]
    flags = [max(p.opts, key=len) for p in parameters if takes_one_value(p) and not p.is_flag]
    assert "--data" in flags or command.name not in ("score", "prune", "finetune", "calibrate")
    for flag in flags:
        assert run([command.name, "x", flag, "a.json", flag, "b.json"]) == 2, flag
        assert f"{flag} is given 2 times" in capsys.readouterr().err, flag


def test_what_history_keeps_can_be_recalled_and_typed() -> None:
    options = FinetuneOptions.of(
        "a", data="d.npz", out="o", set={"steps": 2, "lr": "1e-3"}, freeze=["mlp", "norms"]
    )
    kept = options.recorded()
    assert kept == {
        "data": "d.npz",
        "set": {"steps": "2", "lr": "1e-3"},
        "freeze": "mlp,norms",
        "dtype": "float32",
    }
    assert FinetuneOptions.recalled(kept).recorded() == kept
    assert words(kept, FinetuneOptions) == (
        [
            "--data",
            "d.npz",
            "--set",
            "steps=2",
            "--set",
            "lr=1e-3",
            "--freeze",
            "mlp,norms",
            "--dtype",
            "float32",
        ]
    )


@pytest.mark.parametrize(
    "kept", [{"out": "x"}, {"sed": 1}, {"data": "a\nb"}, {"data": "d", "limit": "many"}]
)
def test_history_that_no_command_wrote_is_refused(kept: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        FinetuneOptions.recalled({"data": "d", **kept})
