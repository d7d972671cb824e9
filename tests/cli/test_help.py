"""What `--help` prints: every command in a group, every option with what holds without it, examples that run."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hydrasurgeon.cli import help as pages
from hydrasurgeon.cli.app import application
from hydrasurgeon.commands import COMMANDS, GROUPS, NAMED

WITH_OPTIONS = [command for command in COMMANDS if command.record]
NAMES = [command.name for command in application(None).registered_commands if command.name]


def page(*words: str, width: int = 120) -> str:
    return (
        CliRunner()
        .invoke(application(None), [*words, "--help"], env={"COLUMNS": str(width)})
        .output
    )


def test_every_command_is_in_a_group_by_a_whole_sentence() -> None:
    lines = page(width=300).splitlines()
    assert max(map(len, lines)) <= pages.WIDEST
    text = " ".join(" ".join(lines).split())
    for command in WITH_OPTIONS:
        sentence = pages.sentence(command.options.__doc__ or "")
        assert sentence.endswith((".", ")."))
        assert f"{command.name} {sentence}" in text
    order = [text.index(f"{title}:") for title in GROUPS]
    assert order == sorted(order)
    assert {*NAMES} == {*NAMED}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [80, 120])
def test_a_page_fits_the_terminal(name: str, width: int) -> None:
    body, _, examples = page(name, width=width).partition("\nExamples")
    examples = examples.partition(":\n")[2]
    assert max(map(len, body.splitlines())) <= width
    assert examples.splitlines() == [
        f"  hydrasurgeon {name} {line}".rstrip() for line in NAMED[name].examples
    ]
    assert len(NAMED[name].examples) == 3
    assert len(body.splitlines()) <= 110
