"""What `build` is worth: the hydra it chooses beside the single model, the best member, the paper's recipe and a Deep
Ensemble.

For each task and seed members are chosen on validation data and one OOD set; everything is reported on test data
and other OOD sets. All with msp,
uncalibrated, so that only the choice counts. `random` is the mean of 100 triples of the same candidates within the same
budget, drawn at random.
Tasks are added to benchmarks/results/build.json one by one:

    python benchmarks/build.py fashion-mnist
    python benchmarks/build.py minilm|dinov2 --shared ../shared --cache FOLDER      as benchmarks/quality_tasks.py makes
    them
    python benchmarks/build.py NAME --checkpoint c.safetensors --train D --val D --choose D --test D --near D --far D
    python benchmarks/build.py choosing        how long a choice among 200 candidates takes
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from hydrasurgeon.stages.build.answers import Cache
from hydrasurgeon.stages.build.choice import Answers, Objective, Pool, choose, estimate
from hydrasurgeon.stages.build.comparing import measured
from hydrasurgeon.stages.build.cost import parse_budgets
from hydrasurgeon.stages.build.search import Search
from quality_tasks import TASKS, Place
from surgery import machine

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import fit_classes, open_data
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.stages import build as building

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "build.json"
DEMO = Path(__file__).parents[1] / "hydrasurgeon" / "demo"
MODELS = ("backbone", "independent-2", "independent-3")
"""The demo's independently trained models: a seed each, and together the Deep Ensemble."""
TRIPLES = 100
"""Random triples that the choice is compared with."""


def reported(answers: Sequence[Answers]) -> dict[str, float]:
    """Near is the first OOD set, far the mean of the others."""
    row = measured([replace(a, foreign=a.foreign[:1]) for a in answers])
    far = measured([replace(a, foreign=a.foreign[1:]) for a in answers])
    return {
        "accuracy": row["accuracy"],
        "nll": row["nll"],
        "ece": row["ece"],
        "near": row["auroc"],
        "far": far["auroc"],
    }


def task(
    checkpoint: Path,
    options: argparse.Namespace,
    seed: int,
    folder: Path,
    independent: Sequence[Path],
) -> dict[str, Any]:
    """Everything of one seed."""
    searches: list[Search] = []
    searched = building.searched

    def kept(*arguments: Any) -> Search:
        searches.append(searched(*arguments))
        return searches[-1]

    building.searched = kept  # type: ignore[assignment]
    try:
        began = time.monotonic()
        budgets = options.budget.split(",")
        built = {
            budget: hs.build(
                checkpoint,
                data=options.train,
                val=options.val,
                ood=[options.choose],
                out=folder / f"hydra-{seed}.safetensors",
                budget=f"macs={budget}",
                candidates=options.candidates,
                seed=seed,
                calibrate=False,
                dry_run=True,
                device="cpu",
                criteria=options.criteria,
                score_limit=options.score_limit,
                dtype=options.dtype,
                search=options.search,
                cache=options.caches / f"seed-{seed}" / "build" if options.caches else None,
            )
            for budget in budgets
        }
        seconds = time.monotonic() - began
    finally:
        building.searched = searched
    search = searches[0]
    model = search.backbone.manifest.model
    test = fit_classes(open_data(options.test), model)
    foreign = tuple(open_data(spec) for spec in (options.near, *options.far))
    work = search.cache.options.but(cache=folder / f"test-{seed}")
    elsewhere = Cache({"test": options.test}, search.backbone, test, foreign, work)
    elsewhere.folder.parent.mkdir(exist_ok=True)
    elsewhere.fill(search.candidates)
    answers = [elsewhere.read(candidate) for candidate in search.candidates]
    labels = {candidate.label: i for i, candidate in enumerate(search.candidates)}
    rows: dict[str, Any] = {"single model": reported([answers[0]]) | {"macs": 1.0}}
    floor = measured([search.cache.read(search.candidates[0])])["accuracy"] - 0.005
    val = Pool.gathered(
        Objective("avg", floor), map(search.cache.read, search.candidates), len(answers)
    )
    one = choose(
        val,
        pools=[range(1, len(answers) - len(search.paper))],
        affordable=lambda members: True,
        members=1,
    )
    assert one is not None
    rows["best single member"] = reported([answers[i] for i in one.members]) | {
        "macs": search.costs.cost(one.members, "macs")
    }
    if search.paper:
        rows["the paper's recipe"] = reported([answers[i] for i in search.paper]) | {
            "macs": search.costs.cost(search.paper, "macs")
        }
    free = [i for i in range(len(answers)) if i not in search.paper]
    for budget in budgets:
        members = [labels[label] for label in built[budget].members]
        rows[f"built, {budget}x"] = reported([answers[i] for i in members]) | {
            "macs": search.costs.cost(members, "macs"),
            "members": list(built[budget].members),
            "estimate": built[budget].estimate,
            "optimism": built[budget].optimism,
        }
        rows[f"random, {budget}x"] = triples(search, answers, free, budget, seed)
    if independent:
        each = [
            elsewhere.answers_of(as_classifier(open_checkpoint(p), lean=True))[0]
            for p in independent
        ]
        rows["Deep Ensemble of 3"] = reported(each) | {"macs": float(len(each))}
    return {"rows": rows, "seconds": seconds, "candidates": len(free)}


