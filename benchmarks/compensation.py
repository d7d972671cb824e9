"""What training-free repair gives back, and takes: accuracy, NLL and AUROC of OOD data (msp) after pruning a third
of the heads by taylor.

Scores come from one data set, calibration inputs (unlabelled, a random subset for each seed) from another, and
the figures from a third. Recovered is the share of what pruning cost that the repair gives back. Writes
benchmarks/results/compensation.json, under the model's name; other models' entries stay. A task of
benchmarks/decision_models.py brings its model and its sets, near
and far ones among them (shared data and models, a folder for what is made on the way); `--most` bounds its test and
OOD sets.

    python benchmarks/compensation.py
    python benchmarks/compensation.py --name minilm --checkpoint tuned/ --score-data val.jsonl --calibration train.jsonl
    --test test.jsonl
    python benchmarks/compensation.py --task dinov2 --shared ../shared --cache DIR --limit 200 --seeds 1

The MiniLM entry on movie reviews is all-MiniLM-L6-v2, tuned by `finetune --recipe sst2 --set epochs=1 --set lr=1e-4
--batch-size 32
--limit 5000` on movie-review sentences, with `--limit 500` here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import machine
from scratch_vits import PLACE, scratch_vit

import hydrasurgeon as hs

RESULTS = Path(__file__).parent / "results" / "compensation.json"
VIT = PLACE / "backbone.safetensors"
"""Trained from random weights."""


@dataclass(frozen=True)
class Sets:
    """What is scored on, calibrated on and measured on."""

    scores: str
    calibration: str
    test: str
    foreign: tuple[str, ...] = ()
    """As `eval --ood` takes them."""
    most: int | None = None
    """Samples of each set that is measured on."""


def measured(checkpoint: str | Path, sets: Sets) -> dict[str, float]:
    (found,) = hs.evaluate(
        [checkpoint], data=sets.test, ood=sets.foreign, limit=sets.most
    ).report.results
    groups: dict[str, float] = {
        group: average.auroc for group, average in found.ood_average.items() if group != "all"
    }
    return {"accuracy": found.id.accuracy or 0.0, "nll": found.id.nll or 0.0} | groups


def recovered(
    whole: dict[str, float], pruned: dict[str, float], repaired: dict[str, float]
) -> dict[str, float]:
    return {
        f"{what}_recovered": (repaired[what] - pruned[what]) / (whole[what] - pruned[what])
        for what in ("accuracy", "nll")
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
    source, sets = task(arguments)
    whole = measured(source, sets)
    results: dict[str, Any] = {
        "data": {
            "scores": Path(sets.scores).name,
            "calibration": Path(sets.calibration).name,
            "test": Path(sets.test).name,
            "foreign": [_portable(spec) for spec in sets.foreign],
            "most": sets.most,
        },
        "calibration_inputs": arguments.limit,
        "backbone": whole,
        "selections": {},
    }
    for name, options in selections(source, folder, sets.scores).items():
        checkpoint = options.pop("checkpoint")
        plain = hs.prune(
            checkpoint, method="taylor", out=folder / "plain.safetensors", force=True, **options
        )
        pruned = measured(plain.path, sets)
        entry: dict[str, Any] = {"removed": plain.removed, "pruned": pruned}
        for how in ("mean", "lstsq"):
            seeds = []
            for seed in range(arguments.seeds):
                start = time.perf_counter()
                repaired = hs.prune(
                    checkpoint,
                    method="taylor",
                    compensate=how,
                    data=sets.calibration,
                    limit=arguments.limit,
                    seed=seed,
                    out=folder / "repaired.safetensors",
                    force=True,
                    **options,
                )
                seconds = time.perf_counter() - start
                after = measured(repaired.path, sets)
                seeds.append(after | recovered(whole, pruned, after) | {"seconds": seconds})
            averages = {
                key: statistics.mean(seed[key] for seed in seeds)
                for key in seeds[0]
                if key != "seconds"
            }
            entry[how] = {"seeds": seeds, "mean": averages}
        results["selections"][name] = entry
    return results


def task(arguments: argparse.Namespace) -> tuple[str, Sets]:
    """The model and its sets: those of a task, or those that are named."""
    if arguments.task is None:
        own = arguments.checkpoint == str(VIT)
        foreign = (
            (("near:near=demo:near", "far:digits=demo:digits") if own else ())
            if arguments.ood is None
            else tuple(arguments.ood)
        )
        return arguments.checkpoint, Sets(
            arguments.score_data, arguments.calibration, arguments.test, foreign
        )
    from decision_models import TASKS, dinov2_model, images, minilm_model, texts

    cache, shared = Path(arguments.cache) / arguments.task, Path(arguments.shared)
    cache.mkdir(parents=True, exist_ok=True)
    if arguments.task == "minilm":
        sources = texts(cache, shared)
        source = minilm_model(cache, sources)
    else:
        sources = images(shared, large=True)
        source = dinov2_model(cache, shared, sources)
    of = TASKS[arguments.task]
    foreign = tuple(
        f"{group}:{name}={sources[name].spec}"
        for group, names in (("near", of.near), ("far", of.far))
        for name in names
    )
    return str(source), Sets(
        sources["val"].spec, sources["train"].spec, sources["test"].spec, foreign, arguments.most
    )


def _portable(spec: str) -> str:
    about, _, place = spec.partition("=")
    return f"{about}={place if place.startswith('demo:') else Path(place).name}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="ViT from scratch")
    parser.add_argument("--checkpoint", default=str(VIT))
    parser.add_argument("--score-data", default="demo:val")
    parser.add_argument("--calibration", default="demo:train")
    parser.add_argument("--test", default="demo:test")
    parser.add_argument("--limit", type=int, default=1000, help="calibration inputs")
    parser.add_argument("--seeds", type=int, default=3, help="calibration subsets")
    parser.add_argument("--ood", action="append", help="near:NAME=D or far:NAME=D")
    parser.add_argument("--task", choices=("dinov2", "minilm"), help="a task of answers.py")
    parser.add_argument("--shared", default="../shared", help="its data and models")
    parser.add_argument("--cache", default="/tmp/answers", help="what is made on its way")
    parser.add_argument("--most", type=int, default=400, help="samples of its test and OOD sets")
    arguments = parser.parse_args()
    if arguments.checkpoint == str(VIT):
        scratch_vit(VIT.stem)
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments, Path(folder))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"models": {}}
    results["machine"] = machine()
    results["models"][arguments.task or arguments.name] = found
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
