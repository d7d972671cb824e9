"""A small HTTP server of one calibrated checkpoint: label, set, uncertainty and flag of images or texts, in dynamic
batches.

    python server.py ready.safetensors --port 8000

POST /predict   an image (image/png, image/jpeg, image/webp), or {"text": "…"} (application/json)
GET  /metrics   for Prometheus
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from inputs import IMAGES, body_of, image_in, text_in
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.requests import ClientDisconnect
from torch.utils.data import default_collate

import hydrasurgeon as hs
from hydrasurgeon.decision.state import rows_of

SCORES = tuple(x / 2 for x in range(-10, 21))
"""Where the histogram of OOD scores has its bounds, besides infinity."""


class Batcher:
    """Requests wait here, at most `size` of them; one thread runs the model on what has come within `wait` seconds."""

    def __init__(self, model: Any, *, batch: int, wait: float, size: int) -> None:
        self.model, self.batch, self.wait = model, batch, wait
        self.queue: asyncio.Queue[tuple[Any, asyncio.Future[dict[str, Any]]]] = asyncio.Queue(size)
        self.thread = ThreadPoolExecutor(1)
        self.registry = CollectorRegistry()
        self.answers = Counter("hydra_answers", "Requests by what came of them.", ["answer"], registry=self.registry)
        self.scores = Histogram("hydra_ood_score", "OOD scores.", buckets=SCORES, registry=self.registry)
        self.batches = Histogram(
            "hydra_batch_size", "Rows in one pass.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self.registry
        )
        self.rows = Counter("hydra_rows", "Rows that were answered.", registry=self.registry)
        self.went_on = Counter("hydra_rows_went_on", "Rows that all members answered.", registry=self.registry)

    async def ask(self, sample: Any) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        try:
            self.queue.put_nowait((sample, answer))
        except asyncio.QueueFull:
            raise HTTPException(503, "too many requests are waiting", {"Retry-After": "1"}) from None
        return await answer

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            waiting = [await self.queue.get()]
            end = time.monotonic() + self.wait
            while len(waiting) < self.batch and (left := end - time.monotonic()) > 0:
                try:
                    waiting.append(await asyncio.wait_for(self.queue.get(), left))
                except TimeoutError:
                    break
            try:
                rows = await loop.run_in_executor(self.thread, self.decide, [s for s, _ in waiting])
            except Exception as error:  # whatever it is, those who wait must hear of it
                rows = [HTTPException(500, f"the model failed: {error}")] * len(waiting)
            for (_, answer), row in zip(waiting, rows, strict=True):
                if not answer.cancelled():
                    answer.set_exception(row) if isinstance(row, Exception) else answer.set_result(row)

    def decide(self, samples: list[Any]) -> list[dict[str, Any]]:
        model = self.model
        decided = model.decide(getattr(model.transform, "collate", default_collate)(samples))
        rows = rows_of(decided, [{} for _ in samples], names=model.manifest.model.labels, top=5)
        self.batches.observe(len(rows))
        for row in rows:
            set_aside = row["answer"] in ("abstain", "unfamiliar")
            self.answers.labels(row["answer"] if set_aside else "answered").inc()
            self.scores.observe(row["ood_score"])
            self.rows.inc()
            self.went_on.inc(row["members_run"] == model.members)
        return rows


def app_of(model: Any, *, batch: int = 32, wait: float = 0.005, queue: int = 256) -> FastAPI:
    """The server of a model that `calibrate` gave a decision state."""
    texts = getattr(model.transform, "kind", "image") == "text"
    kinds = ("application/json",) if texts else IMAGES
    batcher = Batcher(model, batch=batch, wait=wait, size=queue)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(batcher.work())
        yield
        work.cancel()

    app = FastAPI(lifespan=running)

    @app.post("/predict")
    async def predict(request: Request) -> dict[str, Any]:
        try:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in kinds:
                raise HTTPException(415, f"send {' or '.join(kinds)}")
            content = await body_of(request)
            sample = text_in(content) if texts else await asyncio.to_thread(image_in, content, model.transform)
            return await batcher.ask(sample)
        except ClientDisconnect:
            batcher.answers.labels("gone").inc()
            return {}  # nobody reads it
        except HTTPException as error:
            batcher.answers.labels(f"refused {error.status_code}").inc()
            raise

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(batcher.registry), media_type="text/plain; version=0.0.4")

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=32, help="rows in one pass, at most")
    parser.add_argument("--wait", type=float, default=0.005, help="seconds that a pass waits for more")
    parser.add_argument("--queue", type=int, default=256, help="requests that may wait")
    asked = parser.parse_args()
    model = hs.load(asked.checkpoint)
    if model.state is None:
        parser.error(f"{asked.checkpoint} has no decision state: run `hydrasurgeon calibrate` on it")
    torch.set_grad_enabled(False)
    app = app_of(model, batch=asked.batch, wait=asked.wait, queue=asked.queue)
    uvicorn.run(app, host=asked.host, port=asked.port, log_level="warning")


if __name__ == "__main__":
    main()
