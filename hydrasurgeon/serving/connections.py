"""Connections of a server: a bounded number, and none whose client does nothing."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 64
"""Connections that the system accepts before the server has looked at them."""
MOST = 1000
"""Connections at once, where the system has descriptors for so many."""
HURRY = 5.0
"""Seconds in which a client must go on once the server is to stop."""
GRACE = 60
"""Seconds after which a server that is to stop does so, whatever is not answered yet."""
FILES = 64
"""Descriptors that are left for everything else."""
SHARED_LIFE = 60.0
"""Seconds after which a connection's next answer is its last, where several processes take them: its
client then connects again, maybe to one that was replaced and has none.
"""


def most_connections() -> int:
    """Return the maximum number of connections. Without free descriptors, a server can neither
    accept nor log.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST, max(8, descriptors - FILES - BACKLOG))


class Patient(H11Protocol):
    """Cuts off a client that should do something and does not: send a request, or read its answer.

    Where there are too many connections, such a one makes room for the newest.
    """

    patience = 30.0
    """Seconds between two looks; who is found doing the same nothing twice is cut off."""
    most = MOST
    life = math.inf
    """Seconds after which the next answer of a connection is its last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._started = self.loop.time()
        self._until = self._started + self.life
        self._watch()
        if len(self.connections) > self.most:
            least = min((c for c in self.connections if isinstance(c, Patient)), key=Patient.worth)
            least.transport.abort()
            self.connections.discard(least)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is before:
            return
        self._started = self.loop.time()
        if self._started > self._until:
            closing = (b"connection", b"close")
            self.cycle.default_headers = [*self.server_state.default_headers, closing]

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        self.patience = min(self.patience, HURRY)
        self._timer.cancel()
        self._watch()

    @property
    def waits_for(self) -> str | None:
        """Next act that the client owes: `read`, `ask` or `send` the rest; None when it is our
        turn.
        """
        if self.transport.get_write_buffer_size():
            return "read"
        if self.cycle is None or self.cycle.response_complete:
            return "ask"
        return "send" if self.cycle.more_body else None

    def worth(self) -> tuple[bool, bool, float]:
        """Return a sort key: connections that should stay when there are too many have larger
        values.
        """
        waits_for = self.waits_for
        return waits_for is None, waits_for != "read", self._started

    def _watch(self) -> None:
        self._timer = self.loop.call_later(self.patience, self._look, self.cycle, self.waits_for)

    def _look(self, cycle: Any, waits_for: str | None) -> None:
        if self.cycle is cycle and self.waits_for == waits_for is not None:
            self.transport.abort()
        else:
            self._watch()


class Announcing(uvicorn.Server):
    """Says when it answers."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


def server_of(app: Any, *, announce: Callable[[], None] | None = None) -> uvicorn.Server:
    """Return a server of the app. Where several processes share a socket, it announces that it is
    ready.
    """
    Patient.most = most_connections()
    Patient.life = math.inf if announce is None else SHARED_LIFE
    # One that took all who wait would leave the others idle.
    backlog = BACKLOG if announce is None else 1
    config = uvicorn.Config(
        app,
        http=Patient,
        backlog=backlog,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config) if announce is None else Announcing(config, announce)
