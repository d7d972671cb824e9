"""A model that answers requests: the batches that they are answered in, and what it counts for
Prometheus.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.exceptions import HTTPException as Refused
from starlette.requests import ClientDisconnect

from hydrasurgeon.serving.inputs import PATIENCE, TOKENS, Asked, Bodies, Full, Row, refuse_if
from hydrasurgeon.tasks.base import abstained

if TYPE_CHECKING:
    from hydrasurgeon.tasks.base import Task


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
class ServedModel:
    """A model as the protocols describe it."""

    name: str
    reads: str
    """`text` or `image`."""
    columns: Mapping[str, str]
    """Kinds of its rows' columns, by name."""
    labels: Sequence[str | int] = ()
    """Its classes or labels; none where their probabilities cannot be told apart."""
    levels: Sequence[int] = ()
    """Whole numbers that a model of numbers was tuned on."""
    example: Row = field(default_factory=dict)
    """A row; columns that have no value in it never have one."""
    released: str = ""
    """The day that it was written."""
    reach: float | None = None
    """Half-width of the intervals of a calibrated model of numbers, in standard deviations."""


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
    model: ServedModel

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
