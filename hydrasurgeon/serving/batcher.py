"""Inputs of many requests, answered together: as many in one pass as have come while the last one ran."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Row = dict[str, Any]
"""An answer, as `predict` writes it."""


class Full(Exception):
    """More inputs came than may wait."""


class Batcher:
    """Inputs wait here for `answer`, which one thread calls with at most `batch` of them."""

    def __init__(self, answer: Callable[[list[Any]], list[Row]], *, batch: int, wait: float, size: int) -> None:
        self.answer, self.batch, self.wait, self.size = answer, batch, wait, size
        self.taken = 0
        """Places that are held, of `size`: one for each input of the requests that are not answered yet."""
        self.queue: asyncio.Queue[tuple[Any, asyncio.Future[Row]]] = asyncio.Queue()
        self.thread = ThreadPoolExecutor(1)

    @contextlib.contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Holds so many places; Full where they are not free."""
        if self.taken + count > self.size:
            raise Full
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count

    async def rows(self, samples: Sequence[Any]) -> list[Row]:
        """The answers, in order."""
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
                outcomes = await loop.run_in_executor(self.thread, self.answer, [sample for sample, _ in waiting])
            except Exception as error:  # whatever it is, those who wait must hear of it
                outcomes = [error] * len(waiting)
            for (_, answer), outcome in zip(waiting, outcomes, strict=True):
                if not answer.cancelled():
                    answer.set_exception(outcome) if isinstance(outcome, Exception) else answer.set_result(outcome)
