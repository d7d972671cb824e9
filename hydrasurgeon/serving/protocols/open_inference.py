"""Open Inference Protocol v2: tensors of texts or files of pictures → tensors of `predict`'s columns,
in JSON or binary behind it, as Triton's client sends them.
"""

from __future__ import annotations

import base64
import binascii
import importlib.metadata
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

from hydrasurgeon.lookup import whole_number
from hydrasurgeon.serving.inputs import ALL, JSON, SECOND, Asked, Row, input_of, parsed, refuse_if
from hydrasurgeon.serving.protocols.base import Protocol
from hydrasurgeon.serving.service import ServedModel, Service
from hydrasurgeon.tasks.row_columns import CUT, with_cut

DATATYPES = {
    **dict.fromkeys(("text", "names", "json"), "BYTES"),
    "number": "FP32",
    "flag": "BOOL",
    "whole": "INT64",
}
"""A kind of column as the protocol has it."""
PACKED = {"FP32": "f", "BOOL": "?", "INT64": "q"}
"""A datatype as `struct` has it."""
PROBABILITIES = "probabilities"
"""The output of every class's probability, in their order."""
HEADER = "Inference-Header-Content-Length"
"""Bytes of the JSON, where binary tensors follow it."""


class OpenInference(Protocol):
    path = "/v2"
    unprotected = ("/v2/health/live", "/v2/health/ready")

    def add(self, app: FastAPI, services: Sequence[Service]) -> None:
        service = services[0]
        model = Signature(service.model)

        def check(name: str) -> None:
            here = model.served.name
            refuse_if(name != here, f"no model {name!r}; here is {here!r}", 404)

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

    @staticmethod
    def refusal(status: int, detail: Any) -> tuple[int, dict[str, Any]]:
        return 400 if status == 422 else status, {"error": detail}


@dataclass(frozen=True)
class Signature:
    """A model's tensors."""

    served: ServedModel

    @cached_property
    def columns(self) -> dict[str, str]:
        """Outputs that have one value for each input, each of a kind."""
        return {
            name: kind
            for name, kind in self.served.columns.items()
            if name == CUT
            or (
                name != "id"
                and (kind != "json" or name == "entities")
                and self.served.example.get(name) is not None
            )
        }

    @property
    def inputs(self) -> Sequence[str]:
        """Names of tensors that are read; the second may be missing."""
        return ("text", SECOND) if self.served.reads == "text" else ("image",)

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """Metadata of the output tensors, by name."""
        outputs: dict[str, dict[str, Any]] = {
            name: {"name": name, "datatype": DATATYPES[kind], "shape": [-1]}
            for name, kind in self.columns.items()
        }
        if self.served.labels:
            outputs[PROBABILITIES] = {
                "name": PROBABILITIES,
                "datatype": "FP32",
                "shape": [-1, len(self.served.labels)],
                "parameters": {"labels": list(self.served.labels)},
            }
        return outputs

    def described(self) -> dict[str, Any]:
        """Return the protocol's metadata of a model."""
        inputs = [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in self.inputs]
        return {
            "name": self.served.name,
            "platform": "hydrasurgeon",
            "inputs": inputs,
            "outputs": [*self.outputs.values()],
        }

    def request_of(self, header: str | None, body: bytes, most: int) -> Asked:
        """Parse a request for inference."""
        length = len(body) if header is None else whole_number(header)
        if length is None or length > len(body):
            raise HTTPException(400, f"{HEADER}: is not the length of the JSON")
        request = parsed(body[:length], most)
        refuse_if(
            not isinstance(request, dict) or not isinstance(request.get("inputs"), list),
            'the body is not {"inputs": [...]}',
        )
        tensors: dict[str, list[str | bytes]] = {}
        for name, values in _tensors(request["inputs"], body[length:], most):
            refuse_if(name in tensors, f"input {name}: occurs twice")
            tensors[name] = values
        names = self.inputs[: len(tensors)] or self.inputs
        if set(names) != set(tensors):
            input_names = " and ".join(self.inputs)
            raise HTTPException(
                400, f"inputs: {', '.join(tensors)}; this model reads {input_names}"
            )
        refuse_if(
            len({len(values) for values in tensors.values()}) > 1, "inputs: their shapes differ"
        )
        samples = [*zip(*(tensors[name] for name in names), strict=True)]
        inputs = [
            input_of(f"inputs[{at}]", at, self._content(f"inputs[{at}]", sample))
            for at, sample in enumerate(samples)
        ]
        requested_outputs = self._requested_outputs(request)
        top = ALL if PROBABILITIES in requested_outputs else 1
        return Asked(inputs, lambda rows: self._reply(request, requested_outputs, rows), top)

    def _content(self, where: str, sample: Sequence[str | bytes]) -> Any:
        """Return a text, a pair of texts, or the bytes of a picture."""
        try:
            if self.served.reads == "text":
                texts = [value if isinstance(value, str) else value.decode() for value in sample]
                return texts[0] if len(texts) == 1 else tuple(texts)
            (sent,) = sample
            return sent if isinstance(sent, bytes) else base64.b64decode(sent, validate=True)
        except UnicodeDecodeError as error:
            raise HTTPException(400, f"{where}: is not UTF-8 text") from error
        except (binascii.Error, ValueError) as error:
            raise HTTPException(400, f"{where}: is not base64") from error

    def _requested_outputs(self, request: Mapping[str, Any]) -> dict[str, bool]:
        """Return the requested outputs by name: True for a binary one."""
        always = _flag(request, "binary_data_output")
        listed = request.get("outputs")
        if listed is None or listed == []:
            listed = [{"name": name} for name in self.outputs]
        refuse_if(
            not isinstance(listed, list) or not all(isinstance(output, dict) for output in listed),
            "outputs: is not a list of objects",
        )
        for output in listed:
            if str(output.get("name")) not in self.outputs:
                names = ", ".join(self.outputs)
                raise HTTPException(400, f"outputs: no {output.get('name')!r}; there are {names}")
        return {output["name"]: _flag(output, "binary_data", always) for output in listed}

    def _reply(
        self, request: Mapping[str, Any], requested: Mapping[str, bool], rows: Sequence[Row]
    ) -> Response:
        tensors, tail = [], b""
        rows = [*map(with_cut, rows)] if CUT in self.columns else rows
        for name, binary in requested.items():
            tensor = {**self.outputs[name]}
            values = self._values(name, tensor["datatype"], rows)
            tensor["shape"] = [len(rows), *tensor["shape"][1:]]
            if binary:
                content = _packed(tensor["datatype"], values)
                tensor["parameters"] = {"binary_data_size": len(content)}
                tail += content
            else:
                tensor["data"] = values
            tensors.append(tensor)
        reply: dict[str, Any] = {"model_name": self.served.name, "outputs": tensors}
        if "id" in request:
            reply["id"] = request["id"]
        head = json.dumps(reply, ensure_ascii=False, allow_nan=False).encode()
        if not any(requested.values()):
            return Response(head, media_type=JSON)
        headers = {HEADER: str(len(head))}
        return Response(head + tail, media_type="application/octet-stream", headers=headers)

    def _values(self, name: str, datatype: str, rows: Sequence[Row]) -> list[Any]:
        """Return an output's values, row by row."""
        if name == PROBABILITIES:
            chances = [dict(row["top"]) for row in rows]
            return [
                chances_of_row[label] for chances_of_row in chances for label in self.served.labels
            ]
        values = [row[name] for row in rows]
        if self.columns[name] == "json":
            return [json.dumps(value, ensure_ascii=False, allow_nan=False) for value in values]
        return [_text(value) for value in values] if datatype == "BYTES" else values


