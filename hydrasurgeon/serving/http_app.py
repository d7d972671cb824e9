"""A server: its routes, the batches that requests are answered in, what it counts for Prometheus,
and OpenAPI.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import importlib.metadata
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.exceptions import HTTPException as Refused
from starlette.requests import ClientDisconnect

from hydrasurgeon.serving.inputs import (
    JSON,
    PATIENCE,
    SECOND,
    TOKENS,
    Asked,
    Bodies,
    Full,
    Row,
    inputs_of,
    refuse_if,
)
from hydrasurgeon.serving.open_inference import HEADER, Signature
from hydrasurgeon.serving.system_one import ServedModel, asked_of
from hydrasurgeon.tasks.base import abstained

if TYPE_CHECKING:
    from hydrasurgeon.tasks.base import Task

UNPROTECTED = ("/health", "/ready", "/v2/health/live", "/v2/health/ready")
"""Routes that need no token."""


class Batcher:
    """Inputs wait here for `answer`, which one thread calls with at most `batch` of them."""

    def __init__(
        self, answer: Callable[[list[Any]], list[Row]], *, batch: int, wait: float, size: int
    ) -> None:
        self.answer, self.batch, self.wait, self.size = answer, batch, wait, size
        self.held = 0
        """Places that are held, of `size`: one for each input of the requests that are not answered
        yet.
        """
        self.queue: asyncio.Queue[tuple[Any, asyncio.Future[Row]]] = asyncio.Queue()
        self.thread = ThreadPoolExecutor(1)

    @contextlib.contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Hold so many places; raise Full if they are not free."""
        if self.held + count > self.size:
            raise Full
        self.held += count
        try:
            yield
        finally:
            self.held -= count

    async def rows(self, samples: Sequence[Any]) -> list[Row]:
        """Return the answers, in order."""
        loop = asyncio.get_running_loop()
        answers = [loop.create_future() for _ in samples]
        for pair in zip(samples, answers, strict=True):
            self.queue.put_nowait(pair)
        return await asyncio.gather(*answers)

    async def work(self) -> None:
        """Answer what comes, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            waiting = [await self.queue.get()]
            if self.queue.qsize() + 1 < self.batch:
                await asyncio.sleep(self.wait)
            while len(waiting) < self.batch and self.queue.qsize():
                waiting.append(self.queue.get_nowait())
            outcomes: Sequence[Row | Exception]
            try:
                outcomes = await loop.run_in_executor(
                    self.thread, self.answer, [sample for sample, _ in waiting]
                )
            except Exception as error:  # whatever it is, those who wait must hear of it
                outcomes = [error] * len(waiting)
            for (_, answer), outcome in zip(waiting, outcomes, strict=True):
                if not answer.cancelled():
                    answer.set_exception(outcome) if isinstance(
                        outcome, Exception
                    ) else answer.set_result(outcome)


def summed(folder: Path) -> CollectorRegistry:
    """Return a registry that sums the counts of all processes that use this folder.

    Each process must set `PROMETHEUS_MULTIPROC_DIR` before it imports prometheus_client.
    """
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    return registry


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of the histogram of latency, besides infinity."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Bounds of the histogram of batch sizes, besides infinity."""


class RequestCounts:
    """Requests and their latency; inputs, what was answered, and how sure it was.

    Where several processes count in the files of a folder, what is shown is their sum.
    """

    def __init__(self, folder: Path | None = None) -> None:
        registry = CollectorRegistry()
        self.registry = registry if folder is None else summed(folder)

        def named(kind: type[Any], name: str, help_text: str, *labels: str, **more: Any) -> Any:
            return kind(f"hydrasurgeon_{name}", help_text, labels, registry=registry, **more)

        self.requests = named(Counter, "requests", "Requests by status.", "status")
        self.seconds = named(
            Histogram, "request_seconds", "Latency of answered requests.", buckets=SECONDS
        )
        self.waiting = named(
            Gauge,
            "waiting",
            "Inputs that wait or are being answered.",
            multiprocess_mode="livesum",
        )
        self.batches = named(Histogram, "batch_size", "Inputs in one pass.", buckets=SIZES)
        self.inputs = named(Counter, "inputs", "Inputs that were answered.")
        self.abstained = named(Counter, "abstained", "Answers that were not sure enough.")
        self.unfamiliar = named(Counter, "unfamiliar", "Inputs that looked out-of-distribution.")
        self.went_on = named(Counter, "went_on", "Inputs that all members answered.")
        self.uncertainty = named(Summary, "uncertainty", "Total uncertainty of answers, in nats.")
        self.answers_lost = named(Counter, "answers_lost", "Answers that --answers does not hold.")
        self.predicted = named(
            Counter, "predicted", "Most probable classes, or labels that hold.", "label"
        )

    @contextlib.contextmanager
    def held(self, count: int) -> Iterator[None]:
        """Count so many inputs as waiting meanwhile, for all models together."""
        self.waiting.inc(count)
        try:
            yield
        finally:
            self.waiting.dec(count)

    def add(self, rows: Sequence[dict[str, Any]], members: int, task: Task) -> None:
        """Count the answers of one pass of a model with so many members."""
        self.batches.observe(len(rows))
        self.inputs.inc(len(rows))
        for row in rows:
            self.abstained.inc(not row["unfamiliar"] and abstained(row))
            self.unfamiliar.inc(bool(row["unfamiliar"]))
            self.went_on.inc(row.get("members_run", members) == members)
            self.uncertainty.observe(task.unsure(row))
            for name in task.named(row):
                self.predicted.labels(name).inc()

    def text(self) -> bytes:
        """Return all counts in Prometheus' text format."""
        return generate_latest(self.registry)


