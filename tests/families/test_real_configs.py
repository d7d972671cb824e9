"""Configs as they lie on the hub pass the boundary: what it refuses is hostile, not merely old."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.hf_encoder.architectures import stock_config, weights
from hydrasurgeon.families.hf_encoder.family import HFEncoder
from hydrasurgeon.families.open_clip.family import stock_config as clip_config
from hydrasurgeon.families.timm_vit.architectures import table
from hydrasurgeon.families.timm_vit.architectures import weights as timm_weights
from hydrasurgeon.families.timm_vit.family import TimmViT
from hydrasurgeon.families.weights import shapes_of
from hydrasurgeon.files.tensors import TensorInfo

# What releases of the library and its users wrote beside what the library writes today: type, class, and more.
REAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert-base-uncased": (
        "bert",
        "BertForMaskedLM",
        {"gradient_checkpointing": False, "position_embedding_type": "absolute", "use_cache": True},
    ),
    "bert-base-multilingual-cased": (
        "bert",
        "BertForMaskedLM",
        {
            "directionality": "bidi",
            "pooler_fc_size": 768,
            "pooler_type": "first_token_transform",
            "vocab_size": 119547,
        },
    ),
    "a fine-tuned BERT": (
        "bert",
        "BertForSequenceClassification",
        {
            "_name_or_path": "/home/x/bert",
            "id2label": {"0": "neg", "1": 1},
            "problem_type": None,
            "torch_dtype": "float32",
            "classifier_dropout": None,
            "max_length": 20,
            "pruned_heads": {},
            "xla_device": None,
        },
    ),
    "roberta-base": (
        "roberta",
        "RobertaForMaskedLM",
        {
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 514,
            "pad_token_id": 1,
            "type_vocab_size": 1,
        },
    ),
    "xlm-roberta-base": (
        "xlm-roberta",
        "XLMRobertaForMaskedLM",
        {
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 514,
            "output_past": True,
            "vocab_size": 250002,
        },
    ),
    "camembert-base": (
        "camembert",
        "CamembertForMaskedLM",
        {"max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 32005},
    ),
    "distilbert sst-2": (
        "distilbert",
        "DistilBertForSequenceClassification",
        {
            "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
            "finetuning_task": "sst-2",
            "tie_weights_": True,
        },
    ),
    "electra-small": (
        "electra",
        "ElectraForPreTraining",
        {"summary_activation": "gelu", "summary_use_proj": True},
    ),
    "mpnet-base": (
        "mpnet",
        "MPNetForMaskedLM",
        {"max_position_embeddings": 514, "vocab_size": 30527},
    ),
    "vit-small": (
        "vit",
        "ViTForImageClassification",
        {
            "hidden_size": 384,
            "num_attention_heads": 6,
            "id2label": {"0": "tench"},
            "pooler_act": "tanh",
        },
    ),
    "deit-small-distilled": ("deit", "DeiTForImageClassificationWithTeacher", {"hidden_size": 384}),
    "dinov2-small": (
        "dinov2",
        "Dinov2Model",
        {
            "image_size": 518,
            "out_features": ["stage12"],
            "apply_layernorm": True,
            "use_swiglu_ffn": False,
        },
    ),
    "dinov2-with-registers-small": (
        "dinov2_with_registers",
        "Dinov2WithRegistersForImageClassification",
        {
            "image_size": 518,
            "patch_size": 14,
            "hidden_size": 384,
            "num_attention_heads": 6,
            "num_register_tokens": 4,
        },
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_transformers(name: str) -> None:
    """Two layers of each: what is recorded passes its own boundary, and transformers builds just these tensors."""
    from transformers import AutoConfig

    kind, arch, more = REAL[name]
    depth = "n_layers" if kind == "distilbert" else "num_hidden_layers"
    stock = {
        key: value
        for key, value in AutoConfig.for_model(kind).to_dict().items()
        if key != "id2label"
    }
    raw = {**stock, **more, "model_type": kind, "architectures": [arch], depth: 2}
    family = HFEncoder()
    shapes = shapes_of(weights(stock_config(raw, name), arch, len(raw.get("id2label", {}))))
    tensors = {n: TensorInfo(n, "F32", shape, 0, 0) for n, shape in shapes.items()}
    model = family.identify(BareCheckpoint(tensors, name, config=raw))[0]
    towers = family.towers(model)
    family.check(model, towers, name)
    ((tower, size),) = towers.items()
    kept = {tower: (tuple(range(size.heads)),) * size.layers}
    module = family.build(model, kept)
    built = {n: tuple(parameter.shape) for n, parameter in module.named_parameters()}
    assert built == shapes_of(family.weights(model))


def test_every_model_that_timm_registers() -> None:
    family = TimmViT()
    assert len(table()) > 150
    for name, architecture in table().items():
        if not architecture.prunable:
            continue
        shapes = shapes_of(timm_weights({**architecture.args, "num_classes": 7}))
        tensors = {n: TensorInfo(n, "F32", shape, 0, 0) for n, shape in shapes.items()}
        config = {
            "architecture": f"{name}.augreg_in1k",
            "num_classes": 7,
            "num_features": 1,
            "global_pool": "token",
            "model_args": None,
            "pretrained_cfg": {
                **architecture.preprocess,
                "tag": "augreg_in1k",
                "custom_load": False,
                "pool_size": None,
                "fixed_input_size": True,
                "first_conv": "patch_embed.proj",
                "classifier": "head",
            },
        }
        model = family.identify(BareCheckpoint(tensors, name, config=config))[0]
        family.check(model, family.towers(model), name)
        assert model.preprocess == architecture.preprocess


def test_every_vit_that_openclip_knows() -> None:
    spec = find_spec("open_clip")
    assert spec is not None
    names = []
    for path in sorted(
        Path(next(iter(spec.submodule_search_locations or ())), "model_configs").glob("*.json")
    ):
        raw = json.loads(path.read_text())
        try:
            clip_config(raw, path.stem)
        except SurgeryError:
            continue  # another kind of tower: said plainly elsewhere
        names.append(path.stem)
    assert {"ViT-B-32", "ViT-B-32-quickgelu", "ViT-L-14", "ViT-H-14", "ViT-bigG-14"} <= {*names}
    assert len(names) > 30
