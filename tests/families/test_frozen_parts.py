"""What --freeze and last_blocks hold back does not move, and all else does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from paper import SST2
from safetensors.torch import load_file
from tiny_families import FAMILIES

import hydrasurgeon as hs

PLAN = {"steps": "2", "lr": "0.01", "warmup": "0", "freeze": "[]"}
# Tensors by hand: in front of the layers, the last one, and in a layer the attention and the MLP.
ENCODER = (r".*\.attention\.", r".*\.(intermediate|(?<!attention\.)output)\.dense")
TABLES = {
    "BERT": (r"bert\.embeddings\.", r"classifier\.", *ENCODER),
    "ViT": (r"vit\.embeddings\.", r"classifier\.", *ENCODER),
    "ModernBERT pooling by mean": (
        r"model\.embeddings\.",
        r"classifier\.",
        r".*\.attn\.",
        r".*\.mlp\.",
    ),
    "DINOv3": (r"cls_token|reg_token|patch_embed\.", r"head\.", r".*\.attn\.", r".*\.mlp\."),
    "EVA02": (r"cls_token|pos_embed|patch_embed\.", r"head\.", r".*\.attn\.", r".*\.mlp\."),
    "EVA02 with separate projections": (
        r"cls_token|pos_embed|patch_embed\.",
        r"head\.",
        r".*\.attn\.",
        r".*\.mlp\.",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_what_is_frozen_stays(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "s")
    data = family.data(tmp_path)
    before = load_file(tmp_path / "s" / "model.safetensors")
    embedding, classifier, attention, mlp = TABLES[name]

    def still(**options: object) -> set[str]:
        out = tmp_path / "t.safetensors"
        hs.finetune(
            tmp_path / "s", data=data, recipe=SST2, out=out, force=True, device="cpu", **options
        )
        after = load_file(out)
        assert after.keys() == before.keys()
        return {each for each, tensor in before.items() if torch.equal(tensor, after[each])}

    def of(*patterns: str) -> set[str]:
        return {each for each in before if any(re.match(pattern, each) for pattern in patterns)}

    assert still(freeze="embeddings,classifier", set=PLAN) == of(embedding, classifier)
    assert still(freeze="mlp,attention", set=PLAN) == of(mlp, attention)
    early = r"(model\.layers|blocks|(bert|vit)\.encoder\.layer)\.[01]\."
    assert still(set=PLAN | {"last_blocks": "1"}) == of(embedding, early)
