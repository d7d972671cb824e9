"""What classifiers read: with their weights and biases it gives the logits again, for every family and every way to
run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_families import Family, thoroughly
from tiny_members import members_of, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.features import WithFeatures, classifiers


def loaded(checkpoint: Path, lean: bool = True) -> hs.Classifier:
    return as_classifier(open_checkpoint(checkpoint), device="cpu", dtype="float64", lean=lean)


def check(model: hs.Classifier, inputs: object) -> torch.Tensor:
    with torch.inference_mode():
        plain = model(inputs)
        read = WithFeatures(model)
        logits, features = read(inputs)
        again, _ = read(inputs)
        torch.testing.assert_close(logits, plain, rtol=0, atol=0)
        torch.testing.assert_close(again, plain, rtol=0, atol=0)
        made = [
            features[:, m] @ torch.from_numpy(weight).T + torch.from_numpy(bias)
            for m, (weight, bias) in enumerate(classifiers(model))
        ]
        torch.testing.assert_close(torch.stack(made, dim=1), logits, rtol=0, atol=1e-10)
        # Afterwards nothing listens any more.
        torch.testing.assert_close(model(inputs), plain, rtol=0, atol=0)
    return features


@pytest.mark.parametrize("family", thoroughly())
def test_features_give_the_logits(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    inputs = family.inputs(dtype=torch.float64)
    single = check(loaded(tmp_path / "source"), inputs)
    whole = check(loaded(tmp_path / "source", lean=False), inputs)
    torch.testing.assert_close(single, whole, rtol=0, atol=1e-10)
    if family.towers:
        torch.testing.assert_close(single.norm(dim=-1), torch.ones(5, 1).double())
    paths = members_of(tmp_path / "source", family, tmp_path)
    for tuned in (False, True):
        parts = tuned_of(paths, tmp_path) if tuned else paths
        hs.fuse(parts, out=tmp_path / "hydra.safetensors", mlp="separate", force=True)
        hydra = loaded(tmp_path / "hydra.safetensors")
        alone = torch.cat([check(loaded(part), inputs) for part in parts], dim=1)
        for mode in ("stacked", "apart"):
            hydra.module.mode = mode
            torch.testing.assert_close(check(hydra, inputs), alone, rtol=0, atol=1e-10)
