"""Better and cheaper circuits than the greedy loop's: swaps behind it, and an order from one backward pass.

On the demo's ViT, for each objective and several splits: a circuit is searched on some of the validation images and of
the OOD images,
and measured on test images and on the OOD images that are left. Recorded are the objective on both sides, evaluations,
and CPU time in
units of one evaluation (the whole model on all samples of the search). Random sets of the same size say what a search
is worth.
Writes benchmarks/results/refine.json after each split; a split takes two to three minutes of one core.

    python benchmarks/refine.py [--splits 2] [--samples 300] [--foreign 150]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from circuits import DEMO, problem

from hydrasurgeon.criteria.circuits.attribution import Attribution, predicted_order
from hydrasurgeon.criteria.circuits.effects import first_order
from hydrasurgeon.criteria.circuits.exact import Exact
from hydrasurgeon.criteria.circuits.greedy import extract
from hydrasurgeon.criteria.circuits.naive import measure
from hydrasurgeon.criteria.circuits.problem import Problem
from hydrasurgeon.criteria.circuits.stability import on_samples
from hydrasurgeon.criteria.circuits.swaps import refine
from hydrasurgeon.heads import Head

RESULTS = Path(__file__).parent / "results" / "refine.json"
OBJECTIVES = ("acc", "ood", "avg")
AMOUNTS = (24,)
"""Of 48 heads: a half goes."""
RANDOM_SETS = 20
"""So many random sets of each size are averaged."""


def cpu(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and the CPU seconds that it takes."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def value(problem: Problem, heads: list[Head]) -> float:
    return problem.objective.value(measure(problem, heads))


def split(kind: str, number: int, samples: int, foreign: int) -> tuple[Problem, Problem]:
    """What is searched on, and what is held out."""
    search = problem(f"{DEMO},demo:val,demo:near", kind, 1000, 1000)
    held = problem(f"{DEMO},demo:test,demo:near", kind, 2000, 1000)
    random = np.random.default_rng(number)
    inside, outside = random.permutation(1000), torch.from_numpy(random.permutation(1000))
    ids = torch.from_numpy(inside[:samples])
    return (
        with_rows(on_samples(search, ids, outside[:foreign])),
        with_rows(on_samples(held, torch.arange(2000), outside[foreign:])),
    )


def with_rows(found: Problem) -> Problem:
    """The objective counts the samples that there are."""
    rows = len(found.id_inputs), len(found.ood_inputs)
    return replace(found, objective=replace(found.objective, id_rows=rows[0], ood_rows=rows[1]))


def measured(kind: str, number: int, samples: int, foreign: int) -> list[dict[str, Any]]:
    """One split: an entry for each amount."""
    search, held = split(kind, number, samples, foreign)
    unit = min(cpu(lambda: measure(search, ()))[1] for _ in range(3))
    greedy: list[Head] = []
    exact, seconds, spent = Exact(search), 0.0, {}
    exact.start()
    while len(greedy) < max(AMOUNTS):
        step, taken = cpu(lambda: exact.next(greedy))
        greedy.append(step.head)
        seconds += taken
        spent[len(greedy)] = seconds, exact.tally["evaluations"]
    effects, backward = cpu(lambda: first_order(search))
    ranked, sorting = cpu(lambda: predicted_order(search.objective, effects, max(AMOUNTS)))
    attributed = [search.candidates[row] for row in ranked]
    assert list(extract(search, Attribution, budget=1).order) == attributed[:1]
    entries = []
    for amount in AMOUNTS:
        swapped, swapping = cpu(partial(refine, search, greedy[:amount]))
        both, further = cpu(partial(refine, search, attributed[:amount]))
        ways = {
            "greedy": greedy[:amount],
            "swap": swapped.removed,
            "attribution": attributed[:amount],
            "attribution + swap": both.removed,
        }
        took, evaluations = spent[amount]
        random = np.random.default_rng([number, amount])
        sets = [
            [search.candidates[i] for i in random.permutation(len(search.candidates))[:amount]]
            for _ in range(RANDOM_SETS)
        ]
        entries.append(
            {
                "split": number,
                "amount": amount,
                "whole": {"search": value(search, []), "held_out": value(held, [])},
                "random": {
                    "search": statistics.mean(value(search, one) for one in sets),
                    "held_out": statistics.mean(value(held, one) for one in sets),
                },
                "found": {
                    name: {"search": value(search, heads), "held_out": value(held, heads)}
                    for name, heads in ways.items()
                },
                "evaluations": {
                    "greedy": evaluations,
                    "swap": swapped.evaluations,
                    "attribution + swap": both.evaluations,
                },
                "swaps": {"swap": len(swapped.swaps), "attribution + swap": len(both.swaps)},
                "backward_passes": {
                    "swap": swapped.backward_passes,
                    "attribution": 1,
                    "attribution + swap": 1 + both.backward_passes,
                },
                "units": {
                    "greedy": took / unit,
                    "swap": swapping / unit,
                    "attribution": (backward + sorting) / unit,
                    "attribution + swap": (backward + sorting + further) / unit,
                },
            }
        )
    return entries


def processor() -> str:
    """Its model, where the system says it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--foreign", type=int, default=150)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    entries: dict[str, list[dict[str, Any]]] = {kind: [] for kind in OBJECTIVES}
    for number in range(arguments.splits):
        for kind in OBJECTIVES:
            entries[kind] += measured(kind, number, arguments.samples, arguments.foreign)
            print(number, kind, json.dumps(entries[kind][-1]["found"]), flush=True)
        results = {
            "machine": {
                "processor": processor(),
                "threads": 1,
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            "sizes": {
                "id": arguments.samples,
                "ood": arguments.foreign,
                "heads": 48,
                "splits": number + 1,
                "random_sets": RANDOM_SETS,
            },
            "cpu_seconds": time.process_time() - start,
            "objectives": entries,
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
