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
from hydrasurgeon.cli.app import application, run
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
    body, _, examples = page(name, width=width).partition("Examples:\n")
    assert max(map(len, body.splitlines())) <= width
    assert examples.splitlines() == [
        f"  hydrasurgeon {name} {line}".rstrip() for line in NAMED[name].examples
    ]
    assert len(NAMED[name].examples) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("labels_need_not_fit")
def test_the_examples_run(
    tmp_path: Path, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, in a folder with a random backbone `vit` and pictures."""
    monkeypatch.chdir(tmp_path)
    from random_models import fresh

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
            # Whether a budget of time can be met is the machine's to say.
            if name not in ("demo", "serve", "monitor") and "time=" not in line:
                few = ["--limit", "48"] if name == "build" else []
                assert run([name, *shlex.split(line), *few]) == 0, f"{name} {line}"
