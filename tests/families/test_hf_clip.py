"""transformers' CLIP and SigLIP beside the uniform suite: configs of the hub, what is left out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from paper import SCRATCH
from tiny_families import CLASSES, FAMILIES, IMAGE, transformers_model
from tiny_members import logits

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import as_single, open_checkpoint
from hydrasurgeon.errors import CheckpointError, SurgeryError
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.hf_clip.family import KINDS, HFClip, ImageTowerConfig, flat, weights
from hydrasurgeon.families.hf_encoder.architectures import stock_config
from hydrasurgeon.families.weights import shapes_of
from hydrasurgeon.files.tensors import TensorInfo

OLD = {
    "architectures": ["CLIPModel"],
    "model_type": "clip",
    "initializer_factor": 1.0,
    "projection_dim": 512,
    "text_config": {"hidden_size": 512, "id2label": {"0": "LABEL_0"}},
    "text_config_dict": None,
    "vision_config": {
        "add_cross_attention": False,
        "attention_dropout": 0.0,
        "chunk_size_feed_forward": 0,
        "dropout": 0.0,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
        "is_decoder": False,
        "model_type": "clip_vision_model",
        "num_hidden_layers": 2,
        "patch_size": 32,
    },
    "vision_config_dict": None,
}
"""openai/clip-vit-base-patch32, of two layers."""
NEW = {
    "architectures": ["SiglipModel"],
    "model_type": "siglip",
    "text_config": {"vocab_size": 256000},
    "vision_config": {
        "model_type": "siglip_vision_model",
        "num_hidden_layers": 2,
        "vision_use_head": True,
    },
}
"""google/siglip2-base-patch16-224, of two layers."""
ALONE = {
    "architectures": ["SiglipVisionModel"],
    "model_type": "siglip_vision_model",
    "num_hidden_layers": 2,
}
"""Its image tower."""


@pytest.mark.parametrize("raw", [OLD, NEW, ALONE], ids=["CLIP", "SigLIP 2", "tower"])
def test_the_hubs_config_makes_the_librarys_tensors(raw: dict[str, Any]) -> None:
    family = HFClip()
    config = stock_config(flat(raw, "here"), "here", KINDS)
    assert isinstance(config, ImageTowerConfig)
    tensors = {
        n: TensorInfo(n, "F32", shape, 0, 0) for n, shape in shapes_of(weights(config, 0)).items()
    }
    bare = BareCheckpoint(tensors, "here", config=raw)
    assert family.recognises(bare)
    model = family.identify(bare)[0]
    assert model.preprocess["crop_mode"] == ("center" if raw is OLD else "squash")
    assert model.preprocess["input_size"] == [3, 224, 224]
    family.check(model, family.towers(model), "here")
    named = family.with_classes(model, 3, None)
    module = family.build(named, {"vision": (tuple(range(12)),) * 2})
    assert {n: tuple(p.shape) for n, p in module.named_parameters()} == shapes_of(
        family.weights(named)
    )


def test_the_config_that_the_library_takes_of_two() -> None:
    """Files of version 4 may say it twice."""
    raw = OLD | {"vision_config_dict": {"num_hidden_layers": 3, "patch_size": 16}}
    assert flat(raw, "here")["num_hidden_layers"] == 3
    with pytest.raises(CheckpointError, match="vision_config: is not a JSON object"):
        flat(OLD | {"vision_config": [1]}, "here")


@pytest.mark.parametrize("name", ["CLIP", "SigLIP 2"])
def test_both_towers_become_the_body_of_a_classifier(name: str, tmp_path: Path) -> None:
    """What belongs to texts is left out, and a classifier is put on what stands before the library's own."""
    cls = "CLIPModel" if name == "CLIP" else "SiglipModel"
    text = {
        **IMAGE,
        "vocab_size": 20,
        "max_position_embeddings": 8,
        "eos_token_id": 2,
        "bos_token_id": 0,
    }
    model = transformers_model(cls, {"vision_config": IMAGE, "text_config": text})
    model.save_pretrained(tmp_path / "both")
    wanted = f"transformers:{cls.removesuffix('Model')}ForImageClassification"
    opened = open_checkpoint(tmp_path / "both", arch=wanted)
    assert "has no classifier" in str(as_single(opened).note)
    assert not [name for name in opened.tensors if name.startswith("text_model.")]
    family = FAMILIES[name]
    data = family.data(tmp_path)
    options = {"steps": "2", "warmup": "0", "batch_size": "8"}
    tuned = hs.finetune(
        tmp_path / "both",
        arch=wanted,
        data=data,
        recipe=SCRATCH,
        set=options,
        out=f"{tmp_path}/t/",
        device="cpu",
    )
    images = family.inputs()
    theirs = family.stock(tuned.path)(images)
    assert theirs.shape == (5, CLASSES)
    torch.testing.assert_close(logits(tuned.path, images)[:, 0], theirs, rtol=0, atol=1e-5)
    with torch.no_grad():
        hidden = model.vision_model(images).last_hidden_state
    patches = hidden[:, 1:] if name == "CLIP" else hidden
    untouched = hs.prune(
        tmp_path / "both", arch=wanted, method="magnitude", keep=4, out=tmp_path / "all.safetensors"
    ).path
    torch.testing.assert_close(
        logits(untouched, images)[:, 0], patches.mean(dim=1), rtol=0, atol=1e-5
    )


def test_images_of_any_shape_are_refused(tmp_path: Path) -> None:
    FAMILIES["SigLIP 2"].write(tmp_path / "s")
    config = tmp_path / "s" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "siglip2"}))
    with pytest.raises(SurgeryError, match="siglip2 is not supported") as refused:
        open_checkpoint(tmp_path / "s")
    assert "The nearest is siglip." in str(refused.value.hint)
