"""All metrics of stored predictions of 50,000 samples, 1,000 classes and 3 members, and the report of them: seconds and
memory.

    python benchmarks/report_memory.py            about three minutes and 3 GB of memory; run it alone

Each figure is of a process of its own that imports everything anew: `eval --predictions-in F --json`, and the same with
`--html`
beside it, each first every other time, after a first run of each that does not count; the median of their differences
is what the report takes. Predictions
are drawn, with OOD data of 10,000 samples, in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "report.json"
METRICS_S, METRICS_GB, REPORT_S = 20, 3, 10
"""The targets."""


def write(path: Path, *, rows: int, foreign: int, members: int, classes: int) -> None:
    """Logits in which the truth stands out, and members that differ; of OOD samples nothing does."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (rows,), generator=generator)
    logits = torch.randn(rows, members, classes, generator=generator)
    sure = 3 + 3 * torch.rand(rows, 1, generator=generator)
    logits[torch.arange(rows), :, labels] += sure
    outside = torch.randn(foreign, members, classes, generator=generator)
    save_file({"logits": logits, "labels": labels, "ood.noise.logits": outside}, path)


CODE = """
import resource, sys
from pathlib import Path
from hydrasurgeon.cli.app import run
code = run(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
status = Path("/proc/self/status")
if status.exists():  # what Linux tells by getrusage is the parent's where that had more
    peak = 1024 * int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])
print(used.ru_utime + used.ru_stime, peak, file=sys.stderr)
sys.exit(code)
"""
"""The command, and what it took."""


def measured(arguments: list[str]) -> dict[str, float]:
    """Seconds, processor time and peak memory of one command."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    seconds = time.perf_counter() - started
    cpu, peak = done.stderr.split()[-2:]
    return {"seconds": seconds, "cpu_seconds": float(cpu), "peak_gb": int(peak) / 1e9}


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--foreign", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    sizes = {key: getattr(options, key) for key in ("rows", "foreign", "members", "classes")}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "p.safetensors"
        write(file, **sizes)
        command = [
            "eval",
            "--predictions-in",
            str(file),
            "--force",
            "--quiet",
            "--json",
            f"{folder}/r.json",
        ]
        page = Path(folder) / "r.html"
        runs: dict[str, list[dict[str, float]]] = {"metrics": [], "with report": []}
        commands = {"metrics": command, "with report": [*command, "--html", str(page)]}
        for turn in range(1 + options.repeats):
            # Each comes first every other time: whoever does may have to fetch the file from the disk.
            for name in (list(commands), list(commands)[::-1])[turn % 2]:
                run = measured(commands[name])
                if turn > 0:
                    runs[name].append(run)
        middle = {
            name: {key: statistics.median(run[key] for run in each) for key in each[0]}
            for name, each in runs.items()
        }
        found: dict[str, Any] = {
            "setup": {
                "processor": processor(),
                "cores": os.cpu_count(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            **sizes,
            "repeats": options.repeats,
            "metrics": middle["metrics"],
            "with_report": middle["with report"],
            "report_seconds": statistics.median(
                after["seconds"] - before["seconds"]
                for before, after in zip(*runs.values(), strict=True)
            ),
            "page_bytes": page.stat().st_size,
            "targets": {
                "metrics_seconds": METRICS_S,
                "metrics_gb": METRICS_GB,
                "report_seconds": REPORT_S,
            },
        }
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
