"""examples/serve: a server process, asked by many clients at once over loopback."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_families import FAMILIES
from tiny_members import KEPTS, member

import hydrasurgeon as hs

pytestmark = [
    pytest.mark.slow,
    *(
        pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"the extra serve is missing: {name}")
        for name in ("fastapi", "uvicorn", "prometheus_client")
    ),
]
SERVER = Path(__file__).parents[2] / "examples" / "serve" / "server.py"
ROOT = SERVER.parents[2]


@contextmanager
def serving(path: Path, *options: str) -> Iterator[str]:
    """The address of a server of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen([sys.executable, str(SERVER), str(path), "--port", str(port), *options], env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/metrics", timeout=5).read()
                break
            except OSError:
                assert server.poll() is None, "the server ended"
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def post(address: str, content: bytes, kind: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"{address}/predict", content, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def metrics(address: str) -> dict[str, float]:
    text = urllib.request.urlopen(f"{address}/metrics", timeout=10).read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def calibrated(name: str, folder: Path) -> tuple[Path, str, float]:
    family = FAMILIES[name]
    family.write(folder / "source")
    data = family.data(folder, rows=96)
    made = hs.calibrate(folder / "source", data=data, ood_score="energy", out=folder / "c.safetensors")
    assert made.manifest.decision is not None
    return made.path, data, made.manifest.decision.ood.threshold


def expected_rows(path: Path, data: str) -> list[dict[str, Any]]:
    lines: list[str] = []
    from hydrasurgeon.stages.predict import predict

    predict(path, data=data, each=lines.append, device="cpu")
    return [json.loads(line) for line in lines]


def check(row: dict[str, Any], right: dict[str, Any], threshold: float) -> None:
    # Rounding may decide about the sample that the threshold was taken from.
    near = abs(right["ood_score"] - threshold) < 1e-4
    for name in ("label", "members_run", *(() if near else ("unfamiliar", "answer"))):
        assert row[name] == right[name]
    assert sorted(map(str, row["set"])) == sorted(map(str, right["set"]))
    for name in ("probability", "total", "ood_score"):
        assert row[name] == pytest.approx(right[name], rel=1e-4, abs=1e-4)


def test_images_under_load(tmp_path: Path) -> None:
    path, data, threshold = calibrated("timm ViT", tmp_path)
    rows = expected_rows(path, data)
    pixels = np.load(data)["images"]
    pictures = []
    for each in pixels:
        buffer = io.BytesIO()
        Image.fromarray(each).save(buffer, "PNG")
        pictures.append(buffer.getvalue())
    with serving(path, "--wait", "0.05") as address:
        with ThreadPoolExecutor(16) as clients:
            answers = list(clients.map(lambda picture: post(address, picture, "image/png"), pictures * 3))
        assert {status for status, _ in answers} == {200}
        for (_, row), right in zip(answers, rows * 3, strict=True):
            check(row, right, threshold)
        seen = metrics(address)
        assert seen["hydra_rows_total"] == 3 * len(pixels)
        assert seen["hydra_ood_score_count"] == 3 * len(pixels)
        # Those that came together ran together.
        assert seen["hydra_batch_size_count"] < 3 * len(pixels) / 2
        counted = sum(value for name, value in seen.items() if name.startswith("hydra_answers_total"))
        assert counted == 3 * len(pixels)
        refuses_images(address, pictures[0])
        assert post(address, pictures[0], "image/png")[0] == 200
        assert metrics(address)['hydra_answers_total{answer="refused 415"}'] == 2


def refuses_images(address: str, picture: bytes) -> None:
    assert post(address, b"no image at all", "image/png")[0] == 422
    assert post(address, picture[:60], "image/png")[0] == 422
    assert post(address, b"", "image/jpeg")[0] == 422
    assert post(address, picture, "text/html")[0] == 415
    assert post(address, b'{"text": "a film"}', "application/json")[0] == 415
    assert post(address, b"x" * (11 << 20), "image/png")[0] == 413
    assert post(address, png(Image.new("1", (10_000, 6_000))), "image/png")[0] == 413


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_of_a_cascade_rows_that_go_on_are_counted(tmp_path: Path) -> None:
    """By what `decide` says of each row, however rows fall into batches; and pictures of one pixel are answered."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    parts = [member(tmp_path / "source", family, rows, tmp_path / f"m{i}.safetensors") for i, rows in enumerate(KEPTS)]
    hydra = hs.fuse(parts, out=tmp_path / "h.safetensors").path
    data = family.data(tmp_path, rows=160)
    path = hs.calibrate(
        hydra, data=data, ood_score="msp", cascade=True, budget=1.15, out=tmp_path / "c.safetensors"
    ).path
    rows = expected_rows(path, data)
    going = sum(row["members_run"] == 3 for row in rows)
    assert 0 < going < len(rows)
    pictures = [png(Image.fromarray(each)) for each in np.load(data)["images"]]
    with serving(path, "--wait", "0.02") as address:
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda picture: post(address, picture, "image/png"), pictures))
        assert {status for status, _ in answers} == {200}
        assert [row["members_run"] for _, row in answers] == [row["members_run"] for row in rows]
        assert [row["label"] for _, row in answers] == [row["label"] for row in rows]
        seen = metrics(address)
        assert (seen["hydra_rows_went_on_total"], seen["hydra_rows_total"]) == (going, len(rows))
        dot = Image.fromarray(np.full((1, 1, 3), 130, np.uint8))
        np.savez(tmp_path / "dot.npz", images=np.asarray(dot)[None])
        (right,) = expected_rows(path, str(tmp_path / "dot.npz"))
        status, row = post(address, png(dot), "image/png")
        assert (status, row["label"], row["members_run"]) == (200, right["label"], right["members_run"])


def test_texts_and_a_full_queue(tmp_path: Path) -> None:
    path, data, threshold = calibrated("BERT", tmp_path)
    rows = expected_rows(path, data)[:8]
    texts = [json.loads(line)["text"] for line in Path(data).read_text().splitlines()[:8]]
    bodies = [json.dumps({"text": text}).encode() for text in texts]
    with serving(path, "--queue", "1", "--batch", "1", "--wait", "0") as address:
        for body, right in zip(bodies, rows, strict=True):
            status, row = post(address, body, "application/json; charset=utf-8")
            assert status == 200
            check(row, right, threshold)
        for body in (b"{", b"[]", b'{"text": 3}', b'{"text": " "}', b'{"other": "x"}', b"[" * 100_000):
            assert post(address, body, "application/json")[0] == 422
        assert post(address, json.dumps({"text": "a " * 20_000}).encode(), "application/json")[0] == 413
        assert post(address, bodies[0], "image/png")[0] == 415
        with ThreadPoolExecutor(24) as clients:
            statuses = list(clients.map(lambda body: post(address, body, "application/json")[0], bodies * 25))
        # One may wait, one runs: who comes then is told to come again, and nobody is kept.
        assert set(statuses) <= {200, 503}
        assert 200 in statuses
        assert 503 in statuses
        assert post(address, bodies[0], "application/json")[0] == 200
