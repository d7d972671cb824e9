"""The command on hostile inputs, in this process."""

from __future__ import annotations

import contextlib
import io
import json

from fuzz.guard import Outcome

PRINTABLE = {"\n", "\t"}


def run_here(arguments: list[str]) -> Outcome:
    """What `hydrasurgeon …` does and prints, as on a UTF-8 pipe."""
    from hydrasurgeon.cli.app import run

    out, err = _pipe(), _pipe("backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    return judged(code, _said(out), _said(err), json_out="--json" in arguments)


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
