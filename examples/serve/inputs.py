"""What the server takes: images and texts of bounded size; all else is refused with a status that says why."""

from __future__ import annotations

import io
import json
import warnings
from typing import Any

from fastapi import HTTPException, Request
from PIL import Image

from hydrasurgeon.data.images import decode
from hydrasurgeon.errors import DataError

IMAGES = ("image/png", "image/jpeg", "image/webp")
MAX_BYTES = 10 << 20
"""Most bytes of a request's body; larger ones are refused (413) before they are read to the end."""
MAX_PIXELS = 50_000_000
"""Most pixels of an image, by its header."""
MAX_CHARACTERS = 20_000
"""Most characters of a text; the model reads the beginning of shorter ones, as `predict` does."""


async def body_of(request: Request) -> bytes:
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > MAX_BYTES:
            raise HTTPException(413, f"more than {MAX_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def image_in(content: bytes, transform: Any) -> Any:
    """The picture as the model takes it; of sides of at most 1 : 100, as everywhere in hydrasurgeon: resizing makes one
    of 1 × 4,000,000 enormous."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are looked at here
            width, height = Image.open(
                io.BytesIO(content), formats=[kind.removeprefix("image/") for kind in IMAGES]
            ).size
    except Image.DecompressionBombError:
        width = height = MAX_PIXELS
    except Exception as error:  # decoders raise whatever damaged bytes lead them to
        raise HTTPException(422, "this is no image that can be read") from error
    if width * height > MAX_PIXELS:
        raise HTTPException(413, f"an image of more than {MAX_PIXELS} pixels")
    try:
        return transform(decode(content, "the body"))
    except DataError as error:
        raise HTTPException(422, error.message) from error


def text_in(content: bytes) -> str:
    try:
        text = json.loads(content)["text"]
        str(text).encode()  # a lone surrogate is no character: the whole batch would fail by it
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise HTTPException(422, 'the body is not {"text": "…"}') from error
    if not isinstance(text, str) or not text.strip():
        raise HTTPException(422, '"text" is no text')
    if len(text) > MAX_CHARACTERS:
        raise HTTPException(413, f"a text of more than {MAX_CHARACTERS} characters")
    return text
