"""Configs as they lie on the hub pass the boundary: what it refuses is hostile, not merely old."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families import family_named
from hydrasurgeon.families.base import Bare
from hydrasurgeon.families.hf_encoder.architectures import stock_config, weights
from hydrasurgeon.families.open_clip.configs import stock_config as clip_config
from hydrasurgeon.families.timm_vit.architectures import table
from hydrasurgeon.families.timm_vit.architectures import tensor_shapes as timm_shapes
from hydrasurgeon.families.weights import shapes_of
from hydrasurgeon.files.tensors import TensorInfo

BERT = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
IMAGE = {
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 384,
    "image_size": 224,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "num_attention_heads": 6,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
    "qkv_bias": True,
}
REAL: dict[str, dict[str, Any]] = {
    "bert-base-uncased": {
        **BERT,
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "gradient_checkpointing": False,
        "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0",
        "use_cache": True,
    },
    "bert-base-multilingual-cased": {
        **BERT,
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
        "vocab_size": 119547,
    },
    "a fine-tuned BERT": {
        **BERT,
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "_name_or_path": "/home/x/bert",
        "id2label": {"0": "neg", "1": 1},
        "label2id": {"neg": 0, "1": 1},
        "problem_type": None,
        "torch_dtype": "float32",
        "classifier_dropout": None,
        "output_attentions": True,
        "max_length": 20,
        "num_beams": 1,
        "pruned_heads": {},
        "xla_device": None,
    },
    "roberta-base": {
        **BERT,
        "model_type": "roberta",
        "architectures": ["RobertaForMaskedLM"],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514,
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "vocab_size": 50265,
    },
    "distilbert sst-2": {
        "activation": "gelu",
        "architectures": ["DistilBertForSequenceClassification"],
        "attention_dropout": 0.1,
        "dim": 768,
        "dropout": 0.1,
        "finetuning_task": "sst-2",
        "hidden_dim": 3072,
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
        "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "model_type": "distilbert",
        "n_heads": 12,
        "n_layers": 6,
        "output_past": True,
        "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": 30522,
    },
    "electra-small": {
        **BERT,
        "model_type": "electra",
        "architectures": ["ElectraForPreTraining"],
        "embedding_size": 128,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
        "summary_type": "first",
        "summary_use_proj": True,
    },
    "mpnet-base": {
        **BERT,
        "model_type": "mpnet",
        "architectures": ["MPNetForMaskedLM"],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "max_position_embeddings": 514,
        "pad_token_id": 1,
        "relative_attention_num_buckets": 32,
        "vocab_size": 30527,
    },
    "vit-small": {
        **IMAGE,
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "encoder_stride": 16,
        "_name_or_path": "x",
        "id2label": {"0": "tench"},
        "pooler_act": "tanh",
        "pooler_output_size": 384,
    },
    "deit-small-distilled": {**IMAGE, "model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"]},
    "dinov2-small": {
        **IMAGE,
        "model_type": "dinov2",
        "architectures": ["Dinov2Model"],
        "apply_layernorm": True,
        "drop_path_rate": 0.0,
        "image_size": 518,
        "layerscale_value": 1.0,
        "mlp_ratio": 4,
        "out_features": ["stage12"],
        "out_indices": [12],
        "patch_size": 14,
        "reshape_hidden_states": True,
        "stage_names": ["stem", "stage1"],
        "use_swiglu_ffn": False,
        "layer_norm_eps": 1e-06,
    },
}


@pytest.mark.parametrize("name", REAL)
def test_transformers(name: str) -> None:
    """Two layers of each: what is recorded passes its own boundary, and transformers builds just these tensors."""
    depth = "n_layers" if "n_layers" in REAL[name] else "num_hidden_layers"
    raw = {**REAL[name], depth: 2}
    family = family_named("transformers")
    classes = len(raw.get("id2label", {}))
    shapes = shapes_of(weights(stock_config(raw, name), raw["architectures"][0], classes))
    tensors = {n: TensorInfo(n, "F32", shape, 0, 0) for n, shape in shapes.items()}
    model = family.identify(Bare(tensors, name, config=raw)).model
    towers = family.towers(model)
    family.check(model, towers, name)
    ((tower, size),) = towers.items()
    kept = {tower: (tuple(range(size.heads)),) * size.layers}
    module = family.build(model, towers, kept)
    built = {n: tuple(parameter.shape) for n, parameter in module.named_parameters()}
    assert built == shapes_of(family.weights(model))


def test_every_model_that_timm_registers() -> None:
    family = family_named("timm")
    assert len(table()) > 150
    for name, architecture in table().items():
        if not architecture.prunable:
            continue
        shapes = timm_shapes({**architecture.args, "num_classes": 7})
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
        model = family.identify(Bare(tensors, name, config=config)).model
        family.check(model, family.towers(model), name)
        assert model.preprocess == architecture.preprocess


def test_every_vit_that_openclip_knows() -> None:
    spec = find_spec("open_clip")
    assert spec is not None
    names = []
    for path in sorted(Path(next(iter(spec.submodule_search_locations or ())), "model_configs").glob("*.json")):
        raw = json.loads(path.read_text())
        try:
            clip_config(raw, path.stem)
        except SurgeryError:
            continue  # another kind of tower: said plainly elsewhere
        names.append(path.stem)
    assert {"ViT-B-32", "ViT-B-32-quickgelu", "ViT-L-14", "ViT-H-14", "ViT-bigG-14"} <= {*names}
    assert len(names) > 30
