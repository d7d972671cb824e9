"""What a request may bring: texts or pictures of bounded size; all else is refused with a status
and one message.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import importlib
import io
import logging
import re
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import HTTPException, Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect
from starlette.types import Message

from hydrasurgeon.data.images import decode
from hydrasurgeon.data.samples import READS, is_missing
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import parse_json, utf8

MAX_CHARACTERS = 20_000
"""Most characters of a text; the model reads the beginning of shorter ones, as `predict` does."""
MAX_ID = 1024
"""Most bytes of an id: it is kept with every answer."""
PATIENCE = 30.0
"""Seconds in which a body must have come."""
TOGETHER = 256 << 20
"""Bytes of all bodies that are being received at once; room for four of the largest at least."""
JSON, FORM = "application/json", "multipart/form-data"
"""Content types that are taken."""
# It logs what is wrong with a form, too; a logger that nobody has set up prints on the terminal.
logging.getLogger("python_multipart").addHandler(logging.NullHandler())
WINDOW = 23
"""Log2 of the bytes that a zstd body may refer back, as RFC 9659 has it."""
ZSTD = ("compression.zstd", "backports.zstd")
"""Modules that read zstd: from Python 3.14 on, and before."""
TOKENS = "input_tokens"
"""Of a row within the server: how many tokens its text has."""
SECOND = "text_pair"
"""The field of an input that holds the second text of a pair."""
BODY = 'the body is not {"inputs": [...]}'
"""What is wrong with JSON of another shape."""
PIECES = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{,]', re.DOTALL)
"""A string of a JSON text, or what stands between its values."""
PIECES_OF_INPUT, PIECES_OF_REQUEST = 12, 512
"""An input has at most three names, three values and what stands between them; a request in another
protocol describes itself besides.
"""
Row = dict[str, Any]
"""An answer, as `predict` writes it."""
ALL = sys.maxsize
"""So many of the most probable labels: each."""


class Full(Exception):
    """More came than may wait."""


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
        """Whether another body would be refused, whatever is dropped for it."""
        return self.whole_ones + self.most > self.together

    @asynccontextmanager
    async def whole(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request, once all of it has come."""
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
                        if len(body.content) > self.most:
                            raise HTTPException(413, f"the body has more than {self.most:,} bytes")
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
    """What a compressed body holds, within the bound of one that is not."""
    packed, zstd = io.BytesIO(body), _zstd() if encoding == "zstd" else None
    if encoding != "gzip" and zstd is None:
        raise HTTPException(
            415, f"the content encoding {encoding[:100]!r} is not read here; send the body as it is"
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
    if len(content) > most:
        raise HTTPException(413, f"the body has more than {most:,} bytes")
    return bytes(content)


def _zstd() -> Any:
    """The module that reads it, where there is one."""
    for name in ZSTD:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


@dataclass(frozen=True)
class Input:
    """One input of a request, as it was sent."""

    where: str
    id: str | int
    content: str | tuple[str, str] | bytes
    """A text, a pair of them, or an encoded picture."""

    def prepared(self, transform: Callable[[Any], Any]) -> Any:
        """As the model's batches are made of it; pictures are decoded now."""
        if not isinstance(self.content, bytes):
            wanted, sent = (
                getattr(transform, "inputs", None),
                "text" if isinstance(self.content, str) else SECOND,
            )
            if wanted not in (None, sent):
                raise HTTPException(422, f"{self.where}: the model was tuned on {READS[wanted]}")
            return transform(self.content)
        try:
            return transform(decode(self.content, self.where))
        except DataError as error:
            raise HTTPException(422, error.message) from error


@dataclass(frozen=True)
class Asked:
    """What a request wants answered, and what its client is told."""

    inputs: Sequence[Input]
    reply: Callable[[list[Row]], Any]
    top: int = ALL
    """Most probable labels that the reply needs."""


async def inputs_of(content_type: str, body: bytes, reads: str, most: int) -> list[Input]:
    """The inputs in a body, at most so many, for a model that reads texts (`text`) or pictures
    (`image`).
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON:
        return await asyncio.to_thread(_listed, body, reads, most)
    if kind == FORM:
        return await _filled_in(content_type, body, reads, most)
    raise HTTPException(415, f"the content type is not {JSON} or {FORM}")


def parsed(body: bytes, most: int) -> Any:
    """A JSON text of at most so many inputs, which are counted before any is built."""
    for number, _ in enumerate(PIECES.finditer(body)):
        if number > PIECES_OF_INPUT * (most + 1) + PIECES_OF_REQUEST:
            raise HTTPException(413, f"more values than {most:,} inputs have")
    try:
        return parse_json(body, "the body", most=len(body), error=DataError)
    except DataError as error:
        raise HTTPException(400, error.message) from error


def _listed(body: bytes, reads: str, most: int) -> list[Input]:
    """The inputs of a JSON text."""
    content, entries = parsed(body, most), None
    if isinstance(content, dict) and set(content) == {"inputs"}:
        entries = content["inputs"]
    if not isinstance(entries, list):
        raise HTTPException(422, BODY)
    check_count(len(entries), most)
    return [_entry(entry, reads, at) for at, entry in enumerate(entries)]


async def _filled_in(content_type: str, body: bytes, reads: str, most: int) -> list[Input]:
    """The inputs of a form."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not body.rstrip(b"\r\n").endswith(b"--" + boundary + b"--"):
        raise HTTPException(400, "the form is cut: its last boundary is missing")
    if reads == "text":
        try:
            utf8(body, "the form", DataError)
        except DataError as error:
            raise HTTPException(400, error.message) from error

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "headers": [(b"content-type", content_type.encode("latin-1"))]}
    request = Request(scope, receive)
    try:
        async with request.form(max_files=most + 1, max_fields=most + 1) as form:
            parts = [part for _, part in form.multi_items()]
            check_count(len(parts), most)
            contents = [await _part(part, reads, at) for at, part in enumerate(parts)]
    except MultiPartException as error:
        raise HTTPException(400, error.message) from error
    return [input_of(f"part {at}", at, content) for at, content in enumerate(contents)]


