"""A server: the routes of every protocol, those that say how it is, tokens, and OpenAPI."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as Refused

from hydrasurgeon.serving.inputs import JSON
from hydrasurgeon.serving.protocols import PROTOCOLS, Protocol
from hydrasurgeon.serving.service import Service

UNPROTECTED = ("/health", "/ready", *(path for p in PROTOCOLS for path in p.unprotected))
"""Paths that need no token."""


def app_of(services: Sequence[Service], token: str | None = None) -> FastAPI:
    """Build the app. The first service answers wherever a protocol names no model."""
    service = services[0]

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        work = [asyncio.create_task(one.batcher.work()) for one in services]
        yield  # until the last request that was taken is answered
        for task in work:
            task.cancel()

    async def admitted(request: Request) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        keys = [request.headers.get("x-api-key", ""), bearer if scheme.lower() == "bearer" else ""]
        expected = (token or "").encode()
        same = [hmac.compare_digest(sent.encode("latin-1"), expected) for sent in keys]
        right = token is None or any(same)
        # `request.url` is made from the Host header, which the client chooses.
        if not right and request.scope["path"] not in UNPROTECTED:
            raise HTTPException(401, "the bearer token is wrong", {"WWW-Authenticate": "Bearer"})

    app = FastAPI(
        title="hydrasurgeon",
        description=f"Answers of {service.model.name}, as `predict` writes them.",
        lifespan=running,
        docs_url=None,  # it would load its scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # it would be made anew for each request
        dependencies=[Depends(admitted)],
    )
    app.get("/health")(service.health)
    app.get("/ready")(service.ready)
    app.get("/metrics")(service.metrics)
    app.exception_handler(Refused)(_refusal)
    for protocol in PROTOCOLS:
        protocol.add(app, services)
    _openapi(app)
    return app


async def _refusal(request: Request, error: Refused) -> Response:
    """Return an error as one message, in the format of the path's protocol."""
    path = request.scope["path"]
    word = next((p.refusal for p in PROTOCOLS if path.startswith(p.path)), Protocol.refusal)
    status, body = word(error.status_code, error.detail)
    return JSONResponse(body, status, error.headers)


def _openapi(app: FastAPI) -> None:
    """Add the route that describes all others, whose reply is made once. It needs no token."""
    content = JSONResponse(app.openapi()).body

    async def described(_: Request) -> Response:
        return Response(content, media_type=JSON)

    app.add_route("/openapi.json", described, include_in_schema=False)
