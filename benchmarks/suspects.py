"""Labels that look wrong: some labels of a training table are flipped, and confident learning looks for them.

Per task and seed 3 % of the training labels become another class, drawn evenly. Probes on MiniLM that have not seen a row (five folds,
as in `build`) give its probabilities. Compared are the list that `build` writes, its first rows, and as many rows with the least probable
labels. Probes that learn all rows, the rows outside the list, and the true labels then answer TEST. Where cleanlab is installed, its list
is compared too. Writes benchmarks/results/suspects.json.

    python benchmarks/suspects.py --shared ../shared --cache FOLDER
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from front_models import TASKS, Place
from harness import machine
from numpy.typing import NDArray
from torch import nn

from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.data import Samples, open_data
from hydrasurgeon.data.folds import folds_of
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import collected
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.statistics.confident_learning import find_label_issues
from hydrasurgeon.statistics.temperature import calibrated, nll_of, temperature_of
from hydrasurgeon.tasks import SINGLE
from hydrasurgeon.tuning.losses import losses_of
from hydrasurgeon.tuning.probe import logistic, out_of_fold

RESULTS = Path(__file__).parent / "results" / "suspects.json"
FLIPPED = 0.03
"""Fraction of the labels that are flipped."""
SEEDS = 5
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
losses = losses_of(SINGLE).losses


@dataclass(frozen=True)
class Embedded:
    """Features and classes of the rows of one set."""

    samples: Samples
    features: torch.Tensor
    labels: Rows


def embedded(place: Place, name: str) -> Embedded:
    """Read a set through the body, or its features from the cache."""
    opened = open_checkpoint(place.probe())
    samples = open_data(place.data(name), model=opened.manifest.model)
    kept = place.cache / f"{name}-features.npy"
    if not kept.exists():
        model = as_classifier(opened, device="cpu")
        outputs = collected([model], samples, Run(device="cpu"), features=True)
        assert outputs.features is not None
        np.save(kept, outputs.features[:, 0])
    features = torch.from_numpy(np.load(kept).astype(np.float64))
    return Embedded(samples, features, np.asarray(samples.labels, dtype=np.int64))


def flipped(labels: Rows, seed: int) -> tuple[Rows, Rows]:
    """Return labels of which some are flipped, and the rows of these."""
    rng, classes = np.random.default_rng(seed), int(labels.max()) + 1
    rows = rng.permutation(len(labels))[: round(FLIPPED * len(labels))]
    changed = labels.copy()
    changed[rows] = (changed[rows] + rng.integers(1, classes, len(rows))) % classes
    return changed, rows


def answers_of_folds(train: Embedded, labels: Rows) -> tuple[float, Floats]:
    """Return the penalty that suits the rows, and the logits that probes of other folds give them."""
    layer = nn.Linear(train.features.shape[1], int(labels.max()) + 1)
    truth, folds = torch.from_numpy(labels), folds_of(train.samples)
    penalty, logits = out_of_fold(train.features, truth, folds, layer, losses)
    return penalty, logits.numpy()[:, None]


def on_test(
    train: Embedded, test: Embedded, labels: Rows, rows: Rows, penalty: float
) -> tuple[float, float]:
    """Return accuracy and NLL on TEST of a probe that has learnt some rows; its temperature is that of
    probes of folds of them.
    """
    folds, layer = (
        folds_of(train.samples)[rows],
        nn.Linear(train.features.shape[1], int(labels.max()) + 1),
    )
    features, truth = train.features[rows], torch.from_numpy(labels[rows])

    def answers(seen: NDArray[np.bool_], inputs: torch.Tensor) -> Floats:
        weight, bias = logistic(features[seen], truth[seen], layer, losses, penalty)
        logits: Floats = (inputs @ weight.T + bias).numpy()[:, None]
        return logits

    held_out = np.zeros((len(rows), 1, layer.out_features))
    for fold in np.unique(folds):
        held_out[folds == fold] = answers(folds != fold, features[folds == fold])
    logits = answers(np.ones(len(rows), dtype=bool), test.features)
    right = logits[:, 0].argmax(axis=1) == test.labels
    temperature = temperature_of(held_out, labels[rows])
    return float(right.mean()), nll_of(logits, test.labels, temperature)


def compared(train: Embedded, test: Embedded, seed: int) -> dict[str, float]:
    """Return the figures of one seed."""
    labels, wrong = flipped(train.labels, seed)
    everything = np.arange(len(labels))
    penalty, logits = answers_of_folds(train, labels)
    probs = calibrated(logits, temperature_of(logits, labels))
    issues = find_label_issues(labels, probs)
    plain = np.argsort(probs[everything, labels], kind="stable")
    count = len(wrong)

    def share(listed: Rows, of: int) -> float:
        return float(np.isin(listed, wrong).sum() / of)

    figures = {
        "rows": float(len(labels)),
        "flipped": float(count),
        "listed": float(len(issues)),
        "precision": share(issues, len(issues)),
        "recall": share(issues, count),
        "first": share(issues[:count], min(count, len(issues))),
        "first_recall": share(issues[:count], count),
        "plain": share(plain[:count], count),
        "plain_precision": share(plain[: len(issues)], len(issues)),
        "plain_recall": share(plain[: len(issues)], count),
    }
    if find_spec("cleanlab") is not None:
        from cleanlab.filter import find_label_issues as oracle

        cleanlab_ranking = oracle(
            labels, probs, return_indices_ranked_by="self_confidence", n_jobs=1
        )
        figures |= {
            "cleanlab_listed": float(len(cleanlab_ranking)),
            "cleanlab_precision": share(cleanlab_ranking, len(cleanlab_ranking)),
            "cleanlab_recall": share(cleanlab_ranking, count),
            "cleanlab_shared": float(np.isin(issues, cleanlab_ranking).mean()),
        }
    rest = np.setdiff1d(everything, issues)
    for name, seen, rows in (
        ("all", labels, everything),
        ("without", labels, rest),
        ("true", train.labels, everything),
    ):
        accuracy, nll = on_test(train, test, seen, rows, penalty)
        figures |= {f"{name}_accuracy": accuracy, f"{name}_nll": nll}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=("clinc", "topics"))
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"tasks": {}}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for task in arguments.tasks:
        started_at = time.process_time()
        (arguments.cache / task).mkdir(parents=True, exist_ok=True)
        place = Place(TASKS[task], arguments.shared, arguments.cache / task, 0)
        train, test = (embedded(place, name) for name in ("train", "test"))
        drawn = []
        for seed in range(SEEDS):
            drawn.append(compared(train, test, seed))
            print(task, seed, json.dumps(drawn[-1]), flush=True)
        summary = {
            name: [float(np.mean(values)), float(np.std(values, ddof=1))]
            for name in drawn[0]
            if (values := [figures[name] for figures in drawn])
        }
        results["tasks"][task] = summary
        for name, (mean, deviation) in summary.items():
            print(f"{task:8} {name:20} {mean:10.4f} ± {deviation:.4f}", flush=True)
        results |= {"machine": machine(), "seeds": SEEDS, "share": FLIPPED}
        write_text(RESULTS, json.dumps(results, indent=1) + "\n")
        print(f"{task}: {time.process_time() - started_at:.0f} s of the processor", flush=True)


if __name__ == "__main__":
    main()
