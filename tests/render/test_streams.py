"""Terminals, pipes and devices as they are: narrow, ASCII, closed, full, no longer read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Each starts several processes.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MAKE = Callable[..., Path]


def bash(line: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`hs` is the command."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        ["bash", "-c", f'hs() {{ "{sys.executable}" -m hydrasurgeon "$@"; }}\n{line}'],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path} | env,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


@pytest.fixture
def here(tiny: MAKE, tmp_path: Path) -> Path:
    tiny()
    return tmp_path


def test_ascii_loses_nothing(here: Path) -> None:
    line = "hs prune --method random --keep 2 vit -o 'm–é\u202e' && hs inspect 'm–é\u202e'"
    done = bash(line, here, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stderr.isascii()
    assert done.stderr.startswith("next: hydrasurgeon ")
    assert done.stdout.isascii()
    assert done.stdout.startswith(r"m\u2013\xe9\u202e.safetensors: 6 heads removed, 6 kept")
    assert r"\u2190 prune vit.safetensors" in done.stdout
    assert done.stdout.count(r"\u25a0") == 2 * 6
    assert (here / "m–é\u202e.safetensors").exists()
    assert bash("hs --help", here, PYTHONIOENCODING="ascii").returncode == 0


def test_a_closed_stdout_is_quiet(here: Path) -> None:
    done = bash("hs prune --method random --keep 2 vit -o m >&-; echo $? >&2", here)
    assert done.stderr.endswith("\n0\n")
    whole = bash(
        "hs prune --method random --keep 2 vit -o n; cmp m.safetensors n.safetensors", here
    )
    assert whole.returncode == 0
    done = bash("hs inspect gone <&- >&- 2>&-", here)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("line", ["hs inspect vit", "hs -h"])
def test_a_full_device_is_an_error_with_a_name(here: Path, line: str) -> None:
    done = bash(f"{line} >/dev/full", here)
    assert (done.returncode, done.stderr) == (2, "error: stdout: No space left on device\n")


@pytest.mark.parametrize("line", ["hs inspect vit --json", "hs -h"])
def test_a_reader_who_goes_early_is_no_error(here: Path, line: str) -> None:
    done = bash(f"{line} | head -c1; echo ${{PIPESTATUS[0]}} >&2", here)
    assert (len(done.stdout), done.stderr) == (1, "0\n")
