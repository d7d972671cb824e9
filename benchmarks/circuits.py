"""Circuit searches against each other: Algorithm 1 as written, the exact search, and the fast one.

All run on the same inputs, in one process, in float32, from memory (decoding is not counted for any). The
exact search must give naive's order, or this fails. Naive takes long: it may be cut to the first removals
(--naive), over which both are then compared; for the whole budget its time follows from its time per
evaluation, and is called projected. Writes benchmarks/results/circuits.json.

    python benchmarks/circuits.py [--model NAME=CKPT,ID,OOD ...] [--objectives acc,avg] [--naive 4] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hydrasurgeon.backends import backend
from hydrasurgeon.checkpoint import open_checkpoint
from hydrasurgeon.circuits.exact import Exact
from hydrasurgeon.circuits.fast import Fast
from hydrasurgeon.circuits.greedy import Circuit, extract
from hydrasurgeon.circuits.inputs import Held
from hydrasurgeon.circuits.naive import Naive
from hydrasurgeon.circuits.objective import Objective
from hydrasurgeon.circuits.problem import Found, Problem, Search
from hydrasurgeon.criteria.circuit import TOGETHER
from hydrasurgeon.data import Batches, fit_classes, open_data
from hydrasurgeon.heads import Head
from hydrasurgeon.loading import live_module

RESULTS = Path(__file__).parent / "results" / "circuits.json"
DEMO = Path(__file__).parents[1] / "hydrasurgeon" / "demo" / "backbone.safetensors"
NEAR = f"demo near={DEMO},demo:test,demo:near"
FAR = f"demo far={DEMO},demo:test,demo:digits"


def problem(spec: str, kind: str, samples: int, foreign: int) -> Problem:
    """CKPT,ID,OOD with its inputs in memory."""
    path, data, ood = spec.split(",")
    checkpoint = open_checkpoint(path)
    model = checkpoint.manifest.model
    family, module = backend(model.family), live_module(checkpoint)
    transform = family.transform(model, files=checkpoint.files)
    inside = fit_classes(
        open_data(data, limit=samples), num_classes=model.num_classes, labels=model.labels
    )
    outside = open_data(ood, limit=foreign)

    def held(samples: Any) -> Held:
        batches = Batches(samples, transform, batch_size=256, workers=0)
        return Held.of([b.inputs for b in batches], torch.device("cpu"), torch.float32)

    anatomy = family.anatomy(module)
    candidates = tuple(
        Head(b.attention.tower, b.attention.layer, h) for b in anatomy.blocks for h in b.attention.heads
    )  # fmt: skip
    return Problem(
        module=module, anatomy=anatomy, id_inputs=held(inside), labels=torch.from_numpy(inside.labels.copy()),
        ood_inputs=held(outside), objective=Objective(kind, len(inside), len(outside)),  # type: ignore[arg-type]
        candidates=candidates, batch_size=64, together=TOGETHER["cpu"],
    )  # fmt: skip


class Timed:
    """A search that remembers how long each of its rounds took."""

    def __init__(self, search: Search) -> None:
        self.search, self.wall, self.cpu = search, [0.0], [0.0]
        self.guarantee, self.counts, self.memory, self.recall = (
            search.guarantee, search.counts, search.memory, search.recall
        )  # fmt: skip
        self.start = search.start

    def next(self, removed: Sequence[Head]) -> Found:
        wall, cpu = time.perf_counter(), time.process_time()
        found = self.search.next(removed)
        self.wall.append(self.wall[-1] + time.perf_counter() - wall)
        self.cpu.append(self.cpu[-1] + time.process_time() - cpu)
        return found


def timed(found: Problem, make: Callable[[Problem], Search], budget: int) -> tuple[Circuit, Timed]:
    searches: list[Timed] = []

    def made(given: Problem) -> Search:
        searches.append(Timed(make(given)))
        return searches[0]

    return extract(found, made, budget=budget), searches[0]


def compare(
    spec: str, kind: str, *, samples: int, foreign: int, naive: int | None
) -> dict[str, Any]:
    found = problem(spec, kind, samples, foreign)
    heads = len(found.candidates)
    budget = heads // 3
    rounds = min(budget, naive if naive is not None else budget)
    reference, slow = timed(found, Naive, rounds)
    exact, ours = timed(found, Exact, budget)
    fast, quick = timed(found, Fast, budget)
    if exact.order[:rounds] != reference.order:
        raise SystemExit(f"{spec} {kind}: exact removes {exact.order}, naive {reference.order}")
    evaluations = sum(heads - i for i in range(budget))
    done = sum(heads - i for i in range(rounds))
    projected = slow.cpu[-1] * evaluations / done
    return {
        "id_samples": found.objective.id_rows, "ood_samples": found.objective.ood_rows if kind != "acc" else 0,
        "heads": heads, "budget": budget, "naive_removals": rounds, "same_order": True,
        "cpu_seconds": {"naive": slow.cpu[-1], "exact_same_removals": ours.cpu[rounds], "exact": ours.cpu[-1], "fast": quick.cpu[-1]},
        "wall_seconds": {"naive": slow.wall[-1], "exact_same_removals": ours.wall[rounds], "exact": ours.wall[-1], "fast": quick.wall[-1]},
        "naive_projected_cpu_seconds": projected,
        "exact_ratio_same_removals": slow.cpu[-1] / ours.cpu[rounds],
        "exact_ratio": projected / ours.cpu[-1],
        "fast_ratio": projected / quick.cpu[-1],
        "fast_in_common": len(set(fast.order) & set(exact.order)) / budget,
        "score": {"start": exact.start, "exact": exact.trace[-1], "fast": fast.trace[-1]},
        "counts": {"exact": exact.counts, "fast": fast.counts},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", action="append", help="NAME=CKPT,ID,OOD; the demo's if not given"
    )
    parser.add_argument("--objectives", default="acc,ood,avg")
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--foreign", type=int, default=750)
    parser.add_argument("--naive", type=int, help="removals that naive makes; all if not given")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["machine"] = {
        "cores": os.cpu_count(), "threads": arguments.threads, "python": platform.python_version(),
        "torch": torch.__version__,
    }  # fmt: skip
    for entry in arguments.model or [NEAR, FAR]:
        name, _, spec = entry.partition("=")
        for kind in arguments.objectives.split(","):
            found = compare(
                spec, kind, samples=arguments.samples, foreign=arguments.foreign, naive=arguments.naive
            )  # fmt: skip
            results.setdefault("searches", {}).setdefault(name, {})[kind] = found
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(
                name,
                kind,
                json.dumps({k: v for k, v in found.items() if "ratio" in k or "common" in k}),
            )


if __name__ == "__main__":
    main()
