"""A server asked without a network: what it takes, what it refuses and with which status, what it counts."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.stages.serve import PACKAGES, Served, serve

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"the extra serve is missing: {name}"
    )
    for name in PACKAGES
]
JSON = "application/json"
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/predict",
    "headers": [(b"content-type", JSON.encode())],
    "query_string": b"",
    "http_version": "1.1",
}
"""A request to predict, of JSON."""


@dataclass
class Reply:
    status: int
    body: Any
    headers: dict[str, str]


async def ask(
    app: Any,
    path: str,
    body: bytes | None = None,
    kind: str = JSON,
    *,
    step: int = 1 << 20,
    **named: str,
) -> Reply:
    """One request, its body in steps of so many bytes."""
    pieces = [(body or b"")[at : at + step] for at in range(0, len(body or b""), step)] or [b""]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        assert pieces, "it reads on behind the end of a body"
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", kind.encode())]
    headers += [(name.encode(), value.encode()) for name, value in named.items()]
    scope = {
        "type": "http",
        "method": "GET" if body is None else "POST",
        "path": path,
        "headers": headers,
    }
    await app({"query_string": b"", "http_version": "1.1", **scope}, receive, send)
    # Who has no token is refused before anything is read.
    unseen = body is not None and pieces and sent[0]["status"] != 401
    assert not unseen, "a client that still sends would not see the answer"
    said = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return Reply(
        sent[0]["status"],
        json.loads(content) if said["content-type"] == JSON else content.decode(),
        said,
    )


def conversation(app: Any, talk: Callable[[Any], Any]) -> Any:
    """What comes of asking a server that runs meanwhile."""

    async def whole() -> Any:
        async with app.router.lifespan_context(app):
            return await asyncio.wait_for(talk(app), 60)

    return asyncio.run(whole())


def row(name: Any, sample: Any) -> dict[str, Any]:
    return {
        "id": name,
        "label": sample,
        "total": 0.5,
        "unfamiliar": False,
        "members_run": 1,
        "answer": sample,
    }


def texts(
    answer: Callable[[list[Any]], list[Any]] | None = None, token: str | None = None, **bounds: Any
) -> Any:
    """A server of texts that says what it was asked, or what `answer` makes of it."""
    from hydrasurgeon.data.texts import Tokenize
    from hydrasurgeon.serving.http_app import app_of
    from hydrasurgeon.serving.inputs import Bodies
    from hydrasurgeon.serving.service import Batcher, RequestCounts, ServedModel, Service

    def echo(samples: list[Any]) -> list[Any]:
        return [row(name, sample) for name, sample, _ in samples]

    limits = {"batch": 4, "wait": 0.0, "size": 8} | {
        name: bound for name, bound in bounds.items() if name != "inputs"
    }
    most = limits.pop("most_bytes", 1 << 20)
    batcher = Batcher(answer or echo, **limits)
    transform = Tokenize(lambda: None, max_length=8, inputs=bounds.get("inputs"))
    columns = {"label": "text", "total": "number", "unfamiliar": "flag", "members_run": "whole"}
    model = ServedModel("m", "text", columns, example=row(0, "a"))
    service = Service(batcher, RequestCounts(), transform, Bodies(most), 5, model)
    return app_of([service], token)


def png(width: int = 8, height: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (width, height), 7).save(buffer, "PNG")
    return buffer.getvalue()


def test_several_inputs_are_answered_in_order() -> None:
    body = json.dumps({"inputs": ["a é", {"id": "x", "text": "b"}, {"text": "c"}]}).encode()
    reply = conversation(
        texts(),
        lambda app: ask(app, "/v1/predict", body, "application/json; charset=utf-8", step=7),
    )
    assert (reply.status, reply.body) == (
        200,
        {"answers": [row(0, "a é"), row("x", "b"), row(2, "c")]},
    )
    refused = conversation(texts(), lambda app: ask(app, "/v1/predict", body, "text/html"))
    assert refused.status == 415


REFUSED: list[tuple[bytes, int, str]] = [
    (b"{", 400, "is not JSON"),
    (b"[" * 40 + b"]" * 40, 400, "nested"),
    (b'{"inputs": ["a \\ud800"]}', 400, "a lone surrogate"),
    (b'{"text": "a"}', 422, "inputs"),
    (b'{"inputs": []}', 422, "no inputs"),
    (b'{"inputs": ["a", 3]}', 422, "inputs[1]"),
    (b'{"inputs": ["a", null]}', 422, "inputs[1]"),
    (b'{"inputs": ["a", " "]}', 422, "inputs[1]"),
    (b'{"inputs": [{"id": true, "text": "a"}]}', 422, "inputs[0]"),
    (b'{"inputs": [{"text": "a", "top": 1}]}', 422, "inputs[0]"),
    (json.dumps({"inputs": ["a" * 20_001]}).encode(), 413, "20,000 characters"),
    (json.dumps({"inputs": ["a"] * 9}).encode(), 413, "at most 8"),
    (json.dumps({"inputs": [{"id": "i" * 1025, "text": "a"}]}).encode(), 422, "1,024 bytes"),
    (b"x" * (3 << 20), 413, "1,048,576 bytes"),
]


@pytest.mark.parametrize(("body", "status", "says"), REFUSED)
def test_what_it_refuses_with_one_message(body: bytes, status: int, says: str) -> None:
    reply = conversation(texts(), lambda app: ask(app, "/v1/predict", body))
    assert reply.status == status
    assert says in reply.body["detail"]


@pytest.mark.parametrize(
    "piece", [b'"",', b'"a\\"",', b"0,", b"[" * 28 + b"]" * 28 + b",", b'{"id":1},']
)
def test_inputs_are_counted_before_they_are_built(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a body is full of."""

    def parsed(*_: Any, **__: Any) -> Any:
        pytest.fail("it is parsed")

    monkeypatch.setattr("hydrasurgeon.serving.inputs.parse_json", parsed)
    body = b'{"inputs":[' + piece * (1_000_000 // len(piece)) + b'""]}'
    reply = conversation(texts(), lambda app: ask(app, "/v1/predict", body))
    assert reply.status == 413


def test_a_slow_body_holds_no_place() -> None:
    async def talk(app: Any) -> tuple[Reply, Reply]:
        go = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await go.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            pass

        slow = [asyncio.create_task(app({**SCOPE}, receive, send)) for _ in range(20)]
        await asyncio.sleep(0)
        replies = await ask(app, "/v1/predict", b'{"inputs": ["a"]}'), await ask(app, "/ready")
        go.set()
        await asyncio.gather(*slow)
        return replies

    answered, ready = conversation(texts(), talk)
    assert (answered.status, ready.status) == (200, 200)


def test_a_body_that_does_not_come_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hydrasurgeon.serving import inputs

    monkeypatch.setattr(inputs, "PATIENCE", 0.05)
    waits: list[float] = []
    timeout_at = asyncio.timeout_at

    def waiting(when: float) -> asyncio.Timeout:
        waits.append(when)
        return timeout_at(when)

    monkeypatch.setattr(asyncio, "timeout_at", waiting)

    async def talk(app: Any) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app({**SCOPE}, receive, send)
        return sent

    start, *_ = conversation(texts(), talk)
    assert start["status"] == 408
    assert len(waits) == 2
    assert len({*waits}) == 1


def test_the_body_that_has_come_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that are held back refuse nobody else."""
    from hydrasurgeon.serving import inputs

    monkeypatch.setattr(inputs, "TOGETHER", 0)

    async def talk(app: Any) -> tuple[list[int], Reply, Reply]:
        go = asyncio.Event()
        held_back = asyncio.Semaphore(0)

        async def upload() -> int:
            sent: list[dict[str, Any]] = []
            parts = [b'{"inputs": ["' + b"a" * 80, b'"]}']

            async def receive() -> dict[str, Any]:
                if len(parts) == 1:
                    held_back.release()
                    await go.wait()
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

            async def send(message: dict[str, Any]) -> None:
                sent.append(message)

            await app({**SCOPE}, receive, send)
            return int(sent[0]["status"])

        uploads = []
        for _ in range(6):
            uploads.append(asyncio.create_task(upload()))
            await held_back.acquire()
        answered = await ask(app, "/v1/predict", b'{"inputs": ["' + b"a" * 80 + b'"]}')
        ready = await ask(app, "/ready")
        go.set()
        return await asyncio.gather(*uploads), answered, ready

    statuses, answered, ready = conversation(texts(most_bytes=100), talk)
    assert (answered.status, ready.status) == (200, 200)
    assert statuses == [429] * 3 + [200] * 3


def test_it_is_not_ready_while_bodies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while all that have come are being read."""
    import threading

    from hydrasurgeon.serving import inputs

    go, begun = threading.Event(), threading.Semaphore(0)
    parse_json = inputs.parse_json

    def slow(*given: Any, **options: Any) -> Any:
        begun.release()
        go.wait(30)
        return parse_json(*given, **options)

    monkeypatch.setattr(inputs, "TOGETHER", 0)
    monkeypatch.setattr(inputs, "parse_json", slow)
    body = b'{"inputs": ["' + b"a" * 80 + b'"]}'

    async def talk(app: Any) -> tuple[Reply, Reply, Reply, list[Reply]]:
        asked = [asyncio.create_task(ask(app, "/v1/predict", body)) for _ in range(4)]
        for _ in asked:
            await asyncio.to_thread(begun.acquire)
        refused, ready = await ask(app, "/v1/predict", body), await ask(app, "/ready")
        go.set()
        answered = [await each for each in asked]
        return refused, ready, await ask(app, "/ready"), answered

    refused, ready, again, answered = conversation(texts(most_bytes=100), talk)
    assert (refused.status, ready.status, again.status) == (429, 503, 200)
    assert [reply.status for reply in answered] == [200] * 4


@pytest.mark.parametrize(
    "host", ["h/health?", "h/health#", "a@b/health?", "/ready?x=", "[/health?"]
)
def test_a_token_is_asked_for_whatever_the_host_header_says(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older Starlettes make `request.url` of it, as here."""
    from starlette.datastructures import URL
    from starlette.requests import Request

    monkeypatch.setattr(Request, "url", URL("http://h/health"))

    async def talk(app: Any) -> list[Reply]:
        named = {"host": host}
        body = b'{"inputs": ["a"]}'
        right = {**named, "authorization": "Bearer t"}
        return [
            await ask(app, "/v1/predict", body, **named),
            await ask(app, "/v2/models/m/infer", body, **named),
            await ask(app, "/health", **named),
            await ask(app, "/v1/predict", body, **right),
        ]

    replies = conversation(texts(token="t"), talk)
    assert [reply.status for reply in replies] == [401, 401, 200, 200]
    assert [reply.headers.get("www-authenticate") for reply in replies[:2]] == ["Bearer", "Bearer"]
    assert "error" in replies[1].body


def test_requests_that_come_together_run_together_and_more_than_may_wait_are_refused() -> None:
    import threading

    sizes, go = [], threading.Event()

    def answer(samples: list[Any]) -> list[Any]:
        go.wait(30)
        sizes.append(len(samples))
        return [row(name, sample) for name, sample, _ in samples]

    def body(*names: str) -> bytes:
        return json.dumps({"inputs": names}).encode()

    async def talk(app: Any) -> list[Reply]:
        first = asyncio.create_task(ask(app, "/v1/predict", body("a")))
        await asyncio.sleep(0.05)  # it runs alone
        others = [
            asyncio.create_task(ask(app, "/v1/predict", body(f"{i}", f"{i}!"))) for i in range(3)
        ]
        await asyncio.sleep(0.05)
        refused = [await ask(app, "/v1/predict", body("b", "c")), await ask(app, "/ready")]
        fits = asyncio.create_task(ask(app, "/v1/predict", body("b")))
        await asyncio.sleep(0.05)
        full = await ask(app, "/ready")
        go.set()
        answered = [await task for task in (first, *others, fits)]
        return [*refused, full, await ask(app, "/ready"), await ask(app, "/metrics"), *answered]

    refused, ready, full, again, metrics, *answered = conversation(texts(answer), talk)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert [reply.status for reply in (ready, full, again)] == [200, 503, 200]
    names = [[each["label"] for each in reply.body["answers"]] for reply in answered]
    assert names == [["a"], ["0", "0!"], ["1", "1!"], ["2", "2!"], ["b"]]
    assert sizes == [1, 4, 3]
    assert 'hydrasurgeon_requests_total{status="429"} 1.0' in metrics.body
    assert 'hydrasurgeon_requests_total{status="200"} 5.0' in metrics.body
    assert "hydrasurgeon_waiting 0.0" in metrics.body


def test_those_who_wait_hear_of_a_failure() -> None:
    async def talk(app: Any) -> tuple[Reply, Reply]:
        return await ask(app, "/v1/predict", b'{"inputs": ["a", "b"]}'), await ask(app, "/health")

    reply, health = conversation(texts(lambda samples: [1 / 0]), talk)
    assert (reply.status, reply.body) == (500, {"detail": "the model failed: division by zero"})
    assert (health.status, health.body) == (200, {"status": "ok"})


def served(
    path: Path, talk: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, Served]:
    """The whole stage, asked in place of listening."""
    import uvicorn

    replies: list[Any] = []
    monkeypatch.setattr(
        uvicorn.Server,
        "run",
        lambda server, sockets: replies.append(conversation(server.config.app, talk)),
    )
    result = serve(path, port=0, device="cpu", **options)
    return replies[0], result


def test_a_number_that_json_has_no_word_for_is_the_servers_fault() -> None:
    """Nothing of it is sent."""

    def infinite(samples: list[Any]) -> list[Any]:
        return [{**row(name, sample), "total": float("inf")} for name, sample, _ in samples]

    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    body = json.dumps({"inputs": [tensor]}).encode()
    reply = conversation(texts(infinite), lambda app: ask(app, "/v2/models/m/infer", body))
    assert reply.status == 500
    assert reply.body["error"].startswith("the model failed: Out of range float values")


def test_the_description_is_made_once_and_needs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(app: Any) -> list[Reply]:
        monkeypatch.setattr(app, "openapi", lambda: pytest.fail("it is made again"))
        refused = await ask(app, "/metrics")
        return [refused, *[await ask(app, "/openapi.json") for _ in range(2)]]

    refused, first, again = conversation(texts(token="t"), talk)
    assert refused.status == 401
    assert (first.status, first.headers["content-type"]) == (200, JSON)
    assert {"/v1/predict", "/v2/models/{name}/infer", "/health"} <= {*first.body["paths"]}
    assert first == again


def test_answers_are_those_of_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    data = family.data(tmp_path, rows=60)
    path = hs.calibrate(
        tmp_path / "source", data=data, ood_score="mds", coverage=0.6, out=tmp_path / "c"
    ).path
    lines: list[str] = []
    hs.predict(path, data=data, each=lines.append, device="cpu", top=2, batch_size=60)
    pictures = []
    for pixels in np.load(data)["images"]:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        pictures.append(buffer.getvalue())
    bad = [
        json.dumps({"inputs": [base64.b64encode(each).decode()]}).encode()
        for each in (png(1, 20_000), b"GIF89a")
    ]

    async def talk(app: Any) -> list[Reply]:
        body = json.dumps(
            {"inputs": [base64.b64encode(each).decode() for each in pictures]}
        ).encode()
        refused = [await ask(app, "/v1/predict", each) for each in (*bad, b'{"inputs": ["@"]}')]
        asked = [
            await ask(app, "/v1/predict", body),
            await ask(app, "/v1/predict", body),
        ]
        return [*asked, *refused, await ask(app, "/metrics"), await ask(app, "/openapi.json")]

    options = {"top": 2, "answers": tmp_path / "answers.jsonl", "batch_size": 60}
    (first, again, *refused, metrics, openapi), result = served(path, talk, monkeypatch, **options)
    expected = [json.loads(line) for line in lines]
    replied = [*first.body["answers"], *again.body["answers"]]
    # Without an id of its own, an input is known by the key of its answer, here and in the file.
    keys = [row.pop("key") for row in replied]
    assert replied == expected * 2
    assert [reply.status for reply in refused] == [422, 422, 422]
    assert refused[1].body == {"detail": "inputs[0]: not a readable image"}
    kept = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [row.pop("key") for row in kept] == keys
    assert len({*keys}) == len(kept)
    assert kept == expected * 2
    assert result.inputs == 120
    unfamiliar = sum(each["answer"] == "unfamiliar" for each in expected)
    assert f"hydrasurgeon_unfamiliar_total {2 * unfamiliar}.0" in metrics.body
    assert "hydrasurgeon_inputs_total 120.0" in metrics.body
    sums = dict(
        line.rsplit(" ", 1) for line in metrics.body.splitlines() if not line.startswith("#")
    )
    assert float(sums["hydrasurgeon_uncertainty_sum"]) == pytest.approx(
        2 * sum(each["total"] for each in expected)
    )
    described = openapi.body["paths"]["/v1/predict"]["post"]["responses"]["200"]["content"][JSON][
        "schema"
    ]
    assert [*described["properties"]["answers"]["items"]["properties"]] == [*expected[0]]


def test_a_string_without_an_end_is_looked_at_once() -> None:
    body = b'{"inputs":["' + b'\\"' * 500_000
    assert conversation(texts(), lambda app: ask(app, "/v1/predict", body)).status == 400
