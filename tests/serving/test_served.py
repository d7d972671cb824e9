"""serve: a process, asked by many clients at once over loopback, and stopped while it answers."""

from __future__ import annotations

import base64
import http.client
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image
from tiny_families import FAMILIES
from tiny_members import members_of, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.stages.serve import PACKAGES

pytestmark = [
    pytest.mark.slow,
    *(
        pytest.mark.skipif(
            importlib.util.find_spec(name) is None, reason=f"the extra serve is missing: {name}"
        )
        for name in PACKAGES
    ),
]
ROOT = Path(__file__).parents[2]


@contextmanager
def serving(path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server, and its port."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [
        sys.executable,
        "-m",
        "hydrasurgeon",
        "serve",
        str(path),
        "--port",
        "0",
        "--device",
        "cpu",
        *options,
    ]
    server = subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert server.stderr is not None
    try:
        for said in server.stderr:
            if " answers at http://127.0.0.1:" in said:
                yield server, int(said.rpartition(":")[2].partition("/")[0])
                break
        else:
            pytest.fail("the server ended")
    finally:
        server.kill()
        server.communicate(timeout=30)


def post(port: int, *inputs: Any, kind: str = "application/json") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(
            "POST", "/v1/predict", json.dumps({"inputs": inputs}), {"Content-Type": kind}
        )
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def metrics(port: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = [line.rpartition(" ") for line in connection.getresponse().read().decode().splitlines()]
    connection.close()
    return {name: float(value) for name, _, value in lines if not name.startswith("#")}


def encoded(pixels: Any) -> str:
    """A picture in base64."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def calibrated(name: str, folder: Path) -> tuple[Path, str, float]:
    family = FAMILIES[name]
    family.write(folder / "source")
    data = family.data(folder, rows=96)
    made = hs.calibrate(
        folder / "source", data=data, ood_score="energy", out=folder / "c.safetensors"
    )
    assert made.manifest.decision is not None
    return made.path, data, made.manifest.decision.ood.threshold


def expected_rows(path: Path, data: str) -> list[dict[str, Any]]:
    lines: list[str] = []
    hs.predict(path, data=data, each=lines.append, device="cpu")
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
    rows, pixels = expected_rows(path, data), np.load(data)["images"]
    with serving(path, "--wait", "50") as (_, port):
        with ThreadPoolExecutor(16) as clients:
            replies = list(
                clients.map(lambda picture: post(port, picture), [*map(encoded, pixels)] * 3)
            )
        assert {status for status, _ in replies} == {200}
        for (_, reply), right in zip(replies, rows * 3, strict=True):
            check(reply["answers"][0], right, threshold)
        counted = metrics(port)
        assert counted["hydrasurgeon_inputs_total"] == 3 * len(pixels)
        assert sum(n for name, n in counted.items() if "predicted_total" in name) == 3 * len(pixels)
        # Those that came together ran together.
        assert counted["hydrasurgeon_batch_size_count"] < 3 * len(pixels) / 2
        # An answer comes though the whole body was not wanted.
        assert post(port, "x" * (33 << 20))[0] == 413
        assert post(port, "x" * (20 << 20), kind="text/html")[0] == 415
        assert metrics(port)['hydrasurgeon_requests_total{status="415"}'] == 1


def test_of_a_cascade_rows_that_go_on_are_counted(tmp_path: Path) -> None:
    """By what `decide` says of each row, however rows fall into batches."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    parts = tuned_of(members_of(tmp_path / "source", family, tmp_path), tmp_path)
    hydra = hs.fuse(parts, out=tmp_path / "h.safetensors", mlp="separate").path
    data = family.data(tmp_path, rows=160)
    said = np.array([row["label"] for row in hs.predict(hydra, data=data, device="cpu")])
    # The hydra is right of four fifths, and its first member less often.
    labels = np.where(np.arange(160) % 5 > 0, said, np.random.default_rng(0).integers(3, size=160))
    np.savez(data, images=np.load(data)["images"], labels=labels)
    path = hs.calibrate(
        hydra, data=data, ood_score="msp", cascade=True, out=tmp_path / "c.safetensors"
    ).path
    rows = expected_rows(path, data)
    going = sum(row["members_run"] == 3 for row in rows)
    assert 0 < going < len(rows)
    pictures = [encoded(each) for each in np.load(data)["images"]]
    with serving(path, "--wait", "20", "--cascade") as (_, port):
        with ThreadPoolExecutor(8) as clients:
            replies = list(clients.map(lambda picture: post(port, picture), pictures))
        answers = [reply["answers"][0] for _, reply in replies]
        assert [row["members_run"] for row in answers] == [row["members_run"] for row in rows]
        assert [row["label"] for row in answers] == [row["label"] for row in rows]
        counted = metrics(port)
        assert (counted["hydrasurgeon_went_on_total"], counted["hydrasurgeon_inputs_total"]) == (
            going,
            len(rows),
        )


def test_a_stop_answers_what_was_taken(tmp_path: Path) -> None:
    """SIGTERM while requests wait for a pass that waits for more."""
    path, _, _ = calibrated("BERT", tmp_path)
    with serving(path, "--wait", "1500", "--answers", str(tmp_path / "a.jsonl")) as (server, port):
        with ThreadPoolExecutor(8) as clients:
            replies = [clients.submit(post, port, "a dull film", f"film {i}") for i in range(8)]
            while metrics(port)["hydrasurgeon_waiting"] < 16:
                time.sleep(0.05)
            server.send_signal(signal.SIGTERM)
            assert [reply.result()[0] for reply in replies] == [200] * 8
        assert server.stdout is not None
        assert (
            server.stdout.read()
            == f"stopped: 16 inputs answered; answers are in {tmp_path / 'a.jsonl'}\n"
        )
        assert server.wait(30) == 143
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 16


def post_again(port: int, sent: Any) -> tuple[int, dict[str, Any]]:
    """As clients do it: where the connection breaks they ask again."""
    for _ in range(3):
        with suppress(OSError, http.client.HTTPException):
            return post(port, sent)
    pytest.fail("nobody answers")


def workers_of(server: subprocess.Popen[str]) -> list[int]:
    children = [child for child in psutil.Process(server.pid).children() if runs(child.pid)]
    return [each.pid for each in children if any("spawn_main" in word for word in each.cmdline())]


def runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_worker_is_killed(tmp_path: Path) -> None:
    """Every request is answered rightly and kept, another process takes its place, and a stop ends all."""
    path, data, _ = calibrated("BERT", tmp_path)
    rows = expected_rows(path, data)
    texts = [json.loads(line)["text"] for line in Path(data).read_text().splitlines()]
    sent = [{"id": at, "text": text} for at, text in enumerate(texts * 5)]
    kept = tmp_path / "a.jsonl"
    with serving(path, "--workers", "2", "--answers", str(kept)) as (server, port):
        first, second = workers_of(server)
        with ThreadPoolExecutor(8) as clients:
            replies = [clients.submit(post_again, port, each) for each in sent]
            replies[50].result()
            os.kill(first, signal.SIGKILL)
            for each, reply, right in zip(sent, replies, rows * 5, strict=True):
                status, answer = reply.result()
                (row,) = answer["answers"]
                assert (status, row["id"]) == (200, each["id"])
                assert dict(row["top"]) == pytest.approx(dict(right["top"]), abs=1e-4)
        wait_for(lambda: len(workers_of(server)) == 2)
        replaced = workers_of(server)
        assert second in replaced
        assert first not in replaced
        # What the dead one counted stays; an answer that it could not send was counted twice.
        counted = metrics(port)["hydrasurgeon_inputs_total"]
        assert len(sent) <= counted <= len(sent) + 8
        server.send_signal(signal.SIGTERM)
        assert server.wait(300) == 143
        assert not any(map(runs, (second, *replaced)))
        assert server.stdout is not None
        assert server.stdout.read().startswith(f"stopped: {counted:.0f} inputs answered; ")
    ids = Counter(json.loads(line)["id"] for line in kept.read_text().splitlines())
    assert set(ids) == set(range(len(sent)))
    assert ids.total() <= len(sent) + 8


def test_no_worker_answers_by_another_model_or_outlives_its_supervisor(tmp_path: Path) -> None:
    path, data, threshold = calibrated("BERT", tmp_path)
    other = hs.calibrate(
        path, data=data, ood_score="energy", id_flagged=0.5, out=tmp_path / "o.safetensors"
    ).path
    right = expected_rows(path, data)[0]
    text = json.loads(Path(data).read_text().splitlines()[0])["text"]
    with serving(path, "--workers", "2") as (server, port):
        first, second = workers_of(server)
        other.replace(path)
        other.with_suffix(".heads.json").replace(path.with_suffix(".heads.json"))
        os.kill(first, signal.SIGKILL)
        assert server.stderr is not None
        while f"{path}: has changed since the server started" not in server.stderr.readline():
            assert server.poll() is None
        for _ in range(5):
            check(post_again(port, text)[1]["answers"][0], right, threshold)
        every = {second, *workers_of(server)}
        server.kill()
        wait_for(lambda: not any(map(runs, every)))
