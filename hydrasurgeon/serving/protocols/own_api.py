"""Our own protocol: `POST /v1/predict`, a list of inputs → rows of `predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request

from hydrasurgeon.serving.inputs import JSON, SECOND, Asked, inputs_of
from hydrasurgeon.serving.protocols.base import Protocol, check_type
from hydrasurgeon.serving.service import Service, shortened

TYPES = {
    "text": {"type": ["string", "number"]},
    "number": {"type": ["number", "null"]},
    "flag": {"type": ["boolean", "null"]},
    "whole": {"type": "integer"},
    "json": {"type": ["array", "null"]},
    "names": {"type": ["array", "string"]},
}
"""A kind of value in an answer, as OpenAPI has it."""


class OwnApi(Protocol):
    path = "/v1/predict"

    def add(self, app: FastAPI, services: Sequence[Service]) -> None:
        service = services[0]
        model = service.model

        async def predict(request: Request) -> Any:
            """Return an answer for each input, in order; or one message."""

            def read(body: bytes, most: int) -> Asked:
                check_type(request)
                inputs = inputs_of(body, model.reads, most)
                return Asked(
                    inputs, lambda rows: {"answers": shortened(rows, service.top)}, service.top
                )

            return await service.answered(request, read)

        app.post(self.path, **_described(model.reads, model.columns))(predict)


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
