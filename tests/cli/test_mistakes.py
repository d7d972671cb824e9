"""Each mistake that docs/reference/errors.md lists ends with one message, its exit code and no file."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from exporting import ONNX, lacking
from mistakes import CODES, MISTAKES, Mistake, run_mistake, scene

from hydrasurgeon.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    scene(folder)
    return folder


def _skipped(mistake: Mistake) -> None:
    """What an extra or an older library is needed for."""
    if mistake.line.startswith("export ") and not mistake.without and lacking(*ONNX):
        pytest.skip("the extra onnx is missing")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.line)
def test_a_mistake_ends_as_the_page_says(mistake: Mistake, start: Path, tmp_path: Path) -> None:
    _skipped(mistake)
    shutil.copytree(start, tmp_path, dirs_exist_ok=True)
    outcome = run_mistake(mistake, tmp_path)
    assert outcome.code == mistake.code, outcome.message
    assert outcome.left == (
        ["h.heads.json", "h.safetensors"]
        if mistake.line.startswith("fuse a2 b2 -o h --check")
        else []
    )
    assert outcome.message.startswith("error: ")
    assert "Traceback" not in outcome.message


def test_the_page_has_them_all_and_no_others() -> None:
    assert all(mistake.what in PAGE for mistake in MISTAKES), "run tools/render_errors.py"
    assert PAGE.count("```text\n") == len(MISTAKES)
    assert set(CODES) == {mistake.code for mistake in MISTAKES}
    assert Counter(m.what for m in MISTAKES).most_common(1)[0][1] == 1


def test_every_command_is_there() -> None:
    commands = {command.name for command in app.registered_commands} | {"demo"}
    used = {mistake.line.split()[0] for mistake in MISTAKES}
    assert {name for name in commands if name} - used == {"help", "replay"}
