"""What training-free repair gives back: accuracy and NLL after pruning a third of the heads by taylor.

Scores come from one data set, calibration inputs (unlabelled, a random subset for each seed) from another, and
the figures from a third. Recovered is the share of what pruning cost that the repair gives back. Writes
benchmarks/results/compensation.json, under the model's name; other models' entries stay.

    python benchmarks/compensation.py
    python benchmarks/compensation.py --name minilm --checkpoint tuned/ --score-data val.jsonl --calibration train.jsonl --test test.jsonl

The MiniLM entry is all-MiniLM-L6-v2, tuned by `finetune --recipe sst2 --set epochs=1 --set lr=1e-4 --batch-size 32
--limit 5000` on movie-review sentences, with `--limit 500` here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from surgery import machine

import hydrasurgeon as hs

RESULTS = Path(__file__).parent / "results" / "compensation.json"
DEMO = Path(__file__).parents[1] / "hydrasurgeon" / "demo" / "backbone.safetensors"


def measured(checkpoint: str | Path, test: str) -> dict[str, float]:
    (found,) = hs.evaluate([checkpoint], data=test).report.results
    return {"accuracy": found.id.accuracy, "nll": found.id.nll}


def recovered(
    whole: dict[str, float], pruned: dict[str, float], repaired: dict[str, float]
) -> dict[str, float]:
    return {
        f"{what}_recovered": (repaired[what] - pruned[what]) / (whole[what] - pruned[what])
        for what in whole
    }


def selections(checkpoint: str, folder: Path, data: str) -> dict[str, dict[str, Any]]:
    """A third of all heads by their scores, and as near to a third as a whole number in each layer comes."""
    scored = hs.score(checkpoint, method="taylor", data=data, out=folder / "global.safetensors")
    tower = next(iter(scored.manifest.towers.values()))
    keep = tower.heads - round(tower.heads / 3)
    hs.score(checkpoint, method="taylor", data=data, keep=keep, out=folder / "layers.safetensors")
    third = tower.layers * tower.heads // 3
    return {
        f"remove {third}": {"checkpoint": folder / "global.safetensors", "remove": third},
        f"keep {keep}": {"checkpoint": folder / "layers.safetensors", "keep": keep},
    }


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    whole = measured(arguments.checkpoint, arguments.test)
    results: dict[str, Any] = {
        "data": {
            "scores": Path(arguments.score_data).name,
            "calibration": Path(arguments.calibration).name,
            "test": Path(arguments.test).name,
        },
        "calibration_inputs": arguments.limit,
        "backbone": whole,
        "selections": {},
    }
    for name, options in selections(arguments.checkpoint, folder, arguments.score_data).items():
        checkpoint = options.pop("checkpoint")
        plain = hs.prune(
            checkpoint, method="taylor", out=folder / "plain.safetensors", force=True, **options
        )
        pruned = measured(plain.path, arguments.test)
        entry: dict[str, Any] = {"removed": plain.removed, "pruned": pruned}
        for how in ("mean", "lstsq"):
            seeds = []
            for seed in range(3):
                start = time.perf_counter()
                repaired = hs.prune(
                    checkpoint, method="taylor", compensate=how, data=arguments.calibration, limit=arguments.limit,
                    seed=seed, out=folder / "repaired.safetensors", force=True, **options,
                )  # fmt: skip
                seconds = time.perf_counter() - start
                after = measured(repaired.path, arguments.test)
                seeds.append(after | recovered(whole, pruned, after) | {"seconds": seconds})
            averages = {
                key: statistics.mean(seed[key] for seed in seeds)
                for key in ("accuracy", "nll", "accuracy_recovered", "nll_recovered")
            }
            entry[how] = {"seeds": seeds, "mean": averages}
        results["selections"][name] = entry
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="demo ViT")
    parser.add_argument("--checkpoint", default=str(DEMO))
    parser.add_argument("--score-data", default="demo:val")
    parser.add_argument("--calibration", default="demo:train")
    parser.add_argument("--test", default="demo:test")
    parser.add_argument("--limit", type=int, default=1000, help="calibration inputs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments, Path(folder))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"models": {}}
    results["machine"] = machine()
    results["models"][arguments.name] = found
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
