"""Whether members should count differently in a hydra's mean: weights fitted to validation data against equal ones,
with and without build's guard.

    p = Σ_m w_m p_m        w on the simplex with the smallest NLL on validation data, by expectation maximisation (the
    problem is convex)

Guarded weights are `build --weights fit`'s: taken where each half of the validation data says of the other half's
weights that they are worth more than
equal ones by over a standard error, by NLL and by `avg` (accuracy and AUROC of the foreign data that choose). For each
task and seed of
benchmarks/answers.py: its hydra's members (three) and, of the demo's trainings, the Deep Ensemble. Fitted on all
validation samples and, as a choice is
judged, on random fewer; reported on test data and near foreign data. Writes benchmarks/results/weights.json.

    python benchmarks/weights.py fashion-mnist --shared ../shared --cache DIR --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from answers import TASKS, Answers, Task, together
from surgery import machine
from torch import Tensor

from hydrasurgeon.criteria.together.mixing import mixture_for, weigh
from hydrasurgeon.criteria.together.objective import Answers as Choosable
from hydrasurgeon.criteria.together.objective import objective_of
from hydrasurgeon.decision.probabilities import mean_probs, nll
from hydrasurgeon.files.mixture import Mixture
from hydrasurgeon.measuring.metrics import accuracy, auroc

RESULTS = Path(__file__).parent / "results" / "weights.json"
FEW = 200
"""Validation samples of the smaller fit."""
DRAWS = 5
"""Random subsets that the smaller fit is averaged over."""


def seen(answers: Answers, chooses: str, rows: Tensor) -> list[Choosable]:
    """What each member says of these validation samples and of the foreign ones that choose."""
    val, foreign = answers.sets["val"], answers.sets[chooses]
    assert val.labels is not None
    return [
        Choosable(val.logits[rows, m], val.labels[rows], (foreign.logits[:, m],)) for m in range(val.logits.shape[1])
    ]


def figures(answers: Answers, mixture: Mixture | None, near: str) -> dict[str, float]:
    test, labels = mean_probs(answers.sets["test"].logits, mixture=mixture), answers.sets["test"].labels
    assert labels is not None
    outside = mean_probs(answers.sets[near].logits, mixture=mixture)
    area = auroc(1 - test.amax(dim=1), 1 - outside.amax(dim=1))
    assert area is not None
    return {"nll": nll(test, labels), "accuracy": accuracy(test, labels), "near": area}


def ways(answers: Answers, task: Task, rows: Tensor) -> dict[str, Any]:
    """Fitted to these samples, and guarded by two objectives."""
    members, near = seen(answers, task.chooses, rows), task.near[0]
    every = {"fitted": figures(answers, mixture_for(members), near)}
    for objective in ("nll", "avg"):
        weighed = weigh(objective_of(objective), members)
        mixture = mixture_for(members) if weighed.taken else None
        every[f"guarded by {objective}"] = figures(answers, mixture, near) | weighed.to_json()
    return every


def compared(answers: Answers, task: Task) -> dict[str, Any]:
    count = len(answers.sets["val"].logits)
    few = [
        ways(answers, task, torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:FEW])
        for seed in range(DRAWS)
    ]
    every = ways(answers, task, torch.arange(count))
    return {
        "samples": count,
        "weights": every["guarded by nll"]["fitted"],
        "equal": figures(answers, None, task.near[0]),
        **every,
        **{f"{way} on {FEW}": averaged([each[way] for each in few]) for way in every},
    }


def averaged(each: list[dict[str, Any]]) -> dict[str, float]:
    """`taken` becomes the share of the draws in which the weights were."""
    return {key: sum(one[key] for one in each) / len(each) for key in each[0] if key != "fitted"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--cache", type=Path, default=Path("/tmp/answers"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = TASKS[arguments.task]
    rows, singles = {}, []
    for seed in arguments.seeds:
        models = task.answers(arguments.cache / arguments.task, arguments.shared, seed)
        rows[f"hydra, seed {seed}"] = compared(models["hydra"], task)
        singles.append(models["single"])
    if arguments.task == "fashion-mnist":
        rows["Deep Ensemble"] = compared(together(singles), task)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"tasks": {}}
    results["machine"] = machine()
    results["tasks"][arguments.task] = rows
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
