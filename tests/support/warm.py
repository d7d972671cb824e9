"""Commands that start warm: forks of one process that has imported torch, timm and transformers.

A guide's command spends half of its time on imports. `warm_path` is a PATH whose `hydrasurgeon` asks the process of
this test run for a fork, and `run_module` runs a module in one. Where Linux's sockets are missing, both start afresh.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

LIBRARIES = ("torch", "timm", "transformers", "matplotlib.figure", "scipy.optimize", "pandas")
LONGEST = 1 << 20
"""Bytes of a request: the words of a command and its environment."""
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({place!r})
request = dict(words=[{module!r}, *sys.argv[1:]], folder=os.getcwd(), environment=dict(os.environ))
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
process = int(server.recv(64))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda number, _: os.kill(process, number))
code = int(server.recv(64))
sys.exit(code if code >= 0 else 128 - code)
"""


@functools.cache
def folder() -> Path | None:
    """Start the process that has imported the libraries; return the folder of commands that ask it."""
    if sys.platform != "linux":
        return None
    place = Path(tempfile.mkdtemp(prefix="warm"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for name in ("hydrasurgeon", "pytest"):
        command = place / name
        command.write_text(
            CLIENT.format(python=sys.executable, place=str(place / "socket"), module=name)
        )
        command.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, "-P", __file__, str(place / "socket")], stdout=subprocess.PIPE
    )
    atexit.register(server.terminate)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return place


def warm_path() -> str:
    """Return a PATH with a `hydrasurgeon` that starts warm."""
    place = folder() or Path(sys.executable).parent
    return f"{place}:{Path(sys.executable).parent}:{os.environ['PATH']}"


def run_module(
    module: str, *words: str, cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a module, `pytest` or `hydrasurgeon`, as `python -m` does."""
    place = folder()
    command = [sys.executable, "-m", module] if place is None else [str(place / module)]
    return subprocess.run(
        [*command, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def serve(place: str) -> None:
    """Import the libraries, and fork for each request; return in a fork that is to run a module."""
    for name in LIBRARIES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(64)
        os.write(1, b"ready\n")
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, descriptors, _, _ = socket.recv_fds(connection, LONGEST, 3)
    process = os.fork()
    if process:
        connection.send(str(process).encode())
        _, status = os.waitpid(process, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    connection.close()
    begin(json.loads(request), descriptors)


def begin(request: Mapping[str, object], descriptors: list[int]) -> None:
    """Take over the words, folder, environment and streams of a request."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.argv = list(request["words"])  # type: ignore[call-overload]
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))


def end() -> None:
    """Run the module, and exit without the teardown of the libraries, which takes seconds."""
    code: object = 0
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as exited:
        code = exited.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(sys.argv[1])
    end()
