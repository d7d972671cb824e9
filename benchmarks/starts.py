"""When a hydra wins: models that do not share a start have no mean, and a hydra of them costs one model.

Each trio is three models of one task. `clothes`: small ViTs that were trained from different random weights. The others start
from one body and are tuned by recipes that differ in rate, classifier, augmentation and data order. Members are cut by Taylor (heads and
neurons) and repaired by least squares; nothing is trained after that. Every model is calibrated alike on the validation rows and on OOD
data that are not reported, and measured by `eval` on test rows that were not used before.

Files stay in --cache, so that an interrupted run goes on; recorded trios are left out. Writes benchmarks/results/starts.json, under the
task's name.

    python benchmarks/starts.py clothes --shared ../shared --cache build/starts --trios 5
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from front_models import TASKS as TUNED
from front_models import Place
from harness import machine

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import HydraError
from hydrasurgeon.files.atomic import write_text

RESULTS = Path(__file__).parent / "results" / "starts.json"
SCRATCH = (
    "init:timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=64,depth=6,num_heads=8,"
    "num_classes=8"
)
RECIPES = Path(__file__).parents[1] / "examples" / "paper"
MEMBERS = 3
SCORED = 1000
"""Training samples that heads and neurons are scored on, and members repaired."""
SHARES = {
    "thirds": (1 / 3, 1 / 3),
    "halves": (1 / 2, 1 / 2),
    "half the heads, a quarter of the neurons": (1 / 2, 1 / 4),
}
"""Name of a cut → the shares of heads and of neurons that each member keeps in every layer."""


@dataclass(frozen=True)
class Task:
    """Data, and how each of three models is trained."""

    sets: Mapping[str, str]
    """train, val, test, near, far, and choose: OOD data that scores are chosen by."""
    recipe: str
    tuning: Sequence[Mapping[str, str]]
    """Overrides of the recipe for each of the three models."""
    distilling: Mapping[str, str]
    """Overrides of the recipe teach."""
    dtype: Any = "float32"
    limit: int | None = None


TEXT = {"batch_size": "32", "max_length": "32", "epochs": "3"}
TEXT_RECIPES = (
    {**TEXT, "classifier": "probe", "lr": "5e-5"},
    {**TEXT, "classifier": "fresh", "lr": "2e-4", "classifier_lr": "1", "dropout": "0.2"},
    {**TEXT, "classifier": "fresh", "lr": "4e-4", "classifier_lr": "1", "mask_tokens": "0.15"},
)
"""A gentle training from a probe, and two that leave the start: a fresh classifier, a high rate, dropout or masked tokens."""
IMAGE = {"batch_size": "32", "label_smoothing": "0", "epochs": "2"}
TASKS = {
    "clothes": Task(
        TUNED["fashion"].sets,
        str(RECIPES / "scratch.toml"),
        ({"epochs": "30", "lr": "2e-3", "label_smoothing": "0"},) * MEMBERS,
        {"lr": "5e-4", "epochs": "4", "batch_size": "64"},
    ),
    "clinc": Task(
        TUNED["clinc"].sets,
        "text",
        TEXT_RECIPES,
        {"batch_size": "32", "epochs": "4", "max_length": "32"},
    ),
    "topics": Task(
        TUNED["topics"].sets,
        "text",
        TEXT_RECIPES,
        {"batch_size": "32", "epochs": "4", "max_length": "32"},
    ),
    "cifar": Task(
        TUNED["cifar"].sets,
        "image",
        (
            {**IMAGE, "classifier": "probe", "classifier_lr": "10"},
            {**IMAGE, "classifier": "fresh", "lr": "2e-4", "mixup": "0.5"},
            {
                **IMAGE,
                "classifier": "fresh",
                "lr": "1e-4",
                "augment.random_resized_crop": "[0.25,1.0]",
            },
        ),
        {"batch_size": "32", "lr": "3e-5", "epochs": "4"},
        dtype="bfloat16",
        limit=4000,
    ),
}
"""Name → the task."""


@dataclass
class Trio:
    """One trio of models, and the files that are made of it."""

    name: str
    task: Task
    number: int
    place: Place

    def data(self, name: str) -> str:
        return self.place.data(name)

    def start(self) -> str:
        if self.name == "clothes":
            return SCRATCH
        return TUNED[self.name].start(self.place)

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the file of this name, made where it is not there."""
        return self.place.once(name, make)

    def train(self, source: str | Path, out: Path, recipe: str, fields: Any, **more: Any) -> None:
        hs.finetune(
            source,
            data=self.data("train"),
            val=self.data("val"),
            limit=self.task.limit,
            recipe=recipe,
            set=dict(fields),
            device="cpu",
            dtype=self.task.dtype,
            out=out,
            **more,
        )

    def model(self, number: int) -> Path:
        fields, seed = (
            self.task.tuning[number],
            10 * self.number + number + 1,
        )  # as in examples/paper
        return self.once(
            f"model {number}",
            lambda out: self.train(self.start(), out, self.task.recipe, fields, seed=seed),
        )

    def models(self) -> list[Path]:
        return [self.model(number) for number in range(MEMBERS)]

    def distilled(self) -> Path:
        """Tune the first model on towards all three."""
        return self.once(
            "distilled",
            lambda out: self.train(
                self.model(0),
                out,
                "teach",
                self.task.distilling,
                teacher=self.models(),
                seed=self.number,
            ),
        )

    def mean(self) -> Path | None:
        """Average the models; None where they share no start."""
        try:
            return self.once("mean", lambda out: hs.fuse(self.models(), mean=True, out=out))
        except HydraError:
            return None

    def ensemble(self) -> Path:
        return self.once("ensemble", lambda out: hs.fuse(self.models(), mlp="separate", out=out))

    def scored(self, number: int) -> Path:
        about: Any = {"data": self.data("train"), "limit": SCORED, "device": "cpu"}

        def score(out: Path) -> None:
            hs.score(self.model(number), method="taylor", **about, out=out)
            hs.score(out, method="taylor", part="neurons", **about)

        return self.once(f"scored {number}", score)

    def member(self, number: int, cut: str) -> Path:
        heads, neurons = SHARES[cut]
        about: Any = {"data": self.data("train"), "limit": SCORED, "device": "cpu"}

        def prune(out: Path) -> None:
            scored = self.scored(number)
            (tower,) = open_checkpoint(scored).manifest.towers.values()
            hs.prune(
                scored,
                method="taylor",
                keep=round(heads * tower.heads),
                neurons=neurons,
                compensate="lstsq",
                **about,
                out=out,
            )

        return self.once(f"member {number} {cut}", prune)

    def hydra(self, cut: str) -> Path:
        members = [self.member(number, cut) for number in range(MEMBERS)]
        return self.once(f"hydra {cut}", lambda out: hs.fuse(members, mlp="separate", out=out))

    def ready(self, path: Path, *, cascade: bool = False, engine: Any = "torch") -> Path:
        """Calibrate a model on the validation rows."""
        return self.once(
            f"{path.stem} ready{' cascade' * cascade}{'' if engine == 'torch' else ' ' + engine}",
            lambda out: hs.calibrate(
                path,
                data=self.data("val"),
                fit_data=self.data("train"),
                ood=[self.data("choose")],
                words="off",
                **({"cascade": True} if cascade else {"engine": engine}),
                device="cpu",
                out=out,
            ),
        )

    def rows(self) -> Iterator[tuple[str, Path, bool]]:
        """Yield each row's name, its file, and whether a cascade answers."""
        for number in range(MEMBERS):
            yield f"single {number}", self.ready(self.model(number)), False
        yield "single 0, 8 bits", self.ready(self.model(0), engine="int8"), False
        yield "distilled", self.ready(self.distilled()), False
        mean = self.mean()
        if mean is not None:
            yield "mean", self.ready(mean), False
        for cut in SHARES:
            yield f"hydra, {cut}", self.ready(self.hydra(cut)), False
            yield f"hydra, {cut}, cascade", self.ready(self.hydra(cut), cascade=True), True
        yield "Deep Ensemble", self.ready(self.ensemble()), False