TYPES = {
    "text": {"type": ["string", "number"]},
    "number": {"type": ["number", "null"]},
    "flag": {"type": ["boolean", "null"]},
    "whole": {"type": "integer"},
    "json": {"type": ["array", "null"]},
    "names": {"type": ["array", "string"]},
}
"""A kind of value in an answer, as OpenAPI has it."""


Reading = Callable[[bytes, int], Asked]
"""A function from a body, and the maximum number of inputs, to the request in it."""
Rows = Callable[[Asked], Awaitable[list[Row]]]
"""The answers to all that is asked."""


def shortened(rows: Sequence[Row], top: int) -> list[Row]:
    """Return answers as `predict` writes them, with so many of the most probable labels. Another
    request of the same pass may have wanted more.
    """
    plain = [{key: row[key] for key in row if key != TOKENS} for row in rows]
    return [{**row, "top": row["top"][:top]} if "top" in row else row for row in plain]


@dataclass(frozen=True)
class Service:
    """A model that answers requests: their inputs are prepared by `transform` and wait in the
    batcher.
    """

    batcher: Batcher
    counts: RequestCounts
    transform: Any
    bodies: Bodies
    top: int
    """Most probable labels that an answer lists."""
    signature: Signature
    model: ServedModel

    async def predict(self, request: Request) -> Any:
        """Return an answer for each input, in order; or one message."""

        def read(body: bytes, most: int) -> Asked:
            _check_type(request)
            inputs = inputs_of(body, self.signature.reads, most)
            return Asked(inputs, lambda rows: {"answers": shortened(rows, self.top)}, self.top)

        return await self.answered(request, read)

    async def rows(self, request: Asked) -> list[Row]:
        """Answer all inputs of a request, in order."""
        with self.batcher.places(len(request.inputs)), self.counts.held(len(request.inputs)):
            prepared = asyncio.to_thread(
                lambda: [
                    (entry.id, entry.prepared(self.transform), request.top)
                    for entry in request.inputs
                ]
            )
            return await self.batcher.rows(await prepared)

    async def _reply(self, request: Request, read: Reading, rows: Rows) -> Any:
        async with self.bodies.received(request) as body:
            request_inputs = await asyncio.to_thread(read, body, self.batcher.size)
        return request_inputs.reply(await rows(request_inputs))

    async def answered(self, request: Request, read: Reading, rows: Rows | None = None) -> Any:
        """Read a request from a body, in whatever protocol, and return the reply. `rows` replaces
        the service's own way to answer.
        """
        start, status = time.perf_counter(), 500
        try:
            reply = await self._reply(request, read, rows or self.rows)
            status = 200
            self.counts.seconds.observe(time.perf_counter() - start)
            return reply
        except Refused as error:
            status = error.status_code
            raise
        except Full:
            status = 429
            raise HTTPException(
                429, "too many inputs are waiting; try again later", {"Retry-After": "1"}
            ) from None
        except TimeoutError:
            status = 408
            raise HTTPException(
                408, f"the body did not come within {PATIENCE:.0f} seconds"
            ) from None
        except ClientDisconnect:
            status = 499
            return {}  # nobody reads it
        except Exception as error:
            logging.getLogger("uvicorn.error").exception("the model failed")
            raise HTTPException(500, f"the model failed: {error}") from error
        finally:
            self.counts.requests.labels(status).inc()

    async def health(self) -> dict[str, str]:
        """Report that the process lives."""
        return {"status": "ok"}

    async def ready(self) -> dict[str, str]:
        """Report that another request can be taken; refuse with 503 if not."""
        refuse_if(
            self.batcher.held >= self.batcher.size or self.bodies.full,
            "too many inputs are waiting",
            503,
        )
        return {"status": "ready"}

    async def metrics(self) -> Response:
        """Return the counts for Prometheus."""
        return Response(self.counts.text(), media_type="text/plain; version=0.0.4")


