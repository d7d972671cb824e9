"""Bodies of requests: texts or pictures of bounded size. Anything else is refused with a status and
one message.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import importlib
import io
import re
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from hydrasurgeon.data.images import decode
from hydrasurgeon.data.samples import READS, is_missing
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.untrusted import parse_json

MAX_CHARACTERS = 20_000
"""Most characters of a text; the model reads the beginning of shorter ones, as `predict` does."""
MAX_ID = 1024
"""Most bytes of an id: it is kept with every answer."""
PATIENCE = 30.0
"""Seconds in which a body must have come."""
TOGETHER = 256 << 20
"""Bytes of all bodies that are being received at once; room for four of the largest at least."""
JSON = "application/json"
"""The content type that is taken."""
WINDOW = 23
"""Log2 of the bytes that a zstd body may refer back, as RFC 9659 has it."""
ZSTD = ("compression.zstd", "backports.zstd")
"""Modules that read zstd: from Python 3.14 on, and before."""
TOKENS = "input_tokens"
"""Column of a row within the server: the number of tokens of its text."""
SECOND = "text_pair"
"""The field of an input that holds the second text of a pair."""
BODY = 'the body is not {"inputs": [...]}'
"""Message for JSON of another shape."""
PIECES = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{,]', re.DOTALL)
"""A string of a JSON text, or what stands between its values."""
PIECES_OF_INPUT, PIECES_OF_REQUEST = 12, 512
"""An input has at most three names, three values and what stands between them; a request in another
protocol describes itself besides.
"""
Row = dict[str, Any]
"""An answer, as `predict` writes it."""
ALL = sys.maxsize
"""Number of labels that lists all of them."""


class Full(Exception):
    """More came than may wait."""


def refuse_if(wrong: object, message: str, status: int = 422) -> None:
    """Refuse a request of which this holds."""
    if wrong:
        raise HTTPException(status, message)


@dataclass
class _Body:
    """A body while it comes."""

    timer: asyncio.Timeout
    content: bytearray = field(default_factory=bytearray)
    dropped: bool = False


class Bodies:
    """The bodies of requests while they come: each is bounded, and so are all together. Where they
    are too much, the one that has been coming for longest is dropped.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.together = max(TOGETHER, 4 * most)
        self.coming: list[_Body] = []
        """The one that has been coming for longest first."""
        self.whole_ones = 0
        """Bytes of bodies that have come and are being read."""

    @property
    def full(self) -> bool:
        """True if another body would be refused, even after all unfinished bodies are dropped."""
        return self.whole_ones + self.most > self.together

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body of a request, once all of it has come."""
        message = dict[str, Any](more_body=True)
        deadline = asyncio.get_running_loop().time() + PATIENCE
        size = 0
        body = _Body(asyncio.timeout_at(deadline))
        try:
            self.coming.append(body)
            try:
                async with body.timer:
                    while message.get("more_body"):
                        message = dict(await request.receive())
                        if message["type"] == "http.disconnect":
                            raise ClientDisconnect
                        if body.dropped:
                            raise Full
                        body.content += message.get("body", b"")
                        refuse_if(
                            len(body.content) > self.most,
                            f"the body has more than {self.most:,} bytes",
                            413,
                        )
                        self._make_room()
                        if body.dropped:
                            raise Full
            except TimeoutError:
                if body.dropped:
                    raise Full from None
                raise
            finally:
                if not body.dropped:
                    self.coming.remove(body)
            size = len(body.content)
            self.whole_ones += size
            content = bytes(body.content)
            encoding = request.headers.get("content-encoding", "identity").strip().lower()
            if encoding != "identity":
                if self.full:
                    raise Full
                size += self.most
                self.whole_ones += self.most
                content = await asyncio.to_thread(_decoded, encoding, content, self.most)
            yield content
        finally:
            self.whole_ones -= size
            # A client that still sends would not see the answer.
            async with asyncio.timeout_at(deadline):
                while message.get("more_body"):
                    message = dict(await request.receive())

    def _make_room(self) -> None:
        """Drop what has been coming for longest, until all that is held is within its bound."""
        held = self.whole_ones + sum(len(body.content) for body in self.coming)
        while held > self.together:
            oldest = self.coming.pop(0)
            oldest.dropped = True
            held -= len(oldest.content)
            oldest.content.clear()
            oldest.timer.reschedule(0)


def _decoded(encoding: str, body: bytes, most: int) -> bytes:
    """Decompress a body, which must not be larger than an uncompressed one may be."""
    packed, zstd = io.BytesIO(body), _zstd() if encoding == "zstd" else None
    refuse_if(
        encoding != "gzip" and zstd is None,
        f"the content encoding {encoding[:100]!r} is not read here; send the body as it is",
        415,
    )
    broken: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    opened: Any
    if zstd is None:
        opened = gzip.GzipFile(fileobj=packed)
    else:
        broken = (*broken, zstd.ZstdError)
        bounds = {zstd.DecompressionParameter.window_log_max: WINDOW}
        opened = zstd.ZstdFile(packed, options=bounds)
    try:
        content = opened.read(most + 1)
    except broken as error:
        raise HTTPException(400, f"the body is not {encoding}") from error
    refuse_if(len(content) > most, f"the body has more than {most:,} bytes", 413)
    return bytes(content)


def _zstd() -> Any:
    """Return a module that reads zstd, or None."""
    for name in ZSTD:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


@dataclass(frozen=True)
class RequestInput:
    """One input of a request, as it was sent."""

    where: str
    id: str | int
    content: str | tuple[str, str] | bytes
    """A text, a pair of them, or an encoded picture."""

    def prepared(self, transform: Callable[[Any], Any]) -> Any:
        """Return the input as the model's batches take it. Pictures are decoded here."""
        if not isinstance(self.content, bytes):
            model_inputs: Any = getattr(transform, "inputs", None)
            sent = "text" if isinstance(self.content, str) else SECOND
            message = f"{self.where}: the model was tuned on {READS.get(model_inputs)}"
            refuse_if(model_inputs not in (None, sent), message)
            return transform(self.content)
        try:
            return transform(decode(self.content, self.where))
        except DataError as error:
            raise HTTPException(422, error.message) from error


