"""Options that commands share are declared once, and records and keywords of a stage name the same things."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

import hydrasurgeon as hs
from hydrasurgeon.cli import shared
from hydrasurgeon.cli.app import app
from hydrasurgeon.run import Run, RunKeywords
from hydrasurgeon.stages import bench, evaluate, finetune, fuse, prune, score, verify

PAIRS = [
    (evaluate.EvaluateArguments, evaluate.EvaluateKeywords),
    (finetune.FinetuneArguments, finetune.FinetuneKeywords),
    (bench.BenchArguments, bench.BenchKeywords),
    (prune.PruneArguments, prune.PruneKeywords),
    (score.ScoreArguments, score.ScoreKeywords),
    (verify.VerifyArguments, verify.VerifyKeywords),
    (fuse.FuseArguments, fuse.FuseKeywords),
    (Run, RunKeywords),
]


@pytest.mark.parametrize(("arguments", "keywords"), PAIRS, ids=lambda pair: pair.__name__)
def test_keywords_are_the_record_s(arguments: Any, keywords: Any) -> None:
    """mypy proves that what may be given is understood; that all which is understood may be given is proven here."""
    assert get_type_hints(keywords) == get_type_hints(arguments)


def test_help_names_every_keyword_and_its_default() -> None:
    signature = inspect.signature(hs.prune)
    assert list(signature.parameters)[:3] == ["checkpoint", "method", "sample"]
    assert signature.parameters["dtype"].default == "float32"
    assert signature.parameters["seed"].default == 0
    assert inspect.signature(hs.finetune).parameters["data"].default is inspect.Parameter.empty
    assert inspect.signature(hs.verify).parameters["dtype"].default == "float64"


def test_a_misspelt_keyword_is_no_option() -> None:
    with pytest.raises(TypeError, match="sed"):
        hs.prune("vit", method="random", keep=2, sed=1)  # type: ignore[call-arg]


def test_every_command_that_runs_models_takes_the_same_options() -> None:
    """What `--limit`, `--seed`, `--device` and so on are is declared in one place."""
    options: dict[str, set[str]] = {}
    for command in app.registered_commands:
        assert command.callback is not None
        for name, parameter in inspect.signature(command.callback, eval_str=True).parameters.items():
            if name in ("limit", "seed", "device", "skip_bad", "force", "private", "push_to_hub"):
                options.setdefault(name, set()).add(repr((parameter.annotation, parameter.default)))
    assert {name: len(declarations) for name, declarations in options.items()} == dict.fromkeys(options, 1)
    assert len(options) == 7


def both(
    size: Annotated[int, typer.Option("--size")] = 1, name: Annotated[str, typer.Option("--name")] = "x"
) -> dict[str, object]:
    return {"size": size + 1, "name": name}


def test_shared_options_stand_where_their_mapping_stands() -> None:
    seen: dict[str, object] = {}

    def command(
        first: Annotated[int, typer.Option("--first")] = 0,
        *,
        pair: Annotated[dict[str, object], both],
        last: Annotated[int, typer.Option("--last")] = 0,
    ) -> None:
        """What it does."""
        seen.update(pair, first=first, last=last)

    assert list(inspect.signature(shared.expanded(command)).parameters) == ["first", "size", "name", "last"]
    small = typer.Typer()
    small.command()(shared.expanded(command))
    assert CliRunner().invoke(small, ["--size", "4", "--last", "7"]).exit_code == 0
    assert seen == {"first": 0, "size": 5, "name": "x", "last": 7}
    assert "What it does." in CliRunner().invoke(small, ["--help"]).output