def check_count(count: int, most: int) -> None:
    if count == 0:
        raise HTTPException(422, "there are no inputs")
    if count > most:
        raise HTTPException(413, f"{count:,} inputs; at most {most:,} are taken in one request")


def input_of(where: str, name: str | int, content: str | tuple[str, str] | bytes) -> Input:
    """An input within its bounds."""
    if len(str(name).encode()) > MAX_ID:
        raise HTTPException(422, f"{where}: its id has more than {MAX_ID:,} bytes")
    if not isinstance(content, bytes):
        texts = (content,) if isinstance(content, str) else content
        if any(map(is_missing, texts)):
            raise HTTPException(422, f"{where}: the text is missing")
        if sum(map(len, texts)) > MAX_CHARACTERS:
            raise HTTPException(413, f"{where}: a text of more than {MAX_CHARACTERS:,} characters")
    return Input(where, name, content)


def _entry(entry: Any, reads: str, at: int) -> Input:
    """A text or a picture in base64, alone or as {"text": …} or {"image": …} with its "id"; a pair
    as {"text": …, "text_pair": …}.
    """
    where = f"inputs[{at}]"
    fields = dict(entry) if isinstance(entry, dict) else {reads: entry}
    content, name = fields.get(reads), fields.get("id", at)
    if not isinstance(content, str) or isinstance(name, bool) or not isinstance(name, str | int):
        what = "a text" if reads == "text" else "a picture in base64"
        raise HTTPException(422, f'{where}: is neither {what} nor {{"id": …, "{reads}": …}}')
    second = fields.pop(SECOND, None) if reads == "text" else None
    if second is not None and not isinstance(second, str):
        raise HTTPException(422, f"{where}: its {SECOND} is no text")
    if not set(fields) <= {"id", reads}:
        raise HTTPException(422, f'{where}: holds more than "id" and "{reads}"')
    if reads == "text":
        return input_of(where, name, content if second is None else (content, second))
    try:
        return input_of(where, name, base64.b64decode(content, validate=True))
    except (binascii.Error, ValueError) as error:
        raise HTTPException(422, f"{where}: is not base64") from error


async def _part(part: UploadFile | str, reads: str, at: int) -> str | bytes:
    """A file of the form is a picture, a field is a text."""
    if isinstance(part, str) != (reads == "text"):
        sent, wanted = ("a field", "files") if isinstance(part, str) else ("a file", "fields")
        raise HTTPException(
            422, f"part {at}: is {sent} of the form; the model reads {reads}s, which are {wanted}"
        )
    return part if isinstance(part, str) else await part.read()
