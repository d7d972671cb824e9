"""What a request may bring: texts or pictures of bounded size; all else is refused with a status
and one message.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request
from starlette.datastructures import UploadFile
from starlette.types import Message

from hydrasurgeon.data.images import decode
from hydrasurgeon.data.samples import READS
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import parse_json

MAX_CHARACTERS = 20_000
"""Most characters of a text; the model reads the beginning of shorter ones, as `predict` does."""
JSON, FORM = "application/json", "multipart/form-data"
"""Content types that are taken."""
# It logs what is wrong with a form, too; a logger that nobody has set up prints on the terminal.
logging.getLogger("python_multipart").addHandler(logging.NullHandler())
SECOND = "text_pair"
"""The field of an input that holds the second text of a pair."""
BODY = 'the body is not {"inputs": [...]}'
"""What is wrong with JSON of another shape."""


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


class Bounded(Request):
    """A request of which at most so many bytes are kept: more of them are refused (413)."""

    def __init__(self, request: Request, most: int) -> None:
        super().__init__(request.scope, self._part)
        self.source, self.most, self.length, self.more = request.receive, most, 0, True

    async def _part(self) -> Message:
        message = await self.source()
        self.length += len(message.get("body", b""))
        self.more = message.get("more_body", False)
        if self.length > self.most:
            raise HTTPException(413, f"the body has more than {self.most:,} bytes")
        return message

    async def drop_rest(self) -> None:
        """Read what is not wanted: a client that still sends would not see the answer."""
        while self.more:
            self.more = (await self.source()).get("more_body", False)


async def inputs_of(request: Request, reads: str, most: int) -> list[Input]:
    """The inputs of a request, at most so many, for a model that reads texts (`text`) or pictures
    (`image`).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == JSON:
        sent = _listed(await request.body(), reads)
    elif kind == FORM:
        async with request.form(max_files=most + 1, max_fields=most + 1) as form:
            parts = [part for _, part in form.multi_items()]
            sent = [
                Input(f"part {at}", at, await _part(part, reads, at))
                for at, part in enumerate(parts)
            ]
    else:
        raise HTTPException(415, f"the content type is not {JSON} or {FORM}")
    if not sent:
        raise HTTPException(422, "there are no inputs")
    if len(sent) > most:
        raise HTTPException(413, f"{len(sent):,} inputs; at most {most:,} are taken in one request")
    for each in sent:
        if not isinstance(each.content, bytes) and len("".join(each.content)) > MAX_CHARACTERS:
            raise HTTPException(
                413, f"{each.where}: a text of more than {MAX_CHARACTERS:,} characters"
            )
    return sent


def _listed(body: bytes, reads: str) -> list[Input]:
    try:
        content = parse_json(body, "the body", most=len(body), error=DataError)
    except DataError as error:
        raise HTTPException(400, error.message) from error
    entries = (
        content.get("inputs") if isinstance(content, dict) and set(content) == {"inputs"} else None
    )
    if not isinstance(entries, list):
        raise HTTPException(422, BODY)
    return [_entry(entry, reads, at) for at, entry in enumerate(entries)]


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
    if second is not None and not (isinstance(second, str) and second):
        raise HTTPException(422, f"{where}: its {SECOND} is no text")
    if not set(fields) <= {"id", reads}:
        raise HTTPException(422, f'{where}: holds more than "id" and "{reads}"')
    if reads == "text":
        return Input(where, name, content if second is None else (content, second))
    try:
        return Input(where, name, base64.b64decode(content, validate=True))
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
