"""`serve` under load: 64 clients over loopback, every answer compared with what `predict` says of the same picture, while
one of two workers is killed.

The model is the demo's hydra of three, calibrated with a cascade. Clients ask one picture at a time, over a connection
that they keep, as fast as answers come, and ask again where the connection broke; at half of the time a worker is
killed (SIGKILL). Every request is counted by what became of it, and looked up in the file that `--answers` keeps.
Before and after, for a tenth of the time each, one process answers the same pictures one by one without a server:
decode, decide, make the row. So does a plain loop over the exported graph (all members, no rows) in onnxruntime. One
worker serves for a tenth of the time, too. Writes benchmarks/results/serve.json, from which tools/render_docs.py makes a
passage of docs/guide/serving.md.

    python benchmarks/serve_load.py hydra-demo/hydra [--seconds 600] [--clients 64] [--workers 2] [-o F.json]
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil
from harness import hydrasurgeon, machine

RESULTS = Path(__file__).parent / "results" / "serve.json"
NUMBERS = {"probability": 1e-4, "total": 1e-4, "ood_score": 2e-3}
"""Numbers of an answer and how far they may differ: `predict` itself gives others in batches of 1 and of 64, for float32
rounds; OOD scores, distances in many dimensions, by up to 7e-4."""


MOST_TRIES = 5
"""How often a client sends a request whose connection breaks, before it counts as lost."""


def pictures_of_demo(count: int) -> list[bytes]:
    """The demo's test pictures, in base64."""
    import numpy as np
    from PIL import Image

    made = []
    for pixels in np.load(str(files("hydrasurgeon") / "demo" / "test.npz"))["images"][:count]:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        made.append(base64.b64encode(buffer.getvalue()))
    return made


def one_by_one(answer: Callable[[bytes], Any], encoded: list[bytes], seconds: float) -> list[float]:
    """Latencies of one process that answers one picture after another."""
    pictures, latencies = [base64.b64decode(each) for each in encoded], []
    end, at = time.perf_counter() + seconds, -20
    while (start := time.perf_counter()) < end or at < 1:
        answer(pictures[at % len(pictures)])
        at += 1
        if at > 0:  # the first ones warm it up
            latencies.append(time.perf_counter() - start)
    return latencies


def alone(ready: Path) -> Callable[[bytes], Any]:
    """What `serve` does with a picture, without a server."""
    import hydrasurgeon as hs
    from hydrasurgeon.data.images import decode
    from hydrasurgeon.problems.base import rows_of

    model = hs.load(ready, device="cpu")
    names = model.manifest.model.labels

    def answer(picture: bytes) -> str:
        decided = model.decide(model.transform(decode(picture, "picture"))[None])
        return json.dumps(rows_of(decided, [{"id": 0}], names=names, top=5))

    return answer


def plain(ready: Path, folder: Path) -> Callable[[bytes], Any]:
    """What a loop over the graph in onnxruntime does with a picture."""
    import onnxruntime

    import hydrasurgeon as hs
    from hydrasurgeon.data.images import decode
    from hydrasurgeon.stages.export import export

    transform = hs.load(ready, device="cpu").transform
    graph = folder / "plain.onnx"
    export(ready, format="onnx", out=graph)
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def answer(picture: bytes) -> Any:
        return session.run(None, {name: transform(decode(picture, "picture"))[None].numpy()})

    return answer


def wrong(answer: dict[str, Any], right: dict[str, Any], threshold: float) -> bool:
    """Whether an answer is not the one that `predict` gives."""
    close = all(
        abs(answer[name] - right[name]) <= near * max(1, abs(right[name]))
        for name, near in NUMBERS.items()
    )
    # Whether it is flagged may depend on rounding as near to the threshold.
    sure = abs(right["ood_score"] - threshold) > NUMBERS["ood_score"] * max(1, abs(threshold))
    same = ["label", "members_run"] + ["answer", "unfamiliar"] * sure
    return not close or any(answer[name] != right[name] for name in same)


class Client(threading.Thread):
    """Asks for its pictures in turn, and keeps what became of each request."""

    def __init__(self, port: int, number: int, load: Load) -> None:
        super().__init__()
        self.port, self.number, self.load = port, number, load
        self.latencies: list[float] = []
        self.answered: list[str] = []
        """The ids of requests that were answered."""
        self.sent = self.lost = self.wrong = self.refused = self.retried = 0

    def run(self) -> None:
        load, at = self.load, self.number
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        while time.perf_counter() < load.end:
            index, name = at % len(load.pictures), f"r{at}"
            at += load.clients
            body = b'{"inputs": [{"id": "%s", "image": "%s"}]}' % (
                name.encode(),
                load.pictures[index],
            )
            start = time.perf_counter()
            self.sent += 1
            status, content = self.reply(connection, body)
            if status is None:
                self.lost += 1
                continue
            self.latencies.append(time.perf_counter() - start)
            if status != 200:
                self.refused += 1
                continue
            self.answered.append(name)
            (answer,) = json.loads(content)["answers"]
            right = load.rows[index]
            self.wrong += answer["id"] != name or wrong(answer, right, load.threshold)
        connection.close()

    def reply(
        self, connection: http.client.HTTPConnection, body: bytes
    ) -> tuple[int | None, bytes]:
        """Status and body; where the connection breaks it asks again."""
        for attempt in range(MOST_TRIES):
            self.retried += attempt > 0
            try:
                connection.request(
                    "POST", "/v1/predict", body, {"Content-Type": "application/json"}
                )
                response = connection.getresponse()
                return response.status, response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
        return None, b""


