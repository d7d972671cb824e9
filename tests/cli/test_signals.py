"""A command that is told to end cleans up behind itself and says by its exit code what ended it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

MAKE = Callable[..., Path]

AT = {
    "an import": """
        import builtins
        plain = builtins.__import__
        def hooked(name, *rest, **more):
            if name == "typer":
                strike()
            return plain(name, *rest, **more)
        builtins.__import__ = hooked
    """,
    "a write": "plain = os.fsync\nos.fsync = lambda fd: (strike(), plain(fd))",
    # A library that catches what comes and raises an error of its own.
    "a library": """
        import hydrasurgeon.files.tensors as tensors
        def wrapped(*_):
            try:
                strike()
            except BaseException as error:
                raise ValueError("wrapped") from error
        tensors._combine = wrapped
    """,
    "a bug": "import hydrasurgeon.files.tensors as tensors\ntensors._combine = lambda *_: 1 / 0",
}


def struck(folder: Path, number: int, at: str, *, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    """Prune, and be sent a signal in the middle of it; whoever runs the tests may ignore it, as shells' `&` does."""
    usual = "default_int_handler" if number == signal.SIGINT else "SIG_DFL"
    code = f"""
import os, runpy, signal, sys
def strike():
    os.kill(os.getpid(), {number})
if {number}:
    signal.signal({number}, signal.{"SIG_IGN" if ignored else usual})
{textwrap.dedent(AT[at])}
sys.argv = "hydrasurgeon prune --method random --keep 2 vit -o m".split()
runpy.run_module("hydrasurgeon", run_name="__main__", alter_sys=True)
"""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "at"),
    [("SIGINT", "an import"), ("SIGTERM", "a write"), pytest.param("SIGHUP", "a library", marks=pytest.mark.slow)],
)
def test_a_signal_leaves_nothing_behind(tiny: MAKE, tmp_path: Path, name: str, at: str) -> None:
    tiny()
    before = sorted(p.name for p in tmp_path.iterdir())
    number = signal.Signals[name].value
    done = struck(tmp_path, number, at)
    assert done.returncode == 128 + number
    assert done.stderr.strip() == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_an_ignored_signal_is_ignored(tiny: MAKE, tmp_path: Path) -> None:
    """As under nohup."""
    tiny()
    done = struck(tmp_path, signal.SIGHUP, "a write", ignored=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "m.safetensors").exists()


def test_a_bug_keeps_its_traceback(tiny: MAKE, tmp_path: Path) -> None:
    tiny()
    done = struck(tmp_path, 0, "a bug")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert not list(tmp_path.glob(".*"))
