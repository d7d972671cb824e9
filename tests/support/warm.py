"""Commands that start warm: forks of one process that has imported torch, timm and transformers.

A guide's command spends half of its time on imports. `warm_path` is a PATH whose `hydrasurgeon` asks the process of
this test run for a fork, and `run_module` runs a module in one. Variables that libraries read while they are imported
are those of the test run. Where Linux's sockets are missing, both start afresh.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path

LIBRARIES = ("torch", "timm", "transformers", "matplotlib.figure", "scipy.optimize")
LONGEST = 1 << 20
"""Bytes of a request: the words of a command and its environment."""
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
numbers = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({place!r})
request = dict(words=[{module!r}, *sys.argv[1:]], folder=os.getcwd(), environment=dict(os.environ))
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
process = int(server.recv(64))
for number in numbers:
    signal.signal(number, lambda number, _: os.kill(process, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
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
        [sys.executable, "-P", __file__, str(place / "socket")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
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
        while 0 not in select.select([0, listener], [], [])[0]:  # until the tests are gone
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
        else:
            os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, descriptors, _, _ = socket.recv_fds(connection, LONGEST, 3)
    process = os.fork()
    if process:
        wait(process, connection)
    connection.close()
    begin(json.loads(request), descriptors)


def wait(process: int, connection: socket.socket) -> None:
    """Tell a client the number and the exit code of its command, which ends with the client."""
    try:
        connection.send(str(process).encode())
        ended = os.pidfd_open(process)
        if ended not in select.select([ended, connection], [], [])[0]:
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


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
        if not isinstance(code, int | None):
            sys.stderr.write(f"{code}\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(sys.argv[1])
    end()