def measure(trio: Trio) -> dict[str, Any]:
    """Measure each row by `eval` on test rows: metrics, costs, and AUROC by set."""
    figures: dict[str, Any] = {}
    for name, path, cascade in trio.rows():
        report = hs.evaluate(
            [path],
            data=[trio.data("test")],
            ood=[f"near:near={trio.data('near')}", f"far:far={trio.data('far')}"],
            cascade=cascade,
            device="cpu",
        ).report
        result = json.loads(report.model_dump_json())["results"][0]  # behind a cascade: the whole
        inside, cost = result["id"], result["cost"]
        figures[name] = {
            **{key: inside[key] for key in ("accuracy", "nll", "ece", "brier")},
            **{one["name"]: one["auroc"] for one in result["ood"]},
            "macs": cost.get("expected_macs") or cost["macs"],
            "params": cost["params"],
            "disagreement": (result.get("diversity") or {}).get("disagreement"),
        }
        shown = "  ".join(
            f"{key} {value:.3f}" for key, value in figures[name].items() if value and value < 9
        )
        print(f"{trio.name} {trio.number} {name:45} {shown}", flush=True)
    single = figures["single 0"]["macs"]
    for row in figures.values():
        row["macs"] /= single
    return figures


def write(task: str, **changes: Any) -> None:
    """Add to what the file holds now."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[task] = results.get(task, {}) | changes
    write_text(RESULTS, json.dumps(results) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument(
        "--shared", type=Path, default=Path("../shared"), help="the folder with data"
    )
    parser.add_argument("--cache", type=Path, required=True, help="where models are kept")
    parser.add_argument("--trios", type=int, default=3)
    parser.add_argument("--train-only", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = TASKS[options.task]
    for number in range(options.trios):
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        trios = before.get(options.task, {}).get("trios", {})
        if str(number) in trios:
            continue
        place = Place(task, options.shared, options.cache / options.task / str(number), number)  # type: ignore[arg-type]
        place.cache.mkdir(parents=True, exist_ok=True)
        trio = Trio(options.task, task, number, place)
        if options.train_only:
            trio.models()
            continue
        write(options.task, **machine(), trios=trios | {str(number): measure(trio)})


if __name__ == "__main__":
    main()
