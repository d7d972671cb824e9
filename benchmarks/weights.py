"""Whether members should count differently in a hydra's mean: weights fitted to validation data against equal ones.

    p = Σ_m w_m p_m        w on the simplex with the smallest NLL on validation data, by expectation maximisation (the problem is convex)

For each task and seed of benchmarks/answers.py: its hydra's members (three) and, of the demo's trainings, the Deep Ensemble. Fitted on all validation
samples and, as a choice is judged, on random fewer; reported on test data and near foreign data. Writes benchmarks/results/weights.json.

    python benchmarks/weights.py fashion-mnist --shared ../shared --cache DIR --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from answers import TASKS, Answers, together
from surgery import machine
from torch import Tensor

from hydrasurgeon.decision.probabilities import member_probs, nll
from hydrasurgeon.measuring.metrics import accuracy, auroc

RESULTS = Path(__file__).parent / "results" / "weights.json"
ROUNDS = 2000
"""Of expectation maximisation; weights of three members settle within some hundred."""
FEW = 200
"""Validation samples of the smaller fit."""
DRAWS = 5
"""Random subsets that the smaller fit is averaged over."""


def fitted(of_truth: Tensor) -> Tensor:
    """From each member's probability of the true class, [sample, member]."""
    weights = torch.full(
        of_truth.shape[1:], 1 / of_truth.shape[1], dtype=torch.float64, device=of_truth.device
    )
    for _ in range(ROUNDS):
        shares = of_truth * weights
        weights = (shares / shares.sum(dim=1, keepdim=True)).mean(dim=0)
    return weights


def figures(answers: Answers, weights: Tensor, near: str) -> dict[str, float]:
    def mean(name: str) -> Tensor:
        return (member_probs(answers.sets[name].logits) * weights[:, None]).sum(dim=1)

    test, labels = mean("test"), answers.sets["test"].labels
    assert labels is not None
    area = auroc(1 - test.amax(dim=1), 1 - mean(near).amax(dim=1))
    assert area is not None
    return {"nll": nll(test, labels), "accuracy": accuracy(test, labels), "near": area}


def compared(answers: Answers, near: str) -> dict[str, Any]:
    val = answers.sets["val"]
    assert val.labels is not None
    of_truth = member_probs(val.logits).gather(2, val.labels[:, None, None].expand(-1, val.logits.shape[1], 1))[..., 0]  # fmt: skip
    weights = fitted(of_truth)
    equal = torch.full_like(weights, 1 / len(weights))
    few = []
    for seed in range(DRAWS):
        rows = torch.randperm(len(of_truth), generator=torch.Generator().manual_seed(seed))[:FEW]
        few.append(figures(answers, fitted(of_truth[rows]), near))
    return {
        "samples": len(of_truth), "weights": weights.tolist(), "equal": figures(answers, equal, near),
        "fitted": figures(answers, weights, near),
        f"fitted on {FEW}": {key: sum(each[key] for each in few) / DRAWS for key in few[0]},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
        rows[f"hydra, seed {seed}"] = compared(models["hydra"], task.near[0])
        singles.append(models["single"])
    if arguments.task == "fashion-mnist":
        rows["Deep Ensemble"] = compared(together(singles), task.near[0])
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"tasks": {}}
    results["machine"] = machine()
    results["tasks"][arguments.task] = rows
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
