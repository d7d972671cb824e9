"""Token classifiers through every surgery, on a tiny model that learnt to tag."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from lives import BERT, Life
from row_files import read_lines, write_lines
from task_references import TokenClassification
from tiny_families import HEADS
from tiny_members import members_of, tune, tuned_of

import hydrasurgeon as hs

pytestmark = pytest.mark.slow

NAMES = ("O", "B-X", "I-X", "B-Y", "I-Y")


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return Life(TokenClassification, tmp_path_factory.mktemp("life"))


@pytest.fixture
def tuned(life: Life, tmp_path: Path) -> Path:
    """A copy of the tuned model, whose folder takes scores."""
    return Path(shutil.copytree(life.model, tmp_path / "model"))


def test_a_pruned_one_follows_its_teacher(tuned: Path, life: Life, tmp_path: Path) -> None:
    """The loss is T²·KL, a mean over the words of each text."""
    cut = hs.prune(tuned, method="magnitude", keep=1, out=tmp_path / "cut.safetensors").path
    before = life.measured(cut, "test")
    hs.finetune(
        cut,
        data=life.tables["train"],
        teacher=str(tuned),
        recipe="text",
        set={"epochs": "3", "lr": "2e-3", "batch_size": "8"},
        out=tmp_path / "followed.safetensors",
        device="cpu",
    )
    after = life.measured(tmp_path / "followed.safetensors", "test")
    assert after.nll < before.nll
    assert after.token_accuracy > before.token_accuracy


def test_taylor_is_the_gradient_of_the_loss_of_words(
    tuned: Path, life: Life, tmp_path: Path
) -> None:
    """Mean |W·G| of each head, and mean |∂L/∂m| of each neuron, by the library's own model: L is the
    mean over the words of a text."""
    import transformers

    rows = read_lines(life.tables["val"])[:12]
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


def test_means_and_hydras(tuned: Path, life: Life, tmp_path: Path) -> None:
    parts = tuned_of(members_of(tuned, BERT, tmp_path), tmp_path)
    whole = [tune(tuned, tmp_path / f"w{i}.safetensors", seed=i) for i in range(3)]
    checked = {"check": life.tables["val"], "device": "cpu"}
    hs.fuse(parts, out=tmp_path / "checked.safetensors", mlp="separate", **checked)
    mean = hs.fuse(whole, mean=True, out=tmp_path / "mean.safetensors").path
    trunk = hs.fuse(parts, mean_trunk=1, out=tmp_path / "trunk.safetensors").path
    for path in (mean, trunk):
        assert life.measured(path, "test").token_accuracy > 0.5