@dataclass(frozen=True)
class Asked:
    """A parsed request: its inputs, and the reply that is made of their answers."""

    inputs: Sequence[RequestInput]
    reply: Callable[[list[Row]], Any]
    top: int = ALL
    """Most probable labels that the reply needs."""


def parsed(body: bytes, most: int) -> Any:
    """Parse a JSON text of at most so many inputs, which are counted before any is built."""
    pieces = PIECES_OF_INPUT * (most + 1) + PIECES_OF_REQUEST + 1
    many = next(islice(PIECES.finditer(body), pieces, None), None)
    refuse_if(many is not None, f"more values than {most:,} inputs have", 413)
    try:
        return parse_json(body, "the body", most=len(body), error=DataError)
    except DataError as error:
        raise HTTPException(400, error.message) from error


def inputs_of(body: bytes, reads: str, most: int) -> list[RequestInput]:
    """Return the inputs in a body, at most so many, for a model that reads texts (`text`) or
    pictures (`image`).
    """
    content = parsed(body, most)
    refuse_if(not isinstance(content, dict) or set(content) != {"inputs"}, BODY)
    entries = content["inputs"]
    refuse_if(not isinstance(entries, list), BODY)
    check_count(len(entries), most)
    return [_entry(entry, reads, at) for at, entry in enumerate(entries)]


def check_count(count: int, most: int) -> None:
    refuse_if(count == 0, "there are no inputs")
    refuse_if(count > most, f"{count:,} inputs; at most {most:,} are taken in one request", 413)


def input_of(where: str, name: str | int, content: str | tuple[str, str] | bytes) -> RequestInput:
    """Return an input; refuse one beyond the size limits."""
    refuse_if(len(str(name).encode()) > MAX_ID, f"{where}: its id has more than {MAX_ID:,} bytes")
    if not isinstance(content, bytes):
        texts = (content,) if isinstance(content, str) else content
        refuse_if(any(map(is_missing, texts)), f"{where}: the text is missing")
        refuse_if(
            sum(map(len, texts)) > MAX_CHARACTERS,
            f"{where}: a text of more than {MAX_CHARACTERS:,} characters",
            413,
        )
    return RequestInput(where, name, content)


def _entry(entry: Any, reads: str, at: int) -> RequestInput:
    """Parse a text or a picture in base64, alone or as {"text": …} or {"image": …} with its "id"; a
    pair as {"text": …, "text_pair": …}.
    """
    where = f"inputs[{at}]"
    fields = dict(entry) if isinstance(entry, dict) else {reads: entry}
    content, name = fields.get(reads), fields.get("id", at)
    if not isinstance(content, str) or isinstance(name, bool) or not isinstance(name, str | int):
        expected = "a text" if reads == "text" else "a picture in base64"
        raise HTTPException(422, f'{where}: is neither {expected} nor {{"id": …, "{reads}": …}}')
    second = fields.pop(SECOND, None) if reads == "text" else None
    refuse_if(
        second is not None and not isinstance(second, str), f"{where}: its {SECOND} is not a text"
    )
    refuse_if(not set(fields) <= {"id", reads}, f'{where}: holds more than "id" and "{reads}"')
    if reads == "text":
        return input_of(where, name, content if second is None else (content, second))
    try:
        return input_of(where, name, base64.b64decode(content, validate=True))
    except (binascii.Error, ValueError) as error:
        raise HTTPException(422, f"{where}: is not base64") from error
