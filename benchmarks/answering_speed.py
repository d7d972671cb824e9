"""The engines beside each other: rows a second of `predict`, and one client's median at `serve`, compared with the
graph's own time.

A calibrated model of texts, one thread; every figure is a median of runs in turn. Rows are per second that the process
computed. Writes benchmarks/results/answering.json, from which tools/render_docs.py makes a table of
docs/reference/benchmarks.md.

    OMP_NUM_THREADS=1 python benchmarks/answering_speed.py READY --data TEXTS [--rows 512] [--runs 5]
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import machine

RESULTS = Path(__file__).parent / "results" / "answering.json"
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")
"""What a processor may have that 8 bits profit from."""
ENGINES = ("torch", "onnx", "int8")


def flags() -> list[str]:
    """Those of this processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    there = next((line.split() for line in lines if line.startswith("flags")), [])
    return [flag for flag in FLAGS if flag in there]


class Server:
    """`serve` by one engine, and one client."""

    def __init__(self, checkpoint: str, engine: str) -> None:
        line = [sys.executable, "-m", "hydrasurgeon", "serve", checkpoint, "--engine", engine]
        self.process = subprocess.Popen(
            [*line, "--port", "0", "--device", "cpu"], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        said = next(line for line in self.process.stderr if " answers at " in line)
        port = int(said.rpartition(":")[2].partition("/")[0])
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, text: str) -> None:
        body = json.dumps({"inputs": [text]})
        self.connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
        answer = json.loads(self.connection.getresponse().read())
        assert len(answer["answers"]) == 1, answer

    def stop(self) -> None:
        self.connection.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ready")
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    import torch

    from hydrasurgeon.data import open_data
    from hydrasurgeon.engines import engine_of, open_any
    from hydrasurgeon.options.shared import Run
    from hydrasurgeon.runtime.answering import Answering

    torch.set_num_threads(1)
    opened = open_any(arguments.ready)
    models = {name: engine_of(opened, engine=name, device="cpu") for name in ENGINES}
    samples = open_data(arguments.data, limit=arguments.rows, seed=0)
    texts: list[Any] = [samples.read(i) for i in range(min(50, len(samples)))]

    def predict(name: str) -> None:
        model = models[name]
        for piece in Answering([model], samples, Run(), features=model.reads):
            begun = [{"id": i} for i in piece.index.tolist()]
            model.rows(model.decided(piece.parts, False), begun, 5)

    transform: Any = models["torch"].transform
    inputs = [transform.collate([transform(text)]) for text in texts]

    def own(name: str) -> float:
        """Median of one text's time in the engine."""
        taken = []
        for each in inputs:
            start = time.perf_counter()
            models[name].ask(each, features=models[name].reads)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    computed: dict[str, list[float]] = {name: [] for name in ENGINES}
    for run in range(arguments.runs + 1):
        for name in ENGINES:
            start = time.process_time()
            predict(name)
            if run:
                computed[name].append(time.process_time() - start)
    seconds = {name: statistics.median(taken) for name, taken in computed.items()}
    servers = {name: Server(arguments.ready, name) for name in ENGINES}
    asked: dict[str, list[float]] = {name: [] for name in ENGINES}
    alone: dict[str, list[float]] = {name: [] for name in ENGINES}
    for run in range(arguments.runs + 1):
        for name, server in servers.items():
            taken = []
            for text in texts:
                start = time.perf_counter()
                server.ask(text)
                taken.append(time.perf_counter() - start)
            server.connection.close()  # servers close what is idle while others have their turn
            own_time = own(name)
            if run:  # the first warms up
                asked[name].append(statistics.median(taken))
                alone[name].append(own_time)
    for server in servers.values():
        server.stop()
    rows = {
        name: {
            "rows_per_second": round(len(samples) / seconds[name], 1),
            "times_torch": round(seconds["torch"] / seconds[name], 2),
            "own_ms": round(1000 * statistics.median(alone[name]), 2),
            "client_ms": round(1000 * statistics.median(asked[name]), 2),
        }
        for name in ENGINES
    }
    about = {**machine(), "flags": flags(), "onnxruntime": version("onnxruntime"), "threads": 1}
    settings = {"rows": len(samples), "runs": arguments.runs}
    results = {"machine": about, "settings": settings, "engines": rows}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