def triples(
    search: Search, answers: Sequence[Answers], free: Sequence[int], budget: str, seed: int
) -> dict[str, float]:
    """The mean of random triples that cost as much at most."""
    (limit,) = parse_budgets(f"macs={budget}")
    dice = random.Random(seed)
    drawn: set[tuple[int, ...]] = set()
    for _ in range(200_000):
        members = tuple(sorted(dice.sample(free, 3)))
        if search.affordable(limit, members):
            drawn.add(members)
        if len(drawn) == TRIPLES:
            break
    each = [
        reported([answers[i] for i in m]) | {"macs": search.costs.cost(m, "macs")}
        for m in sorted(drawn)
    ]
    if not each:
        return {}
    mean = {name: statistics.mean(row[name] for row in each) for name in each[0]}
    return mean | {"near_sd": statistics.pstdev(row["near"] for row in each), "triples": len(each)}


def choosing() -> dict[str, Any]:
    """3 of 200 candidates, 10,000 samples of 100 classes: seconds and memory, what is chosen and what it is worth."""
    rows, classes, count = 10_000, 100, 200
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (rows,), generator=generator)
    shared = torch.randn(rows, classes, generator=generator)
    shared[torch.arange(rows), labels] += 3
    outside = torch.randn(rows // 5, classes, generator=generator)

    def candidate(i: int) -> Answers:
        own = torch.Generator().manual_seed(i)
        return Answers(
            shared + 0.7 * torch.randn(rows, classes, generator=own),
            labels,
            (outside + 0.7 * torch.randn(rows // 5, classes, generator=own),),
        )

    pool = Pool.gathered(Objective("avg"), map(candidate, range(count)), count)
    how: dict[str, Any] = {
        "pools": [range(count)],
        "affordable": lambda members: True,
        "members": 3,
    }
    began = time.monotonic()
    choose(pool, **how)
    chosen = time.monotonic()
    estimate(pool, **how)
    return {
        "choose_seconds": chosen - began,
        "estimate_seconds": time.monotonic() - chosen,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def models(options: argparse.Namespace, temporary: Path) -> tuple[Sequence[Path], Sequence[Path]]:
    """The checkpoints, one a seed, and those that are a Deep Ensemble; of a task that is known with its data."""
    shipped = [DEMO / f"{name}.safetensors" for name in MODELS]
    if options.checkpoint or options.task not in TASKS or options.task == "fashion-mnist":
        return (options.checkpoint, ()) if options.checkpoint else (shipped, shipped)
    place = Place(options.task, (options.cache or temporary) / options.task, options.shared)
    about, specs = place.task, place.specs
    for name in ("train", "val", "test"):
        setattr(options, name, specs[name])
    options.choose, options.near = specs[about.chooses], specs[about.near[0]]
    options.far = [specs[name] for name in about.far]
    options.dtype, options.caches = place.dtype, place.cache
    options.candidates, options.score_limit, options.search = (
        about.candidates,
        about.limit,
        about.search,
    )
    bases = [path for _, path in place.ensemble(1)]
    return bases, bases


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", nargs="?", default="fashion-mnist")
    parser.add_argument("--checkpoint", type=Path, action="append")
    for name, default in (
        ("train", "demo:train"),
        ("val", "demo:val"),
        ("choose", "demo:textures"),
        ("test", "demo:test"),
        ("near", "demo:near"),
    ):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--far", action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=48)
    parser.add_argument("--criteria")
    parser.add_argument("--score-limit", type=int, default=1000)
    parser.add_argument("--budget", default="1.5,2.3")
    parser.add_argument("--folder", type=Path, help="where scores and answers are kept")
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", help="data and models"
    )
    parser.add_argument(
        "--cache", type=Path, help="trained models, as benchmarks/quality.py keeps them"
    )
    parser.add_argument(
        "--only", type=int, action="append", help="seeds, of those that are counted"
    )
    options = parser.parse_args()
    options.dtype, options.caches, options.search = "float32", None, "attribution"
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"tasks": {}}
    results["machine"] = machine() | {"torch": version("torch")}
    if options.task == "choosing":
        results["choosing"] = choosing()
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            sources, independent = models(options, Path(temporary))
            options.far = options.far or ["demo:digits"]
            about = results["tasks"].setdefault(options.task, {"seeds": {}})
            about |= {"budgets": options.budget, "dtype": options.dtype}
            for seed in options.only or range(1, options.seeds + 1):
                row = task(sources[(seed - 1) % len(sources)], options, seed, folder, independent)
                results = json.loads(RESULTS.read_text()) | {"machine": results["machine"]}
                results["tasks"].setdefault(options.task, about)["seeds"][str(seed)] = row
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        return
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
