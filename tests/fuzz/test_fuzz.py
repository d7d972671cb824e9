"""Hostile inputs of every kind end in success or in a message with its exit code, and touch nothing else.

The few that run here are drawn by hypothesis, which makes a failing one smaller; `make fuzz` runs them by the million.
"""

from __future__ import annotations

import os
import resource
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.bases import Bases
from fuzz.guard import Attempt, Link, Sandbox, memory_limit
from fuzz.kinds import KINDS
from hydrasurgeon.errors import DataError

EXAMPLES = 100


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("bases"), families=("timm ViT", "BERT"))


@pytest.fixture
def sandbox(tmp_path: Path, bases: Bases, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """With a limit on memory: what swells must not take the machine with it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = resource.getrlimit(resource.RLIMIT_AS)
    if (limit := memory_limit()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield Sandbox(tmp_path / "box", readable=(bases.folder,))
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", list(KINDS))
def test_hostile_inputs_end_in_success_or_a_message(
    name: str, sandbox: Sandbox, bases: Bases
) -> None:
    kind = KINDS[name]
    kind.make(Random(0), bases)  # what it starts from is made before anything is watched

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def attempt(random: Random) -> None:
        outcome = sandbox.run(kind.make(random, bases))
        assert outcome.problem is None, f"{outcome.where}: {outcome.problem}"
        assert outcome.code in kind.EXITS

    attempt()


@pytest.mark.parametrize("name", list(KINDS))
def test_hostile_inputs_through_the_command(name: str, sandbox: Sandbox, bases: Bases) -> None:
    for seed in range(2):
        outcome = sandbox.run_command(KINDS[name].make(Random(seed), bases))
        assert outcome.problem is None, f"seed {seed}: {outcome.where}: {outcome.problem}"
        assert outcome.code in {0, 2, 3, 4, 5}


def _bad(what: str, folder: Path, out: Path) -> None:
    """One thing that no input may bring about."""
    outside = folder.parent / "outside.json"
    if what == "an exception":
        raise KeyError("x")
    if what == "the interpreter's end":
        raise SystemExit(0)
    if what == "a file outside":
        (folder.parent / "made.txt").write_text("x")
    if what == "a secret read":
        outside.read_text()
    if what == "a link followed":
        (folder / "link").read_text()
    if what == "a name above":
        (folder / ".." / "outside.json").read_text()
    if what == "a warning":
        warnings.warn("look out", UserWarning, stacklevel=1)
    if what == "its input changed":
        (folder / "x").write_text("y")
    if what == "a temporary file left":
        import tempfile

        tempfile.mkstemp()
    if what == "a process":
        os.system("true")
    if what == "a pickle":
        import pickle

        pickle.loads(pickle.dumps(Path))
    if what == "a socket":
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    if what == "a long message":
        raise DataError("x", hint="y" * 5000)


BAD = [
    "an exception",
    "the interpreter's end",
    "a file outside",
    "a secret read",
    "a link followed",
    "a name above",
    "a warning",
    "its input changed",
    "a temporary file left",
    "a process",
    "a pickle",
    "a socket",
    "a long message",
]


@pytest.mark.parametrize("what", BAD)
def test_what_no_input_may_do_is_noticed(sandbox: Sandbox, what: str) -> None:
    attempt = Attempt(
        {"x": b"x", "link": Link("../outside.json")},
        lambda folder, out: _bad(what, folder, out),
        (),
    )
    assert sandbox.run(attempt).problem is not None


def test_what_an_input_may_do_is_not(sandbox: Sandbox) -> None:
    def fine(folder: Path, out: Path) -> None:
        (out / "y").write_bytes((folder / "x").read_bytes())
        Path(sys.executable).read_bytes()

    assert sandbox.run(Attempt({"x": b"x"}, fine, ())).problem is None

    def refused(folder: Path, out: Path) -> None:
        raise DataError("no")

    outcome = sandbox.run(Attempt({}, refused, ()))
    assert (outcome.code, outcome.problem) == (5, None)
