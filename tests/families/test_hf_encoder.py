"""transformers checkpoints as people have them: without classifier, old names, shards, real weights; and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paper import SST2
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES, TEXT, tokenizer

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, DataError, ManifestError


def bare_bert(folder: Path, **arguments: Any) -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(**TEXT), **arguments).eval()
    model.save_pretrained(folder)
    tokenizer(folder)
    return model


@pytest.mark.parametrize("pooler", [True, False])
def test_an_encoder_without_classifier_gets_one(tmp_path: Path, pooler: bool) -> None:
    bare_bert(tmp_path / "b", add_pooling_layer=pooler)
    opened = open_checkpoint(tmp_path / "b")
    assert opened.manifest.model.num_classes == 0
    assert opened.note is not None
    assert "no classifier" in opened.note
    pruned = hs.prune(tmp_path / "b", method="magnitude", keep=2, out=tmp_path / "m.safetensors")
    data = FAMILIES["BERT"].data(tmp_path)
    with pytest.raises(DataError):
        hs.score(tmp_path / "b", method="taylor", data=data, device="cpu")
    tuned = hs.finetune(
        pruned.path, data=data, recipe=SST2, set={"steps": "2"}, out=tmp_path / "t", device="cpu"
    )
    assert tuned.manifest.model.num_classes == 3
    assert (
        tuned.manifest.model.preprocess["max_length"] == 24
    )  # the tokenizer's, below the recipe's
    names = load_file(tuned.path)
    assert names["classifier.weight"].shape == (3, 32)
    assert names["bert.pooler.dense.weight"].shape == (32, 32)
    before = load_file(pruned.path)["bert.encoder.layer.0.attention.self.query.weight"]
    after = names["bert.encoder.layer.0.attention.self.query.weight"]
    assert before.shape == after.shape == (16, 32)
    assert (before - after).abs().max() < 1e-3  # tuned, not drawn anew


def test_old_names_and_pretraining_heads(tmp_path: Path) -> None:
    """bert-base-uncased as it lies on the hub: gamma and beta, cls.predictions.*, position ids."""
    model = bare_bert(tmp_path / "b")
    tensors = {f"bert.{name}": value for name, value in model.state_dict().items()}
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in tensors.items()
    }
    tensors["cls.predictions.bias"] = torch.zeros(14)
    tensors["bert.embeddings.position_ids"] = torch.arange(32)[None]
    save_file(tensors, tmp_path / "b" / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    config["architectures"] = ["BertForPreTraining"]
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    inputs = FAMILIES["BERT"].inputs()
    with torch.no_grad():
        expected = model(**inputs).pooler_output
    # The directory, and the weight file in it.
    for spec in (tmp_path / "b", tmp_path / "b" / "model.safetensors"):
        found = hs.load(spec, device="cpu")
        torch.testing.assert_close(found(inputs)[:, 0].detach(), expected, rtol=0, atol=1e-6)
    assert "cls.predictions.bias" in (open_checkpoint(tmp_path / "b").note or "")


def test_texts_need_the_tokenizer_and_images_an_image_model(tmp_path: Path) -> None:
    FAMILIES["BERT"].write(tmp_path / "b")
    texts = FAMILIES["BERT"].data(tmp_path)
    pictures = FAMILIES["ViT"].data(tmp_path)
    with pytest.raises(DataError, match="holds images, the model reads texts"):
        hs.score(tmp_path / "b", method="taylor", data=pictures, device="cpu")
    hs.score(tmp_path / "b", method="taylor", data=texts, device="cpu")
    # Scores are recorded beside the files; another tokenizer would make them lies.
    told = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())
    (tmp_path / "b" / "tokenizer_config.json").write_text(
        json.dumps({**told, "model_max_length": 7})
    )
    with pytest.raises(ManifestError, match="another tokenizer"):
        open_checkpoint(tmp_path / "b")
    for name in ("heads.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "b" / name).unlink()
    with pytest.raises(CheckpointError, match="no tokenizer"):
        hs.score(tmp_path / "b", method="taylor", data=texts, device="cpu")


@pytest.mark.parametrize("kind", ["ViT", "DeiT", "DINOv2"])
@pytest.mark.parametrize("stored", [True, False])
def test_images_are_prepared_as_the_checkpoint_says(
    tmp_path: Path, kind: str, stored: bool
) -> None:
    """The library's own processor against ours."""
    from transformers import (
        AutoImageProcessor,
        BitImageProcessor,
        DeiTImageProcessor,
        ViTImageProcessor,
    )

    processors = {
        "ViT": ViTImageProcessor(size={"height": 28, "width": 28}),
        "DeiT": DeiTImageProcessor(
            size={"height": 32, "width": 32}, crop_size={"height": 28, "width": 28}
        ),
        "DINOv2": BitImageProcessor(
            size={"shortest_edge": 32}, crop_size={"height": 28, "width": 28}, resample=3
        ),
    }
    FAMILIES[kind].write(tmp_path / "v")
    if stored:
        processors[kind].save_pretrained(tmp_path / "v")
    ours = hs.load(tmp_path / "v", device="cpu").transform
    out = hs.prune(tmp_path / "v", method="magnitude", keep=4, out=f"{tmp_path / 'out'}/").path
    theirs = AutoImageProcessor.from_pretrained(out)
    smooth = np.linspace(0, 255, 50 * 70 * 3).reshape(50, 70, 3).astype(np.uint8)
    image = Image.fromarray(smooth)
    expected = theirs(image, return_tensors="pt")["pixel_values"][0]
    found = ours(image)
    assert found.shape == expected.shape == (3, 28, 28)
    assert (found - expected).abs().max() < 1e-5


def test_inspecting_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    FAMILIES["DistilBERT"].write(tmp_path / "d")
    code = (
        f"import sys; from hydrasurgeon.stages.inspect import inspect; found = inspect({str(tmp_path / 'd')!r});"
        " print(found.manifest.model.arch, *(n for n in ('torch', 'transformers', 'open_clip', 'timm') if n in"
        " sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["DistilBertForSequenceClassification"]
