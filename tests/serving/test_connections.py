"""Connections over loopback: those that bring nothing are closed, and a newcomer always gets in."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hydrasurgeon.stages.serve import PACKAGES

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"the extra serve is missing: {name}"
    )
    for name in PACKAGES
]
HALF = b"POST /v1/pre"
WHOLE = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


async def healthy(scope: Any, receive: Any, send: Any) -> None:
    """The smallest server there is; `/much` is more than a client's and our buffers hold, and
    `/never` has no answer.
    """
    if scope["type"] == "http":
        if scope["path"] == "/never":
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = b"o" * (16 << 20) if scope["path"] == "/much" else b"ok"
        await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(
    patience: float,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
    announce: Callable[[], None] | None = None,
) -> Iterator[tuple[Any, int]]:
    """A server in a thread, and its port."""
    from hydrasurgeon.options.deciding import ServeOptions
    from hydrasurgeon.serving import connections
    from hydrasurgeon.stages.serve import _bound

    monkeypatch.setattr(connections.Patient, "patience", patience)
    monkeypatch.setattr(connections, "most_connections", lambda: most)
    with _bound(ServeOptions(checkpoints=("m",), port=0)) as listener:
        server = connections.server_of(healthy, announce=announce)
        server.config.lifespan = "off"
        server.config.timeout_keep_alive = 600
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield server, listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive(), "the server does not end"


def connected(port: int, sent: bytes) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:  # until the thread listens
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            connection.sendall(sent)
            return connection


def ended(connection: socket.socket) -> bytes:
    """What comes until the other side ends."""
    with connection, contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: connection.recv(4096), b""))
    return b""


def test_a_connection_that_brings_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(0.2, 100, monkeypatch) as (_, port):
        silent = [connected(port, sent) for sent in (b"", HALF, WHOLE + HALF)]
        said = [ended(connection) for connection in silent]
    assert said[:2] == [b"", b""]
    assert said[2].startswith(b"HTTP/1.1 200")


def test_a_newcomer_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are as many silent connections as there may be, one of them goes."""
    with serving(30, 8, monkeypatch) as (server, port):
        silent = [connected(port, HALF) for _ in range(30)]
        newcomer = connected(port, WHOLE)
        assert newcomer.recv(4096).startswith(b"HTTP/1.1 200")
        assert len(server.server_state.connections) <= 8
        for connection in (newcomer, *silent):
            connection.close()


def test_answers_are_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nagle's algorithm would wait for the client's delayed acknowledgement."""
    with serving(30, 8, monkeypatch) as (server, port):
        connection = connected(port, WHOLE)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        (kept,) = server.server_state.connections
        accepted = kept.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()


MUCH = WHOLE.replace(b"/health", b"/much")
NEVER = WHOLE.replace(b"/health", b"/never")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("request_", [MUCH, MUCH * 3])
def test_who_does_not_read_is_cut_off(request_: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(0.2, 100, monkeypatch) as (server, port):
        silent = [connected(port, request_) for _ in range(3)]
        wait_for(lambda: server.server_state.total_requests >= 3)
        wait_for(lambda: not server.server_state.connections)
        for connection in silent:
            connection.close()


def test_who_does_not_read_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before one whose client only asks for nothing."""
    with serving(30, 8, monkeypatch) as (server, port):
        kept = connected(port, WHOLE)
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        silent = []
        for count in range(1, 13):
            silent.append(connected(port, MUCH))
            wait_for(lambda count=count: server.server_state.total_requests >= 1 + count)
        newcomer = connected(port, WHOLE)
        assert newcomer.recv(4096).startswith(b"HTTP/1.1 200")
        kept.sendall(WHOLE)
        said = b""
        while b"HTTP/1.1 200" not in said:
            said += kept.recv(4096)
            assert said
        for connection in (kept, newcomer, *silent):
            connection.close()


@pytest.mark.parametrize(("request_", "bound"), [(MUCH * 2, "HURRY"), (NEVER, "GRACE")])
def test_nobody_keeps_a_server_from_ending(
    request_: bytes, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hydrasurgeon.serving import connections

    monkeypatch.setattr(connections, bound, 1)
    with serving(600, 8, monkeypatch) as (server, port):
        silent = [connected(port, request_) for _ in range(3)]
        wait_for(lambda: len(server.server_state.connections) == 3)
        wait_for(lambda: all(each.cycle is not None for each in server.server_state.connections))
    for connection in silent:
        connection.close()


def test_descriptors_bound_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    from hydrasurgeon.serving.connections import BACKLOG, FILES, MOST, most_connections

    for limit, most in ((160, 160 - BACKLOG - FILES), (1 << 20, MOST), (20, 8)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert most_connections() == most


@pytest.mark.parametrize(("life", "closes"), [(0.0, True), (60.0, False)])
def test_a_connection_to_one_of_several_does_not_stay_for_ever(
    life: float, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that connects again may get to one that has fewer."""
    from hydrasurgeon.serving import connections

    monkeypatch.setattr(connections, "SHARED_LIFE", life)
    begun = threading.Event()
    with serving(30, 8, monkeypatch, begun.set) as (_, port):
        assert begun.wait(60)
        with connected(port, WHOLE) as connection:
            said = connection.recv(4096)
            assert said.startswith(b"HTTP/1.1 200")
            assert (b"connection: close" in said) == closes
            if closes:
                assert b"ok" in said + ended(connection)
