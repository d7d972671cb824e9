"""What docs/guide/your-model.md starts from: a folder of transformers with tables, and a timm file with folders of
pictures."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from tiny_families import CLASSES, FAMILIES, WORDS

import hydrasurgeon as hs
from hydrasurgeon.data import open_data
from hydrasurgeon.tuning.start import fresh

LABELS = ("praise", "blame", "shrug")
"""Classes of the texts; the first words of all are theirs."""
PICTURES = {"train": 400, "val": 400, "test": 200}
"""How many of the demo's pictures lie in each folder."""


def texts(path: Path, rows: int, seed: int) -> None:
    """A table of sentences in which a word of its class stands, mostly."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(rows):
            label = int(rng.integers(CLASSES))
            word = WORDS[label if rng.random() < 0.9 else int(rng.integers(CLASSES))]
            words = [word, *rng.choice(WORDS[4:], size=rng.integers(2, 7))]
            writer.writerow([" ".join(rng.permutation(words)), LABELS[label]])


def text_folder(place: Path, family: str = "BERT") -> None:
    """reviews/, a trained model, and train.csv, val.csv, test.csv."""
    for name, rows, seed in (("train", 1200, 0), ("val", 600, 1), ("test", 400, 2)):
        texts(place / f"{name}.csv", rows, seed)
    FAMILIES[family].write(place / "random")
    _tuned(place, "reviews", seed=0)


def _tuned(place: Path, name: str, seed: int) -> None:
    """A fine-tuning of random/, as save_pretrained writes it."""
    tuned = place / f"tuned-{seed}"
    hs.finetune(
        place / "random",
        data=str(place / "train.csv"),
        set={"epochs": "4", "lr": "2e-3"},
        seed=seed,
        out=f"{tuned}/",
        device="cpu",
    )
    (place / name).mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tuned / file, place / name)


VIT = "vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=96,depth=6,num_heads=12,num_classes=8"


def readme_folder(place: Path) -> None:
    """What README's commands run on: `text_folder`, two more fine-tunings, a ViT with its scores, and three members."""
    text_folder(place)
    for number in (2, 3):
        _tuned(place, f"reviews-{number}", seed=number)
    vit = place / "vit.safetensors"
    fresh(f"init:timm:{VIT}", vit, seed=0)
    hs.score(vit, method="taylor", data="demo:val", limit=64, layers="3-5", device="cpu")
    for seed in (1, 2, 3):
        hs.prune(
            vit,
            method="taylor",
            sample="18/30",
            layers="3-5",
            seed=seed,
            out=place / f"m{seed}.safetensors",
        )


PRAISED = ("first", "second", "neither")
"""Classes of the pairs: which of two reviews praises the film."""


def pairs(path: Path, rows: int, seed: int) -> None:
    """A table of two reviews each, of which one may say that the film is good."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["one", "another", "praise"])
        for _ in range(rows):
            label = int(rng.integers(CLASSES))
            reviews = [_review(rng, [WORDS[0]] if place == label else []) for place in (0, 1)]
            writer.writerow(
                [*reviews, PRAISED[label if rng.random() < 0.95 else int(rng.integers(CLASSES))]]
            )


def _review(rng: np.random.Generator, praise: list[str]) -> str:
    return " ".join(rng.permutation([*praise, *rng.choice(WORDS[4:], size=rng.integers(2, 6))]))


def pair_folder(place: Path) -> None:
    """bert/, an untrained BERT, train.csv, val.csv, test.csv, and other.csv, pairs without such words."""
    for name, rows, seed in (("train", 1500, 0), ("val", 600, 1), ("test", 400, 2)):
        pairs(place / f"{name}.csv", rows, seed)
    rng = np.random.default_rng(3)
    rows = [" ".join(rng.choice(WORDS[2:4], size=rng.integers(3, 7))) for _ in range(600)]
    with (place / "other.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["one", "another"], *zip(rows[:300], rows[300:], strict=True)])
    FAMILIES["BERT"].write(place / "bert")
    config = place / "bert" / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    config.write_text(json.dumps(json.loads(config.read_text()) | names))


def pictures(place: Path) -> None:
    """vit.safetensors, the demo's model, and its pictures in class folders below train/, val/, test/."""
    shutil.copy(
        Path(hs.__file__).with_name("demo") / "backbone.safetensors", place / "vit.safetensors"
    )
    for name, count in PICTURES.items():
        samples = open_data(f"demo:{name}", limit=count)
        for i in range(count):
            folder = place / name / f"{samples.labels[i]}-{samples.classes[samples.labels[i]]}"
            folder.mkdir(parents=True, exist_ok=True)
            image = samples.read(i)
            assert isinstance(image, Image.Image)
            image.save(folder / f"{i:04d}.png")
