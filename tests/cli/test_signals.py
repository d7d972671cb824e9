"""A command that is told to end cleans up behind itself and says by its exit code what ended it."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_task import Task

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
    "a state": """
        import hydrasurgeon.tuning.training_state as state
        plain = state.TrainingState.write
        def written(*rest):
            plain(*rest)
            strike()
        state.TrainingState.write = written
    """,
    "a search": """
        import hydrasurgeon.criteria.circuits.search as search
        plain = search.SearchState.write
        def written(*rest):
            plain(*rest)
            strike()
        search.SearchState.write = written
    """,
    "an answer": """
        import hydrasurgeon.runtime.classifier as classifier
        plain = classifier.Classifier.ask
        classifier.Classifier.ask = lambda *a, **k: (plain(*a, **k), strike())
    """,
    # As torch's C++ does: before the probe of a build is fitted.
    "an export": """
        from hydrasurgeon.building.work import Workshop
        plain = Workshop.perform
        def perform(self, command):
            if command.stage == "finetune":
                try:
                    strike()
                except BaseException as error:
                    raise RuntimeError("Python error details") from error
            plain(self, command)
        Workshop.perform = perform
    """,
    "the sixth answer": """
        import hydrasurgeon.runtime.classifier as classifier
        import hydrasurgeon.stages.predict as predict
        predict.AHEAD, predict.PIECE, predict.AT_ONCE = 2, 1, 1
        plain, answers = classifier.Classifier.ask, []
        def asked(*rest, **more):
            answers.append(plain(*rest, **more))
            if len(answers) == 6:
                strike()
            return answers[-1]
        classifier.Classifier.ask = asked
    """,
    "a bug": "import hydrasurgeon.files.tensors as tensors\ntensors._combine = lambda *_: 1 / 0",
}


PRUNE = "prune --method random --keep 2 vit -o m"


def struck(
    folder: Path, number: int, at: str, *, ignored: bool = False, line: str = PRUNE
) -> subprocess.CompletedProcess[str]:
    """Prune, or another line, and be sent a signal in the middle of it; whoever runs the tests may ignore it, as shells' `&` does."""
    usual = "default_int_handler" if number == signal.SIGINT else "SIG_DFL"
    code = f"""
import os, runpy, signal, sys
def strike():
    os.kill(os.getpid(), {number})
if {number} and {number} != {signal.SIGKILL}:
    signal.signal({number}, signal.{"SIG_IGN" if ignored else usual})
{textwrap.dedent(AT[at])}
sys.argv = "hydrasurgeon {line}".split()
runpy.run_module("hydrasurgeon", run_name="__main__", alter_sys=True)
"""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("SIGINT", "an import"),
        ("SIGTERM", "a write"),
        pytest.param("SIGHUP", "a library", marks=pytest.mark.slow),
    ],
)
def test_a_signal_leaves_nothing_behind(tiny: MAKE, tmp_path: Path, name: str, at: str) -> None:
    tiny()
    before = sorted(p.name for p in tmp_path.iterdir())
    number = signal.Signals[name].value
    done = struck(tmp_path, number, at)
    assert done.returncode == 128 + number
    again = f"interrupted; to start again: hydrasurgeon {PRUNE}"
    assert done.stderr.strip() == ("" if at == "an import" else again)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def printed(done: subprocess.CompletedProcess[str], purpose: str) -> list[str]:
    """The words of the command that an interrupted one says last."""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"interrupted; to {purpose}: hydrasurgeon ")
    return shlex.split(last.partition(": hydrasurgeon ")[2])


