"""DeBERTa's variants beside the uniform suite: which terms there are, what is on disk, what is refused, its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_families import TEXT, deberta

from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, SurgeryError
from hydrasurgeon.families import family_of
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.deberta.family import DebertaV2, DebertaV2Config, weights
from hydrasurgeon.families.weights import shapes_of
from hydrasurgeon.files.tensors import TensorInfo

V3 = {
    "model_type": "deberta-v2",
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "layer_norm_eps": 1e-7,
    "max_relative_positions": -1,
    "position_biased_input": False,
    "num_attention_heads": 12,
    "num_hidden_layers": 2,
    "type_vocab_size": 0,
    "vocab_size": 128100,
}
"""microsoft/deberta-v3-base, of two layers."""


def bare(**more: Any) -> BareCheckpoint:
    config = V3 | more
    record = DebertaV2Config(**{k: v for k, v in config.items() if k in DebertaV2Config.names()})
    shapes = shapes_of(weights(record, 0))
    return BareCheckpoint(
        {n: TensorInfo(n, "F32", shape, 0, 0) for n, shape in shapes.items()}, "here", config=config
    )


@pytest.mark.parametrize("eps", [1e-7, 1])
def test_the_hubs_config_makes_the_librarys_tensors(eps: float) -> None:
    """The library takes no whole number where a fraction is due."""
    family = DebertaV2()
    model = family.identify(bare(layer_norm_eps=eps))[0]
    assert isinstance(family_of(model), DebertaV2)
    family.check(model, family.towers(model), "here")
    named = family.with_classes(model, 3, None)
    module = family.build(named, {"text": (tuple(range(12)),) * 2})
    assert {n: tuple(p.shape) for n, p in module.named_parameters()} == shapes_of(
        family.weights(named)
    )


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        (
            {"conv_kernel_size": 3, "conv_act": "gelu"},
            SurgeryError,
            r"convolution beside its first layer",
        ),
        ({"pos_att_type": "p2p|c2p"}, CheckpointError, r"pos_att_type"),
        (
            {"position_buckets": 2},
            CheckpointError,
            r"position_buckets 2 do not divide 512 distances",
        ),
        (
            {"position_buckets": 256, "max_relative_positions": 100},
            CheckpointError,
            r"do not divide 100 distances",
        ),
    ],
)
def test_what_is_refused(more: dict[str, Any], error: type[Exception], says: str) -> None:
    raw = bare()
    with pytest.raises(error, match=says):
        DebertaV2().identify(BareCheckpoint(raw.tensors, raw.where, config={**V3, **more}))


def test_the_first_deberta_is_told_the_nearest(tmp_path: Path) -> None:
    deberta("v3").write(tmp_path / "v")
    config = tmp_path / "v" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "deberta"}))
    with pytest.raises(SurgeryError, match=r"transformers:deberta is not supported") as refused:
        open_checkpoint(tmp_path / "v")
    assert "The nearest is deberta-v2." in str(refused.value.hint)


def test_longest_text_is_what_its_config_says() -> None:
    assert DebertaV2().identify(
        bare(max_position_embeddings=TEXT["max_position_embeddings"], position_buckets=6)
    )[0].preprocess == {"max_length": 32}
