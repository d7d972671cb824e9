"""Token classifiers through every surgery, on a tiny model that learnt to tag."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_files import read_lines, write_lines
from tiny_families import FAMILIES, HEADS, WORDS
from tiny_members import members_of, tune, tuned_of

import hydrasurgeon as hs

pytestmark = pytest.mark.slow

BERT = FAMILIES["BERT"]
NAMES = ("O", "B-X", "I-X", "B-Y", "I-Y")
QUIET = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
SETTINGS = {"epochs": "6", "lr": "2e-3", "batch_size": "8"}


def table(place: Path, rows: int, seed: int) -> str:
    """`good` begins an X and `bad` a Y; `very` goes on with either."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        words = [str(word) for word in rng.choice(WORDS, size=rng.integers(2, 9))]
        tags, kind = [], ""
        for word in words:
            kind = {"good": "X", "bad": "Y"}.get(word, kind if word == "very" else "")
            begins = "I" if word == "very" else "B"
            tags.append(f"{begins}-{kind}" if kind else "O")
        lines.append({"tokens": words, "tags": tags})
    return write_lines(place, lines)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data, and a model that was tuned on it."""
    home = tmp_path_factory.mktemp("tokens")
    BERT.write(home / "bert")
    place = home / "bert" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | QUIET))
    for name, rows, seed in (("train", 300, 1), ("val", 120, 2), ("test", 100, 3)):
        table(home / f"{name}.jsonl", rows, seed)
    hs.finetune(
        home / "bert",
        data=str(home / "train.jsonl"),
        val=str(home / "val.jsonl"),
        recipe="text",
        set={**SETTINGS, "task": "token_classification", "classifier": "fresh"},
        out=home / "t.safetensors",
        device="cpu",
    )
    return home


@pytest.fixture
def tuned(tmp_path: Path, home: Path) -> Path:
    for name in ("t.safetensors", "t.heads.json"):
        shutil.copy(home / name, tmp_path)
    return tmp_path / "t.safetensors"


def measured(checkpoint: Path, home: Path) -> Any:
    data = str(home / "test.jsonl")
    return hs.evaluate(checkpoint, data=data, device="cpu").report.results[0].id


def test_a_pruned_one_follows_its_teacher(tuned: Path, home: Path, tmp_path: Path) -> None:
    """The loss is T²·KL, a mean over the words of each text."""
    cut = hs.prune(tuned, method="magnitude", keep=1, out=tmp_path / "cut.safetensors").path
    before = measured(cut, home)
    hs.finetune(
        cut,
        data=str(home / "train.jsonl"),
        teacher=str(tuned),
        recipe="text",
        set={**SETTINGS, "epochs": "3"},
        out=tmp_path / "followed.safetensors",
        device="cpu",
    )
    after = measured(tmp_path / "followed.safetensors", home)
    assert after.nll < before.nll
    assert after.token_accuracy > before.token_accuracy


def test_taylor_is_the_gradient_of_the_loss_of_words(
    tuned: Path, home: Path, tmp_path: Path
) -> None:
    """Mean |W·G| of each head, and mean |∂L/∂m| of each neuron, by the library's own model: L is the
    mean over the words of a text."""
    import transformers

    rows = read_lines(home / "val.jsonl")[:12]
    data = write_lines(tmp_path / "some.jsonl", rows)
    options = {"method": "taylor", "data": data, "batch_size": 5, "device": "cpu"}
    heads = hs.score(tuned, **options).result.values["text"]
    neurons = hs.score(tuned, part="neurons", **options).result.values["text"]

    whole = hs.prune(tuned, method="magnitude", keep=HEADS, out=f"{tmp_path / 'whole'}/").path
    model = transformers.AutoModelForTokenClassification.from_pretrained(whole).eval()
    read = transformers.AutoTokenizer.from_pretrained(whole)
    layers = model.bert.encoder.layer
    masks = [torch.ones(layer.output.dense.in_features, requires_grad=True) for layer in layers]
    for layer, mask in zip(layers, masks, strict=True):
        layer.output.dense.register_forward_pre_hook(lambda _, args, mask=mask: args[0] * mask)
    by_neuron = [torch.zeros_like(mask) for mask in masks]
    for row in rows:
        words = model(**read(" ".join(row["tokens"]), return_tensors="pt")).logits[0, 1:-1]
        truth = torch.tensor([NAMES.index(tag) for tag in row["tags"]])
        loss = torch.nn.functional.cross_entropy(words, truth)
        (loss / len(rows)).backward()
        for total, mask in zip(by_neuron, masks, strict=True):
            total += mask.grad.abs()
            mask.grad = None
    for number, layer in enumerate(layers):
        own = layer.attention.self
        products = [
            (linear.weight * linear.weight.grad).abs().unflatten(0, (HEADS, -1)).mean(dim=(1, 2))
            for linear in (own.query, own.key, own.value)
        ]
        expected = torch.stack(products).mean(dim=0).tolist()
        assert heads[number] == pytest.approx(expected, rel=1e-3)
        assert neurons[number] == pytest.approx(by_neuron[number].tolist(), rel=1e-3, abs=1e-7)


def test_means_and_hydras(tuned: Path, home: Path, tmp_path: Path) -> None:
    parts = tuned_of(members_of(tuned, BERT, tmp_path), tmp_path)
    whole = [tune(tuned, tmp_path / f"w{i}.safetensors", seed=i) for i in range(3)]
    checked = {"check": str(home / "val.jsonl"), "device": "cpu"}
    hs.fuse(parts, out=tmp_path / "checked.safetensors", mlp="separate", **checked)
    mean = hs.fuse(whole, mean=True, out=tmp_path / "mean.safetensors").path
    trunk = hs.fuse(parts, mean_trunk=1, out=tmp_path / "trunk.safetensors").path
    for path in (mean, trunk):
        assert measured(path, home).token_accuracy > 0.5