def typed(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command as it was printed."""
    return subprocess.run(
        [sys.executable, "-m", "hydrasurgeon", *words], cwd=folder, capture_output=True, text=True
    )


@pytest.mark.slow
def test_the_command_that_is_printed_goes_on(
    tiny: MAKE, images: Callable[..., str], tmp_path: Path
) -> None:
    """It runs as it is, from the state that was left, to the bytes of a run that nobody struck."""
    tiny()
    images()
    line = "finetune vit --data data.npz --recipe demo --set epochs=3 --save-every 1 --quiet -o"
    state = tmp_path / "t.training.safetensors"
    done = struck(tmp_path, signal.SIGINT, "a state", line=f"{line} t")
    assert done.returncode == 128 + signal.SIGINT
    words = printed(done, "go on")
    assert words == [*line.split(), "t", "--resume"]
    assert state.exists()
    # Struck once more, before it has written a state of its own.
    done = struck(tmp_path, signal.SIGTERM, "a write", line=" ".join(words))
    assert done.returncode == 128 + signal.SIGTERM
    assert printed(done, "go on") == words
    repeated = typed(tmp_path, words)
    assert repeated.returncode == 0, repeated.stderr
    assert not state.exists()
    assert typed(tmp_path, [*line.split(), "whole"]).returncode == 0
    made = [tmp_path / f"{name}.safetensors" for name in ("t", "whole")]
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.slow
def test_a_training_that_left_nothing_starts_again(
    tiny: MAKE, images: Callable[..., str], tmp_path: Path
) -> None:
    tiny()
    images()
    line = "finetune vit --data data.npz --recipe demo --set epochs=1 --quiet -o t"
    done = struck(tmp_path, signal.SIGTERM, "a write", line=line)
    assert done.returncode == 128 + signal.SIGTERM
    words = printed(done, "start again")
    assert words == line.split()
    repeated = typed(tmp_path, words)
    assert repeated.returncode == 0, repeated.stderr


@pytest.mark.slow
def test_a_search_goes_on_by_the_same_command(
    tiny: MAKE, images: Callable[..., str], tmp_path: Path
) -> None:
    tiny()
    images()
    line = "score vit --method circuit --objective acc --data data.npz --remove 3 --quiet"
    done = struck(tmp_path, signal.SIGINT, "a search", line=line)
    assert done.returncode == 128 + signal.SIGINT
    words = printed(done, "go on")
    assert words == line.split()
    assert list(tmp_path.glob("*.search.json"))
    repeated = typed(tmp_path, words)
    assert repeated.returncode == 0, repeated.stderr
    assert not list(tmp_path.glob("*.search.json"))


@pytest.mark.slow
def test_an_interrupted_prediction_leaves_nothing(
    tiny: MAKE, images: Callable[..., str], tmp_path: Path
) -> None:
    tiny()
    images()
    before = sorted(p.name for p in tmp_path.iterdir())
    line = "predict vit --data data.npz --batch-size 4 -o a.csv"
    done = struck(tmp_path, signal.SIGTERM, "an answer", line=line)
    assert done.returncode == 128 + signal.SIGTERM
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"interrupted; to start again: hydrasurgeon {line}"
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_build_leaves_the_best_so_far(tmp_path: Path, name: str) -> None:
    task, number = Task(tmp_path), signal.Signals[name].value
    line = f"build vit --data {task.data} --val {task.val} -o best"
    done = struck(tmp_path, number, "an export", line=line)
    assert done.returncode == 128 + number
    assert done.stdout.strip().splitlines()[0] == "best.safetensors: written"
    assert "interrupted: the best so far is written" in " ".join(done.stderr.split())
    assert done.stderr.strip().splitlines()[-1] == f"interrupted; to go on: hydrasurgeon {line}"
    again = [sys.executable, "-m", "hydrasurgeon", *line.split(), "--json", "-q"]
    repeated = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True)
    assert repeated.returncode == 0, repeated.stderr
    assert json.loads(repeated.stdout)["interrupted"] is False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_prediction_goes_on_by_the_same_command(
    tiny: MAKE, images: Callable[..., str], tmp_path: Path, name: str
) -> None:
    """To the bytes of a run that nobody struck, and nothing is left beside them."""
    tiny()
    images()
    number = signal.Signals[name].value
    line = "predict vit --data data.npz --batch-size 4 -o"
    done = struck(tmp_path, number, "the sixth answer", line=f"{line} a.csv")
    assert done.returncode == (-number if name == "SIGKILL" else 128 + number)
    assert not (tmp_path / "a.csv").exists()
    assert len([*tmp_path.glob(".a.csv.unfinished/*.jsonl")]) == 2
    if name != "SIGKILL":
        assert printed(done, "go on") == [*line.split(), "a.csv"]
    repeated = struck(tmp_path, 0, "the sixth answer", line=f"{line} a.csv")
    assert repeated.returncode == 0, repeated.stderr
    assert "16 rows were answered before" in repeated.stderr
    assert struck(tmp_path, 0, "the sixth answer", line=f"{line} whole.csv").returncode == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not [*tmp_path.glob(".*.unfinished")]


def test_an_ignored_signal_is_ignored(tiny: MAKE, tmp_path: Path) -> None:
    """As under nohup."""
    tiny()
    done = struck(tmp_path, signal.SIGHUP, "a write", ignored=True)
    assert done.returncode == 0
    assert done.stderr.startswith("next: hydrasurgeon ")
    assert (tmp_path / "m.safetensors").exists()


def test_a_bug_keeps_its_traceback(tiny: MAKE, tmp_path: Path) -> None:
    tiny()
    done = struck(tmp_path, 0, "a bug")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert not list(tmp_path.glob(".*"))