def app_of(services: Sequence[Service], token: str | None = None) -> FastAPI:
    """Build the app: the routes of the first service, and those of System One for all services."""
    service = services[0]
    reads = service.signature.reads

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
    app.post("/v1/predict", **_described(reads, service.model.columns))(service.predict)
    app.get("/health")(service.health)
    app.get("/ready")(service.ready)
    app.get("/metrics")(service.metrics)
    app.exception_handler(Refused)(_refusal)
    _open_inference(app, service)
    if reads == "text":
        _system_one(app, services)
    _openapi(app)
    return app


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    refuse_if(kind != JSON, f"the content type is not {JSON}", 415)


async def _refusal(request: Request, error: Refused) -> Response:
    """Return an error as one message, in the format of the protocol."""
    path, status = request.scope["path"], error.status_code
    if path.startswith("/v2"):
        status = 400 if status == 422 else status
    return JSONResponse(
        {"error" if path.startswith("/v2") else "detail": error.detail}, status, error.headers
    )


def _open_inference(app: FastAPI, service: Service) -> None:
    """Add the routes of Open Inference Protocol v2."""
    model = service.signature

    def check(name: str) -> None:
        refuse_if(name != model.name, f"no model {name!r}; here is {model.name!r}", 404)

    async def server() -> Any:
        version = importlib.metadata.version("hydrasurgeon")
        return {
            "name": "hydrasurgeon",
            "version": version,
            "extensions": ["binary_tensor_data"],
        }

    async def metadata(name: str) -> Any:
        check(name)
        return model.described()

    async def ready(name: str) -> Any:
        check(name)
        return await service.ready()

    async def infer(name: str, request: Request) -> Any:
        check(name)
        header = request.headers.get(HEADER)
        return await service.answered(request, partial(model.request_of, header))

    app.get("/v2")(server)
    app.get("/v2/health/live")(service.health)
    app.get("/v2/health/ready")(service.ready)
    app.get("/v2/models/{name}")(metadata)
    app.get("/v2/models/{name}/ready")(ready)
    app.post("/v2/models/{name}/infer")(infer)


def _system_one(app: FastAPI, services: Sequence[Service]) -> None:
    """Add the routes of System One. Each model answers in passes of its own."""
    models = {one.model.name: one.model for one in services}

    async def rows(request: Asked) -> list[Row]:
        answering = [
            services[int(one.id)].rows(replace(request, inputs=[replace(one, id=0)]))
            for one in request.inputs
        ]
        return [row for answers in await asyncio.gather(*answering) for row in answers]

    async def answer(request: Request) -> Any:
        _check_type(request)
        return await services[0].answered(request, partial(asked_of, models), rows)

    async def listed() -> Any:
        return {"models": [model.described() for model in models.values()]}

    app.post("/v1/systemone")(answer)
    app.get("/v1/models")(listed)


def _openapi(app: FastAPI) -> None:
    """Add the route that describes all others, whose reply is made once. It needs no token."""
    content = JSONResponse(app.openapi()).body

    async def described(_: Request) -> Response:
        return Response(content, media_type=JSON)

    app.add_route("/openapi.json", described, include_in_schema=False)


def _described(reads: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """Describe requests, which we parse ourselves, and answers for OpenAPI."""
    content = (
        {"type": "string"} if reads == "text" else {"type": "string", "contentEncoding": "base64"}
    )
    second = {SECOND: content} if reads == "text" else {}
    named = {
        "type": "object",
        "required": [reads],
        "properties": {"id": {"type": ["string", "integer"]}, reads: content, **second},
    }
    inputs = {"type": "array", "minItems": 1, "items": {"anyOf": [content, named]}}
    body = {"type": "object", "required": ["inputs"], "properties": {"inputs": inputs}}
    row = {
        "type": "object",
        "properties": {column: TYPES[kind] for column, kind in columns.items()},
    }
    answers = {"type": "object", "properties": {"answers": {"type": "array", "items": row}}}
    return {
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {JSON: {"schema": body}},
            }
        },
        "responses": {
            200: {
                "description": "An answer for each input, in order.",
                "content": {JSON: {"schema": answers}},
            },
        },
    }