class Load:
    """What clients ask, what is right, and until when."""

    def __init__(
        self, pictures: list[bytes], rows: list[dict[str, Any]], threshold: float, clients: int
    ) -> None:
        self.pictures, self.rows, self.threshold, self.clients = pictures, rows, threshold, clients
        self.end = 0.0


def calibrated(checkpoint: Path, folder: Path) -> tuple[Path, float]:
    """The demo's hydra with a decision state, unless it has one already; and its OOD threshold."""
    import hydrasurgeon as hs
    from hydrasurgeon.checkpoints.reading import open_checkpoint

    opened = open_checkpoint(checkpoint)
    path, decision = opened.path, opened.manifest.decision
    if decision is None:
        made = hs.calibrate(
            checkpoint,
            data="demo:val",
            fit_data="demo:train",
            ood=["demo:textures"],
            risk=0.08,
            cascade=True,
            budget=1.2,
            device="cpu",
            out=folder / "ready.safetensors",
        )
        path, decision = made.path, made.decision
    if decision.cascade is None:
        return path, decision.ood.threshold
    return path, decision.cascade.ood_threshold


def served(ready: Path, load: Load, seconds: float, workers: int) -> dict[str, Any]:
    """What a server made of so many clients, and whether it stopped well; of several workers one
    is killed at half of the time.
    """
    answers = ready.with_name(f"answers-{workers}.jsonl")
    line = hydrasurgeon("serve", str(ready), "--port", "0", "--device", "cpu")
    line += ["--workers", str(workers), "--answers", str(answers)]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    port = next(
        int(said.rpartition(":")[2].partition("/")[0])
        for said in server.stderr
        if " answers at " in said
    )
    start = time.perf_counter()
    load.end = start + seconds
    clients = [Client(port, number, load) for number in range(load.clients)]
    for client in clients:
        client.start()
    shares: list[list[int]] = []
    if workers > 1:
        time.sleep(seconds / 2)
        shares.append(shares_of(server.pid))
        os.kill(workers_of(server.pid)[0], signal.SIGKILL)
        time.sleep(0.45 * seconds)
        shares.append(shares_of(server.pid))
    for client in clients:
        client.join()
    wall = time.perf_counter() - start
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = [text.rpartition(" ") for text in connection.getresponse().read().decode().splitlines()]
    counted = {name: float(value) for name, _, value in lines if not name.startswith("#")}
    connection.close()
    at_end = workers_of(server.pid)
    server.send_signal(signal.SIGTERM)
    code = server.wait(60)
    latencies = [each for client in clients for each in client.latencies]
    tallies = {
        name: sum(getattr(client, name) for client in clients)
        for name in ("sent", "retried", "lost", "refused", "wrong")
    }
    kept = Counter(json.loads(text)["id"] for text in answers.read_text().splitlines())
    return {
        "workers": workers,
        **measured(latencies, wall),
        "worst_ms": 1000 * max(latencies),
        **tallies,
        "not_kept": sum(kept[name] == 0 for client in clients for name in client.answered),
        "kept_twice": sum(count > 1 for count in kept.values()),
        "counted": int(counted["hydrasurgeon_inputs_total"]),
        "went_on": int(counted["hydrasurgeon_went_on_total"]),
        "mean_batch": counted["hydrasurgeon_batch_size_sum"]
        / counted["hydrasurgeon_batch_size_count"],
        "connections": shares,
        "workers_at_end": len(at_end),
        "left_behind": sum(map(psutil.pid_exists, at_end)),
        "exit_code": code,
    }


def workers_of(server: int) -> list[int]:
    """The processes that answer, where there are several."""
    children = psutil.Process(server).children()
    return [each.pid for each in children if any("spawn_main" in word for word in each.cmdline())]


def shares_of(server: int) -> list[int]:
    """Connections that each worker has."""
    connections = [psutil.Process(pid).net_connections() for pid in workers_of(server)]
    return [sum(each.status == psutil.CONN_ESTABLISHED for each in some) for some in connections]


def measured(latencies: list[float], wall: float) -> dict[str, Any]:
    """Answers, answers a second, and percentiles of latency in milliseconds."""
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "answers": len(latencies),
        "per_second": len(latencies) / wall,
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="the demo's hydra, calibrated or not")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("-o", "--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()

    import hydrasurgeon as hs

    with tempfile.TemporaryDirectory() as name:
        ready, threshold = calibrated(arguments.checkpoint, Path(name))
        lines: list[str] = []
        hs.predict(ready, data="demo:test", each=lines.append, device="cpu")
        rows = [json.loads(line) for line in lines[: arguments.pictures]]
        pictures = pictures_of_demo(arguments.pictures)
        loops = {"sequential": alone(ready), "onnxruntime": plain(ready, Path(name))}
        load = Load(pictures, rows, threshold, arguments.clients)
        tenth = arguments.seconds / 10
        before = {each: one_by_one(loop, pictures, tenth) for each, loop in loops.items()}
        one = served(ready, load, tenth, 1)
        server = served(ready, load, arguments.seconds, arguments.workers)
        after = {each: one_by_one(loop, pictures, tenth) for each, loop in loops.items()}
    results = {
        "machine": machine(),
        "load_average": [round(each, 1) for each in os.getloadavg()],
        "clients": arguments.clients,
        "seconds": arguments.seconds,
        "pictures": arguments.pictures,
        "server": server,
        "one_worker": one,
        **{
            each: measured([*before[each], *after[each]], sum(before[each]) + sum(after[each]))
            for each in loops
        },
        "sequential_per_second": [
            len(each["sequential"]) / sum(each["sequential"]) for each in (before, after)
        ],
    }
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
