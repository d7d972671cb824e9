"""The routes of a server: answers, whether it lives and is ready, what it counted, and OpenAPI."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from starlette.exceptions import HTTPException as Refused
from starlette.requests import ClientDisconnect

from hydrasurgeon.serving.batcher import Batcher, Full
from hydrasurgeon.serving.counts import Counts
from hydrasurgeon.serving.inputs import FORM, JSON, SECOND, Bounded, inputs_of

PATIENCE = 30.0
"""Seconds in which a body must have come."""
TYPES = {
    "text": {"type": ["string", "integer"]},
    "number": {"type": ["number", "null"]},
    "flag": {"type": ["boolean", "null"]},
    "whole": {"type": "integer"},
    "json": {"type": ["array", "null"]},
}
"""A kind of value in an answer, as OpenAPI has it."""


@dataclass(frozen=True)
class Service:
    """What answers requests: their inputs are prepared by `transform` and wait in the batcher."""

    batcher: Batcher
    counts: Counts
    transform: Any
    most_bytes: int
    """Of a request's body."""

    @property
    def reads(self) -> str:
        """`text` or `image`."""
        return getattr(self.transform, "kind", "image")

    async def _answered(self, request: Request) -> list[dict[str, Any]]:
        body, batcher = Bounded(request, self.most_bytes), self.batcher
        try:
            with batcher.places(1):
                async with asyncio.timeout(PATIENCE):
                    sent = await inputs_of(body, self.reads, batcher.size)
                with batcher.places(len(sent) - 1):
                    self.counts.waiting.set(batcher.taken)
                    prepared = asyncio.to_thread(lambda: [(each.id, each.prepared(self.transform)) for each in sent])
                    return await batcher.rows(await prepared)
        finally:
            async with asyncio.timeout(PATIENCE):
                await body.drop_rest()

    async def predict(self, request: Request) -> dict[str, Any]:
        """An answer for each input, in order; or one message."""
        start, status = time.perf_counter(), 500
        try:
            answers = await self._answered(request)
            status = 200
            self.counts.seconds.observe(time.perf_counter() - start)
            return {"answers": answers}
        except Refused as error:
            status = error.status_code
            raise
        except Full:
            status = 429
            raise HTTPException(429, "too many inputs are waiting; come again", {"Retry-After": "1"}) from None
        except TimeoutError:
            status = 408
            raise HTTPException(408, f"the body did not come within {PATIENCE:.0f} seconds") from None
        except ClientDisconnect:
            status = 499
            return {}  # nobody reads it
        except Exception as error:
            logging.getLogger("uvicorn.error").exception("the model failed")
            raise HTTPException(500, f"the model failed: {error}") from error
        finally:
            self.counts.waiting.set(self.batcher.taken)
            self.counts.requests.labels(status).inc()

    async def health(self) -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "ok"}

    async def ready(self) -> dict[str, str]:
        """Whether it takes another request; 503 while the queue is full."""
        if self.batcher.taken >= self.batcher.size:
            raise HTTPException(503, "too many inputs are waiting")
        return {"status": "ready"}

    async def metrics(self) -> Response:
        """For Prometheus."""
        return Response(self.counts.text(), media_type="text/plain; version=0.0.4")


def app_of(service: Service, *, columns: Mapping[str, str], name: str) -> FastAPI:
    """The routes of a service whose answers have these columns, each of a kind."""

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(service.batcher.work())
        yield  # until the last request that was taken is answered
        work.cancel()

    app = FastAPI(title="hydrasurgeon", description=f"Answers of {name}, as `predict` writes them.", lifespan=running)
    app.post("/v1/predict", **_described(service.reads, columns))(service.predict)
    app.get("/health")(service.health)
    app.get("/ready")(service.ready)
    app.get("/metrics")(service.metrics)
    return app


def _described(reads: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """What OpenAPI says of requests, which we read ourselves, and of answers."""
    content = {"type": "string"} if reads == "text" else {"type": "string", "contentEncoding": "base64"}
    second = {SECOND: content} if reads == "text" else {}
    named = {
        "type": "object",
        "required": [reads],
        "properties": {"id": {"type": ["string", "integer"]}, reads: content, **second},
    }
    inputs = {"type": "array", "minItems": 1, "items": {"anyOf": [content, named]}}
    body = {"type": "object", "required": ["inputs"], "properties": {"inputs": inputs}}
    part = {"type": "string"} if reads == "text" else {"type": "string", "format": "binary"}
    form = {"type": "object", "additionalProperties": part}
    row = {"type": "object", "properties": {column: TYPES[kind] for column, kind in columns.items()}}
    answers = {"type": "object", "properties": {"answers": {"type": "array", "items": row}}}
    refused = {"type": "object", "properties": {"detail": {"type": "string"}}}
    why = {400: "not JSON", 413: "too large", 415: "another type", 422: "no such inputs", 429: "too many are waiting"}
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": {JSON: {"schema": body}, FORM: {"schema": form}}}
        },
        "responses": {
            200: {"description": "An answer for each input, in order.", "content": {JSON: {"schema": answers}}},
            **{code: {"description": text, "content": {JSON: {"schema": refused}}} for code, text in why.items()},
        },
    }
