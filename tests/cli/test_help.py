"""What `--help` prints: every command in a group, every option with what holds without it, examples that run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from hydrasurgeon.cli import help as pages
from hydrasurgeon.cli.app import app, run
from hydrasurgeon.commands import COMMANDS, GROUPS, NAMED, Command

WITH_OPTIONS = [command for command in COMMANDS if command.record]
NAMES = [command.name for command in app.registered_commands if command.name]


def page(*words: str, width: int = 120) -> str:
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(width)}).output


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
    body, _, examples = page(name, width=width).partition("Examples:\n")
    assert max(map(len, body.splitlines())) <= width
    assert examples.splitlines() == [
        f"  hydrasurgeon {name} {line}".rstrip() for line in NAMED[name].examples
    ]
    assert len(NAMED[name].examples) == 2


@pytest.mark.parametrize("command", WITH_OPTIONS, ids=lambda command: command.name)
def test_what_is_required_or_in_the_examples_comes_first(command: Command) -> None:
    words = {word for line in command.examples for word in line.split()}
    for title, lines in pages.sections(command).items():
        if title in ("How it runs", "What is written", pages.ARGUMENTS):
            continue
        ranks = [
            0 if "[required]" in meant else 1 if words & {*typed.replace(",", "").split()} else 2
            for typed, meant in lines
        ]
        assert ranks == sorted(ranks), title


def test_defaults_are_said() -> None:
    text = " ".join(page("finetune").split())
    assert "--alpha X How much teachers count; labels count the rest. [default: 0.9]" in text
    assert "--limit N Use a random N of the samples. [default: all]" in text
    assert text.index("What is read:") < text.index("What is chosen:") < text.index("How it runs:")
    assert text.index("How it runs:") < text.index("What is written:") < text.index("Examples:")
    assert "Usage: hydrasurgeon finetune CKPT -o OUT [OPTIONS]" in text


def test_version_and_help_are_commands_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    name, number = capsys.readouterr().out.split()
    assert name == "hydrasurgeon"
    assert number[0].isdigit()
    assert run(["help", "prune"]) == 0
    assert capsys.readouterr().out.split() == page("prune").split()
    assert run(["help"]) == 0
    assert "Make a hydra:" in capsys.readouterr().out
    assert run(["help", "prnue"]) == 2
    assert "prune" in capsys.readouterr().err


@pytest.mark.slow
def test_the_examples_run(
    tmp_path: Path, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, in a folder with a backbone `vit` and pictures."""
    monkeypatch.chdir(tmp_path)
    from hydrasurgeon.tuning.start import fresh

    arch = "timm:vit_tiny_patch16_224,img_size=28,patch_size=14,in_chans=1,embed_dim=24,num_heads=12,depth=6,num_classes=3"
    fresh(f"init:{arch}", tmp_path / "vit.safetensors", seed=0)
    for seed, name in enumerate(("train", "val", "test", "others")):
        pixels = np.random.default_rng(seed).integers(0, 256, (60, 28, 28), np.uint8)
        for i, each in enumerate(pixels):
            folder = tmp_path / name / f"class{i % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(each).save(folder / f"{i}.png")
    for name, command in NAMED.items():
        for line in command.examples:
            if name not in ("demo", "serve", "monitor"):
                few = ["--limit", "48"] if name == "build" else []
                assert run([name, *shlex.split(line), *few]) == 0, f"{name} {line}"
