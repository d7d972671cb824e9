"""Connections of a server: a bounded number, and none that brings no request."""

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
FILES = 64
"""Descriptors that are left for everything else."""
SHARED_LIFE = 60.0
"""Seconds after which a connection's next answer is its last, where several processes take them: its
client then connects again, maybe to one that was replaced and has none.
"""


def most_connections() -> int:
    """Connections at once: where descriptors run out, a server can neither accept nor log."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST, max(8, descriptors - FILES - BACKLOG))


class Patient(H11Protocol):
    """Closes a connection that has not brought a request in time.

    Where there are too many, one that waits for its client makes room for the newest.
    """

    patience = 30.0
    """Seconds for the head of a request to come."""
    most = MOST
    life = math.inf
    """Seconds after which the next answer of a connection is its last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            waiting = (c for c in self.connections if isinstance(c, Patient) and c.waits)
            next((c for c in waiting if c is not self), self).transport.abort()
        self._timer = self.loop.call_later(self.patience, self._look, None)
        self._until = self.loop.time() + self.life

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and self.loop.time() > self._until:
            closing = (b"connection", b"close")
            self.cycle.default_headers = [*self.server_state.default_headers, closing]

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def waits(self) -> bool:
        """Whether the client has not sent a whole request."""
        done = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        return done and not self.transport.is_closing()

    def _look(self, before: Any) -> None:
        """Close it if since the last look no request came and none is being answered."""
        if self.cycle is before and (before is None or before.response_complete):
            self.transport.close()
        else:
            self._timer = self.loop.call_later(self.patience, self._look, self.cycle)


class Announcing(uvicorn.Server):
    """Says when it answers."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


def server_of(app: Any, *, announce: Callable[[], None] | None = None) -> uvicorn.Server:
    """What answers over HTTP by `app`; where others answer at the same socket, it announces when it
    does too.
    """
    Patient.most = most_connections()
    Patient.life = math.inf if announce is None else SHARED_LIFE
    # One that took all who wait would leave the others idle.
    backlog = BACKLOG if announce is None else 1
    config = uvicorn.Config(
        app, http=Patient, backlog=backlog, log_level="warning", access_log=False
    )
    return uvicorn.Server(config) if announce is None else Announcing(config, announce)
