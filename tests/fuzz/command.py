"""The command on hostile inputs: in this process, or as a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from fuzz.guard import Outcome

PRINTABLE = {"\n", "\t"}


def run_here(arguments: list[str]) -> Outcome:
    """What `hydrasurgeon …` does and prints, as on a UTF-8 pipe."""
    from hydrasurgeon.cli.app import run

    out, err = _pipe(), _pipe("backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    return judged(code, _said(out), _said(err), json_out="--json" in arguments)


def run_apart(arguments: list[str], folder: Path, *, seconds: float) -> Outcome:
    """The installed command in a process of its own."""
    started = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hydrasurgeon", *arguments],
            cwd=folder,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(-1, f"ran for more than {seconds:g} seconds")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if peak > before and peak > 2 << 20:
        return Outcome(-1, f"took {peak >> 10} MB")
    if done.returncode < 0:
        return Outcome(-1, f"died of signal {-done.returncode} after {time.monotonic() - started:.1f} s")
    out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    return judged(done.returncode, out, err, json_out="--json" in arguments)


def judged(code: int, out: str, err: str, *, json_out: bool) -> Outcome:
    """Whether what was printed is fit for a terminal, and for who asked for JSON."""
    if "Traceback (most recent call last)" in err:
        return Outcome(code, f"a traceback: {err.strip().splitlines()[-1][:300]}")
    strange = next((c for c in out + err if not c.isprintable() and c not in PRINTABLE), None)
    if strange is not None:
        return Outcome(code, f"printed {strange!r}")
    if code and "error:" not in err and "Error" not in err:
        return Outcome(code, "failed without a word")
    if json_out and code == 0:
        try:
            json.loads(out, parse_constant=_refuse)
        except ValueError as error:
            return Outcome(code, f"--json printed what is no JSON ({error})")
    return Outcome(code)


def _refuse(text: str) -> None:
    raise ValueError(text)


def _pipe(errors: str = "strict") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)


def _said(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8", "replace")
