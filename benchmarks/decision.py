"""Worth of decision states: every OOD score on three real tasks, single models and hydras, and
whether promises are kept.

The tasks, their models and data stand in benchmarks/decision_models.py. For each of three seeds (which part of the training
data OOD
scores are fitted on, which half of the validation data fits, the training or the classifier, and the draws of members)
the figures are of test data and of OOD data that were not used before. `auto` chooses by perturbed validation
data, alone or with other OOD data. Promises are tried over random splits of validation and test data together: one
half calibrates, the other
counts. Writes benchmarks/results/decision.json, piece by piece.

    python benchmarks/decision.py [--piece fashion-mnist|dinov2|minilm|fitting] [--shared ../shared] [--cache FOLDER]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decision_models import SEEDS, TASKS, Answers, Task, share
from harness import machine
from numpy import ndarray

from hydrasurgeon.decision.fitting import fit_state, halves
from hydrasurgeon.decision.ood_score import Grounds
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import FITTED
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.statistics.abstain import Graded, fit_abstention
from hydrasurgeon.statistics.conformal import fit_conformal, prediction_sets
from hydrasurgeon.statistics.metrics import auroc, ece
from hydrasurgeon.statistics.probabilities import Labels, Probs, mean_probs, of_labels, surest
from hydrasurgeon.statistics.scores.evidence import Evidence, Gathering
from hydrasurgeon.statistics.scores.fitted import fit, scores_of
from hydrasurgeon.statistics.scores.on_logits import ON_LOGITS
from hydrasurgeon.tasks.base import Outputs

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "decision.json"
SPLITS = {"conformal": 100, "risk": 200}
RISK, DELTA = 0.05, 0.05


def evidence(answers: Answers, seed: int) -> list[Evidence]:
    """Gather the statistics that scores are fitted on, from a part of the training data."""
    train = answers.sets["train"]
    train = train.at(share(len(train.logits), seed))
    assert train.features is not None
    assert train.labels is not None
    members = []
    for m, (weight, bias) in enumerate(answers.classifiers):
        gathering = Gathering(weight, bias, seed=seed)
        gathering.add(train.features[:, m], train.logits[:, m], train.labels)
        members.append(gathering.evidence())
    return members


def measured(answers: Answers, task: Task, seed: int) -> dict[str, Any]:
    """Measure one model of one seed: AUROC of every score, the choice of auto, calibration before
    and after.
    """
    fits, val, test = evidence(answers, seed), answers.sets["val"], answers.sets["test"]
    held = val.at(halves(len(val.logits), seed)[0])
    assert held.features is not None
    worth: dict[str, dict[str, float]] = {}
    for kind in (*ON_LOGITS, *FITTED):
        if kind == "mcm" or (kind == "mi" and len(fits) == 1):
            continue
        fitted = fit(kind, fits, (held.features, held.logits)) if kind in FITTED else None
        inside = scores_of(kind, test.logits, test.features, fitted)
        worth[kind] = {}
        for name in task.sets:
            out = answers.sets[name]
            worth[kind][name] = (
                auroc(inside, scores_of(kind, out.logits, out.features, fitted)) or 0.0
            )
        worth[kind]["mean"] = statistics.mean(worth[kind].values())
    chosen = {}
    for by, names in (("perturbed", ("perturbed",)), ("foreign", ("perturbed", task.chooses))):
        ood = [answers.sets[name] for name in names]
        state, _ = fit_state(
            val,
            CalibrateOptions.of("", data="", out="", seed=seed),
            Grounds(evidence=fits, ood=ood),
        )
        chosen[by] = state.record.ood.score
    before, after = mean_probs(test.logits), state.answers(test.logits)
    assert test.labels is not None
    correct = before.argmax(axis=-1) == test.labels
    return {
        "accuracy": float(correct.mean()),
        "auroc": worth,
        "auto": chosen,
        "nll": losses(before, after, test.labels),
        "ece": [ece(before, test.labels), ece(after, test.labels)],
    }


def losses(before: Probs, after: Probs, labels: Labels) -> dict[str, float]:
    """Return the NLL before and after, and the 95 % interval of their difference."""
    nll_of_both = [
        -np.log(np.maximum(of_labels(probs, labels), 1e-300)) for probs in (before, after)
    ]
    change = nll_of_both[1] - nll_of_both[0]
    return {
        "before": float(nll_of_both[0].mean()),
        "after": float(nll_of_both[1].mean()),
        "interval": 1.96 * float(change.std(ddof=1)) / math.sqrt(len(change)),
    }


def promises(val: Outputs, test: Outputs) -> dict[str, Any]:
    """Return the coverage of the sets, and how often the promised risk is broken, over random
    splits.
    """
    assert val.labels is not None
    assert test.labels is not None
    probs = mean_probs(np.concatenate([val.logits, test.logits]))
    labels = np.concatenate([val.labels, test.labels])
    random = np.random.default_rng(0)
    covered, sizes = [], []
    for _ in range(SPLITS["conformal"]):
        order = random.permutation(len(labels))
        fitted, tried = order[500 : len(order) // 2], order[len(order) // 2 :]
        sets = prediction_sets(fit_conformal(probs[fitted], labels[fitted]), probs[tried])
        covered.append(float(of_labels(sets, labels[tried]).mean()))
        sizes.append(float(sets.sum(axis=-1).mean()))
    broken, refused, answered = 0, 0, []
    sure, label = surest(probs)
    right = label == labels
    for _ in range(SPLITS["risk"]):
        order = random.permutation(len(labels))
        fitted, tried = order[: len(order) // 2], order[len(order) // 2 :]
        try:
            third = len(fitted) // 3
            ordering, certifying = (
                Graded(sure[part], right[part]) for part in (fitted[:third], fitted[third:])
            )
            rule = fit_abstention(ordering, [certifying], risk=RISK, delta=DELTA)
        except DataError:
            refused += 1
            continue
        kept = sure[tried] >= rule.threshold
        answered.append(float(kept.mean()))
        broken += float((~right[tried][kept]).mean()) > RISK
    return {
        "coverage": {"lac": statistics.mean(covered)},
        "size": {"lac": statistics.mean(sizes)},
        "risk": {
            "splits": SPLITS["risk"],
            "broken": broken,
            "refused": refused,
            "answered": statistics.mean(answered) if answered else None,
        },
    }


def pieces(name: str, cache: Path, shared: Path) -> dict[str, Any]:
    """Measure both models of every seed of a task, and the promises of the first seed."""
    task = TASKS[name]
    results: dict[str, Any] = {
        "near": task.near,
        "far": task.far,
        "chooses": task.chooses,
        "models": {},
    }
    for seed in SEEDS:
        for kind, answers in task.answers(cache / name, shared, seed).items():
            model = measured(answers, task, seed)
            if seed == SEEDS[0]:
                model["promises"] = promises(answers.sets["val"], answers.sets["test"])
            results["models"].setdefault(kind, {})[str(seed)] = model
            means = {score: round(values["mean"], 4) for score, values in model["auroc"].items()}
            print(name, seed, kind, model["auto"], means, flush=True)
    return results


# What is fitted in `fitting`: as many classes and as wide as ImageNet's of a ViT-B.
CLASSES, WIDTH, COUNT = 1000, 768, 50_000


def synthetic(count: int, seed: int, weight: ndarray) -> Outputs:
    random = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    features = random.normal(size=(count, WIDTH)).astype(np.float32)
    features += weight[labels] * 3
    return Outputs((features @ weight.T)[:, None], features[:, None], labels)


def fit_large(kind: str) -> None:
    """Fit one score, and print the time and memory that the process takes."""
    drawn = np.random.default_rng(0).normal(size=(CLASSES, WIDTH)) / WIDTH**0.5
    weight, bias = drawn.astype(np.float32), np.zeros(CLASSES)
    if kind == "calibrate":
        val, ood = synthetic(COUNT, 1, weight), synthetic(2000, 2, weight)
        start, spent = time.perf_counter(), time.process_time()
        fit_state(
            val,
            CalibrateOptions.of("", data="", out=""),
            Grounds(classifiers=[(weight, bias)], ood=[ood]),
        )
        bytes_stored = 0
    else:
        gathering = Gathering(weight, bias)
        seconds, cpu = 0.0, 0.0
        for number in range(COUNT // 1000):
            some = synthetic(1000, number, weight)
            assert some.features is not None
            assert some.labels is not None
            start, spent = time.perf_counter(), time.process_time()
            for rows in np.arange(1000).reshape(-1, 50):
                gathering.add(some.features[rows, 0], some.logits[rows, 0], some.labels[rows])
            seconds, cpu = seconds + time.perf_counter() - start, cpu + time.process_time() - spent
        assert some.features is not None
        start, spent = time.perf_counter() - seconds, time.process_time() - cpu
        fitted = fit(kind, [gathering.evidence()], (some.features, some.logits))
        bytes_stored = sum(part.size * 4 for part in fitted.fits[0].values())
    result = {
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - spent,
        "bytes": bytes_stored,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))


def fitting() -> dict[str, Any]:
    """Measure the fit of every score, from 50,000 features in batches, and of all that `calibrate`
    fits to as many validation samples.
    """
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "scores": {}}
    for name in (*(kind for kind in FITTED if kind != "mcm"), "calibrate"):
        command = [sys.executable, str(Path(__file__).resolve()), "--fit", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results["scores"][name] = json.loads(done.stdout)
        print("fitting", name, results["scores"][name], flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--piece", action="append", choices=[*TASKS, "fitting"])
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", help="data and models"
    )
    parser.add_argument("--cache", type=Path, help="what models said, kept from run to run")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit is not None:
        return fit_large(arguments.fit)
    with tempfile.TemporaryDirectory() as folder:
        for piece in arguments.piece or [*TASKS, "fitting"]:
            if piece in TASKS and not arguments.shared.is_dir():
                print(f"{piece}: left out, there is no {arguments.shared}", flush=True)
                continue
            cache = arguments.cache or Path(folder)
            piece_results = (
                fitting() if piece == "fitting" else pieces(piece, cache, arguments.shared)
            )
            # Read again: another piece may have been written meanwhile.
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            results.setdefault("pieces", {})[piece] = {
                "machine": machine(),
                "torch": torch.__version__.partition("+")[0],
                **piece_results,
            }
            RESULTS.write_text(json.dumps(results) + "\n")
    return None


if __name__ == "__main__":
    main()