def _text(value: Any) -> str:
    """Return a label, or the labels that hold, as tables write them."""
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)


def _flag(entry: Mapping[str, Any], name: str, usual: bool = False) -> bool:
    """Return a boolean parameter of an entry."""
    parameters = entry.get("parameters", {})
    value = parameters.get(name, usual) if isinstance(parameters, dict) else None
    refuse_if(not isinstance(value, bool), f"parameters: {name} is neither true nor false")
    return value is True


def _tensors(
    listed: Sequence[Any], tail: bytes, most: int
) -> Iterator[tuple[str, list[str | bytes]]]:
    """Yield the inputs by name. Binary ones follow one another in the tail."""
    for at, tensor in enumerate(listed):
        refuse_if(
            not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str),
            f"inputs[{at}]: has no name",
        )
        where = f"input {tensor['name']}"
        refuse_if(
            tensor.get("datatype") != "BYTES",
            f"{where}: is {tensor.get('datatype')}; BYTES are read",
        )
        count = _count(where, tensor.get("shape"), most)
        parameters = tensor.get("parameters") or {}
        refuse_if(not isinstance(parameters, dict), f"{where}: its parameters are not an object")
        size, values = parameters.get("binary_data_size"), tensor.get("data")
        if size is not None:
            refuse_if(
                type(size) is not int or not 0 <= size <= len(tail),
                f"{where}: its binary data are not there",
            )
            values, tail = _unpacked(where, tail[:size]), tail[size:]
        elif isinstance(values, list) and all(isinstance(row, list) for row in values):
            values = [value for row in values for value in row]
        refuse_if(
            not isinstance(values, list) or not all(isinstance(v, str | bytes) for v in values),
            f"{where}: its data are not a list of strings",
        )
        refuse_if(len(values) != count, f"{where}: {len(values)} values, {count} by its shape")
        yield tensor["name"], values
    refuse_if(tail, "more binary data than the inputs have")


def _count(where: str, shape: Any, most: int) -> int:
    """Return the number of values in a tensor, one for each input."""
    is_integers = isinstance(shape, list) and all(type(size) is int for size in shape)
    refuse_if(
        not is_integers or len(shape) not in (1, 2) or shape[1:] not in ([], [1]) or shape[0] < 1,
        f"{where}: its shape is {shape}; [n] and [n, 1] are read",
    )
    refuse_if(
        shape[0] > most, f"{shape[0]:,} inputs; at most {most:,} are taken in one request", 413
    )
    return int(shape[0])


def _unpacked(where: str, content: bytes) -> list[bytes]:
    """Unpack strings, each of which stands behind its length."""
    values, at = [], 0
    while at < len(content):
        refuse_if(at + 4 > len(content), f"{where}: its binary data are cut")
        (length,) = struct.unpack_from("<I", content, at)
        at += 4 + length
        refuse_if(at > len(content), f"{where}: its binary data are cut")
        values.append(content[at - length : at])
    return values


def _packed(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        encoded = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(string)) + string for string in encoded)
    numbers = [math.nan if value is None else value for value in values]
    return struct.pack(f"<{len(values)}{PACKED[datatype]}", *numbers)
