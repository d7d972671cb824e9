"""Measure hydras on one GPU in eight minutes: DINOv2-small on six classes of CIFAR-10 at 224 pixels.

Three seeds are trained side by side, each by the commands of `tables.py`: three models, Taylor and circuit members, hydras, the mean and the Deep
Ensemble. Then latency is measured in one process, all models in turn: both data types, each batch size, with and without CUDA graphs.
Rows that --minutes leaves no time for are named and left out. Files stay in --work, so that a second run goes on.

    make paper-gpu SHARED=../shared
    python examples/paper/gpu.py --limit 64 --seeds 1 --batch 1 --work build/try    # a trial on the CPU
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from settings import GPU, Setting
from tables import (
    CIRC_AVG,
    ENSEMBLE,
    HYDRA_CIRC,
    HYDRA_TAYLOR,
    MEAN,
    SINGLE,
    TAYLOR,
    Impossible,
    Results,
    Table,
    Workshop,
    markdown,
    places_of,
    say,
)

import hydrasurgeon as hs
from hydrasurgeon.families import family_of
from hydrasurgeon.measuring.cost import InTurn, interleaved, machine

ROWS = (SINGLE, ENSEMBLE, HYDRA_CIRC, MEAN, HYDRA_TAYLOR, CIRC_AVG, TAYLOR)
QUALITY = Table(
    "DINOv2-small on six classes of CIFAR-10",
    ROWS,
    ("accuracy", "brier", "nll", "ece", "auroc_near", "auroc_far", "params", "macs_all_tokens"),
)
LATENCY_MINUTES = 1.5
"""Minutes that are kept for latency."""
SETTING = "cifar224"


def limited(setting: Setting, limit: int | None) -> Setting:
    """Return the setting with few samples and two steps, for a trial without a GPU."""
    if limit is None:
        return setting
    few = f"--limit {limit} --set steps=2 --set warmup=0"
    return replace(
        setting,
        training=f"{setting.training} {few}",
        tuning=f"{setting.tuning} {few}",
        limit=min(setting.limit, limit),
        evaluation=f"--limit {limit}",
    )


def measure_quality(shop: Workshop, seed: int, results: Results, lock: Any, end: float) -> None:
    """Make and evaluate the rows of one seed until the time is up."""
    for row in ROWS:
        keys = ("quality", SETTING, row.name, str(seed))
        if results.holds(*keys):
            continue
        if time.monotonic() > end:
            say(f"seed {seed}: no time for {row.name}")
            continue
        try:
            figures = shop.measure(QUALITY, row)
        except Impossible:
            figures = {}
        with lock:
            results.add(figures, *keys)


def with_graph(model: torch.nn.Module, inputs: Any) -> Callable[[], object]:
    """Capture one pass as a CUDA graph, and return its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(inputs)
    return graph.replay


def models_of(folder: Path) -> dict[str, torch.nn.Module]:
    """Load the models whose latency is compared; those that were not made are left out."""
    rows = {row.name: row.files.split() for row in ROWS}
    models: dict[str, torch.nn.Module] = {}
    for name in (SINGLE.name, CIRC_AVG.name, HYDRA_CIRC.name, HYDRA_TAYLOR.name, ENSEMBLE.name):
        files = [folder / f"{file}.safetensors" for file in rows[name]]
        if all(file.exists() for file in files):
            loaded = [hs.load(file) for file in files]
            models[name] = loaded[0] if len(loaded) == 1 else InTurn(loaded)
    return models


@torch.inference_mode()
def measure_latency(
    folder: Path, batches: Sequence[int], device: torch.device, runs: int
) -> list[dict[str, Any]]:
    """Time one pass of each model, in turn: milliseconds, and the ratio to the single model."""
    rows: list[dict[str, Any]] = []
    for dtype in (torch.float32, torch.bfloat16):
        models = {name: model.to(device, dtype).eval() for name, model in models_of(folder).items()}
        if SINGLE.name not in models:
            raise SystemExit(f"{folder}: holds no single-1.safetensors to compare with")
        facts = hs.load(folder / "single-1.safetensors").manifest.model
        for batch in batches:
            inputs = family_of(facts).example(facts, batch, device=device, dtype=dtype)
            passes: dict[str, Mapping[str, Callable[[], object]]] = {
                "off": {name: partial(model, inputs) for name, model in models.items()}
            }
            if device.type == "cuda":
                captured = {name: with_graph(model, inputs) for name, model in models.items()}
                passes["on"] = captured
            for graphs, calls in passes.items():
                seconds = interleaved(calls, runs=runs)
                for name, median in seconds.items():
                    rows.append(
                        {
                            "model": name,
                            "dtype": str(dtype).removeprefix("torch."),
                            "batch": batch,
                            "cuda_graphs": graphs,
                            "ms": 1000 * median,
                            "ratio": median / seconds[SINGLE.name],
                        }
                    )
    return rows


def latency_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format latencies: one row for each model, one column for each way to run it."""
    ways = list(dict.fromkeys((row["dtype"], row["batch"], row["cuda_graphs"]) for row in rows))
    heads = [f"{dtype} × {batch}{', graphs' * (graphs == 'on')}" for dtype, batch, graphs in ways]
    lines = [["ms (ratio)", *heads], ["---", *["---:"] * len(heads)]]
    for name in dict.fromkeys(row["model"] for row in rows):
        cells = [f"{row['ms']:.2f} ({row['ratio']:.2f})" for row in rows if row["model"] == name]
        lines.append([name, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="data and DINOv2")
    parser.add_argument("--place", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--work", type=Path, default=Path("build/paper-gpu"))
    parser.add_argument("--results", type=Path, help="[default: WORK/results.json]")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--limit", type=int, help="samples; two steps of each training")
    parser.add_argument("--batch", default="1,4,16,64")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    end = time.monotonic() + 60 * (options.minutes - LATENCY_MINUTES)
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results = Results(options.results or options.work / "results.json")
    setting, places, lock = (
        limited(GPU[SETTING], options.limit),
        places_of(options),
        threading.Lock(),
    )
    with ThreadPoolExecutor(options.seeds) as pool:
        waiting = []
        for seed in range(options.seeds):
            folder = options.work / SETTING / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            shop = Workshop(setting, seed, folder, places, dry=False)
            waiting.append(pool.submit(measure_quality, shop, seed, results, lock, end))
        for future in waiting:
            future.result()
    batches = [int(batch) for batch in options.batch.split(",")]
    rows = measure_latency(options.work / SETTING / "0", batches, device, options.runs)
    everything = results.read()
    everything |= {"machine": machine(device), "latency": rows, "limit": options.limit}
    results.path.write_text(json.dumps(everything, indent=1) + "\n")
    say(f"\n{markdown(QUALITY, everything.get('quality', {}))}\n\n{latency_table(rows)}")


if __name__ == "__main__":
    main()
