"""timm's two halves of a model, of a hydra: features of every member, and the head that makes the hydra's logits of
them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_families import FAMILIES
from tiny_members import KEPTS, member

import hydrasurgeon as hs


@pytest.mark.parametrize(
    "name",
    ["timm ViT", *(pytest.param(n, marks=pytest.mark.slow) for n in ("EVA02", "DINOv3", "SigLIP"))],
)
def test_features_and_head_are_the_whole(name: str, tmp_path: Path) -> None:
    import timm

    family = FAMILIES[name]
    family.write(tmp_path / "source")
    parts = [
        member(tmp_path / "source", family, rows, f"{tmp_path}/m{i}/")
        for i, rows in enumerate(KEPTS)
    ]
    folder = hs.fuse(parts, out=f"{tmp_path}/h/", mlp="separate").path
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    inputs = family.inputs()
    with torch.inference_mode():
        features = model.forward_features(inputs)
        torch.testing.assert_close(model.forward_head(features), model(inputs), rtol=0, atol=1e-5)
        pooled = model.forward_head(features, pre_logits=True)
        for number, part in enumerate(parts):
            single = timm.create_model(f"local-dir:{part}", pretrained=True).eval()
            own = single.forward_features(inputs)
            torch.testing.assert_close(features[:, number], own, rtol=0, atol=1e-5)
            right = single.forward_head(own, pre_logits=True)
            torch.testing.assert_close(pooled[:, number], right, rtol=0, atol=1e-5)
