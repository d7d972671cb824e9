"""ModernBERT: rotations and windows by hand, its configs as they lie on the hub, and what all criteria make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from paper import SST2
from safetensors.torch import load_file
from tiny_families import CLASSES, DIM, FAMILIES, HEADS, tokenizer
from tiny_members import RAGGED, logits, member

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.families import family_of, family_of_bare
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.modernbert.family import ModernBert
from hydrasurgeon.families.weights import shapes_of
from hydrasurgeon.files.tensors import TensorInfo

FAMILY = FAMILIES["ModernBERT"]

# answerdotai/ModernBERT-base as transformers 4.48 wrote it, and a classifier as version 5 does.
BASE: dict[str, Any] = {
    "architectures": ["ModernBertForMaskedLM"],
    "classifier_pooling": "mean",
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "layer_norm_eps": 1e-05,
    "local_rope_theta": 10000.0,
    "model_type": "modernbert",
    "num_attention_heads": 12,
    "num_hidden_layers": 4,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "transformers_version": "4.47.0.dev0",
}
LATER = {
    **{key: value for key, value in BASE.items() if not key.endswith("rope_theta")},
    "architectures": ["ModernBertForSequenceClassification"],
    "id2label": {"0": "a", "1": "b"},
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_theta": 80000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 5000.0, "rope_type": "default"},
    },
}


def bare(config: dict[str, Any], classes: int = 2) -> BareCheckpoint:
    """Tensors of a config's model, as its library builds it."""
    import transformers

    kind = transformers.ModernBertForSequenceClassification
    with torch.device("meta"):
        built = kind(kind.config_class(**config, num_labels=classes))
    tensors = {
        name: TensorInfo(name, "F32", tuple(p.shape), 0, 0) for name, p in built.named_parameters()
    }
    return BareCheckpoint(tensors, "here", config=config)


@pytest.mark.parametrize("config", [BASE, LATER], ids=["hub", "version 5"])
def test_configs_as_they_lie_on_the_hub(config: dict[str, Any]) -> None:
    given = bare({key: value for key, value in config.items() if key != "id2label"})
    family = family_of_bare(given, config_file="config.json")
    assert isinstance(family, ModernBert)
    model = family.identify(given)[0]
    family.check(model, family.towers(model), "here")
    assert family_of(model) is family
    record = family.config(model)
    assert record.types == (
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    )
    thetas = (160000.0, 10000.0) if config is BASE else (80000.0, 5000.0)
    assert record.thetas == dict(zip(("full_attention", "sliding_attention"), thetas, strict=True))
    if config is LATER:
        named = {name: info.shape for name, info in given.tensors.items()}
        assert shapes_of(family.weights(model)) == named


def masked(folder: Path, **config: Any) -> Any:
    """A masked language model in a directory of its own."""
    import transformers

    FAMILY.write(folder.parent / "source")
    stored = transformers.AutoConfig.from_pretrained(folder.parent / "source", **config)
    torch.manual_seed(1)
    stock = transformers.ModernBertForMaskedLM(stored).eval()
    with torch.no_grad():
        for parameter in stock.head.parameters():
            parameter.normal_(0, 0.25)
    stock.save_pretrained(folder)
    tokenizer(folder)
    return stock


def test_a_masked_language_model_is_pruned_as_it_is(tmp_path: Path) -> None:
    """What fills in words is left out; its features are what a classifier would read."""
    stock = masked(tmp_path / "mlm")
    opened = open_checkpoint(tmp_path / "mlm")
    assert opened.manifest.model.num_classes == 0
    assert opened.note is not None
    assert "1 tensors that a classifier does not use are left out (decoder.bias" in opened.note
    inputs = FAMILY.inputs()
    with torch.inference_mode():
        expected = stock.head(stock.model(**inputs).last_hidden_state[:, 0])
    torch.testing.assert_close(logits(tmp_path / "mlm", inputs)[:, 0], expected, rtol=0, atol=1e-5)
    half = member(tmp_path / "mlm", FAMILY, RAGGED, f"{tmp_path}/half/")
    assert {"head.dense.weight", "head.norm.weight"} <= load_file(half / "model.safetensors").keys()
    assert "prediction_head" not in json.loads((half / "config.json").read_text())


@pytest.mark.parametrize("classifier", ["keep", "zero"])
def test_a_masked_language_models_head_goes_on_to_a_classifier(
    tmp_path: Path, classifier: str
) -> None:
    """As `from_pretrained` of a sequence classifier takes it: only the last layer is new."""
    import transformers

    stock = masked(tmp_path / "mlm")
    theirs = transformers.ModernBertForSequenceClassification.from_pretrained(tmp_path / "mlm")
    tuned = hs.finetune(
        tmp_path / "mlm",
        data=FAMILY.data(tmp_path),
        recipe=SST2,
        out=tmp_path / "t.safetensors",
        device="cpu",
        set={"steps": "1", "lr": "1e-30", "classifier": classifier},
    )
    assert tuned.manifest.model.num_classes == CLASSES
    assert "prediction_head" not in tuned.manifest.model.config
    tensors = load_file(tuned.path)
    for name, parameter in stock.head.named_parameters():
        assert torch.equal(tensors[f"head.{name}"], parameter), name
        assert torch.equal(theirs.head.get_parameter(name), parameter), name
    assert tensors["classifier.weight"].shape == (CLASSES, DIM)
    assert (float(tensors["classifier.weight"].abs().max()) > 1e-20) is (classifier == "keep")


def test_layers_turn_by_their_own_angles_and_see_their_own_window(tmp_path: Path) -> None:
    """q · k depends on the distance of their positions: the same vectors, turned by hand in the complex plane."""
    FAMILY.write(tmp_path / "source")
    anatomy = hs.load(tmp_path / "source", device="cpu").anatomy
    x = torch.randn(1, HEADS, 9, DIM // HEADS, generator=torch.Generator().manual_seed(0))
    half = DIM // HEADS // 2
    for block, theta in zip(anatomy.blocks, (160000.0, 10000.0, 10000.0), strict=True):
        assert block.attention.rotate is not None
        speeds = theta ** (-torch.arange(half) / half)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(
            1j * torch.arange(9)[:, None] * speeds
        )
        expected = torch.cat([turned.real, turned.imag], dim=-1)
        torch.testing.assert_close(block.attention.rotate(x), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(
            block.attention.rotate(x[:, :, :1]), expected[:, :, :1], rtol=0, atol=1e-5
        )
    assert anatomy.blocks[0].attention.bias is None
    assert isinstance(anatomy.blocks[0].norm1, torch.nn.Identity)
    for block in anatomy.blocks[1:]:
        assert block.attention.bias is not None
        seen = block.attention.bias(torch.zeros(1, 6, DIM))[0, 0] > -1
        assert seen.sum(dim=1).tolist() == [3, 4, 5, 5, 4, 3]  # two to each side
