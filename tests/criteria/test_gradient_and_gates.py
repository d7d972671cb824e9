"""Mask gradients against one backward pass for each sample; gates close where a head does nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import SurgeryError

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
ARCH = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=64,depth=6,num_heads=8,num_classes=8"


def test_gradient_is_its_definition(tiny: MAKE, images: SPEC) -> None:
    """Slow version: W_O's columns are scaled by a mask in timm's own module, sample by sample."""
    path, spec = tiny(), images()
    model = hs.load(path, device="cpu")
    samples = open_data(spec)
    (batch,) = Batches(samples, model.transform, batch_size=len(samples))
    masks = [torch.ones(4, requires_grad=True) for _ in model.module.blocks]
    hooks = [
        block.attn.proj.register_forward_pre_hook(
            lambda _, args, mask=mask: (args[0] * mask.repeat_interleave(8),)
        )
        for block, mask in zip(model.module.blocks, masks, strict=True)
    ]
    expected = [torch.zeros(4) for _ in masks]
    for image, label in zip(batch.inputs, batch.labels, strict=True):
        loss = cross_entropy(model.module(image[None]), label[None])
        for total, gradient in zip(expected, torch.autograd.grad(loss, masks), strict=True):
            total += gradient.abs() / len(samples)
    for hook in hooks:
        hook.remove()
    score = hs.score(path, method="gradient", data=spec, batch_size=7).result
    assert score.values is not None
    for row, total in zip(score.values["vision"], expected, strict=True):
        assert row == pytest.approx(total.tolist(), rel=1e-4, abs=1e-8)


@pytest.mark.slow
def test_gates_close_a_head_that_does_nothing(tmp_path: Path) -> None:
    """Nothing but the penalty moves the gate of a head whose output projection is zero."""
    tensors = load_file(str(files("hydrasurgeon") / "demo" / "backbone.safetensors"))
    tensors["blocks.1.attn.proj.weight"][:, 16:24] = 0
    path = tmp_path / "made.safetensors"
    save_file(tensors, path, {"format": "pt"})
    about = {"arch": ARCH, "data": "demo:val", "limit": 300, "device": "cpu"}
    first = hs.score(path, method="gates", **about, out=tmp_path / "a.safetensors").result
    again = hs.score(path, method="gates", **about, out=tmp_path / "b.safetensors").result
    assert first.values is not None
    assert first.values == again.values  # the draws follow from the seed
    heads = {
        (layer, head): value
        for layer, row in enumerate(first.values["vision"])
        for head, value in enumerate(row)
    }
    assert min(heads, key=lambda place: heads[place]) == (1, 2)


@pytest.mark.parametrize("method", ["gradient", "gates"])
def test_a_tower_without_data_is_refused(method: str, tmp_path: Path) -> None:
    """The text tower of CLIP runs on class names, not on the rows of the data."""
    family = FAMILIES["OpenCLIP"]
    family.write(tmp_path / "clip")
    with pytest.raises(SurgeryError, match="no data runs through tower text"):
        hs.score(tmp_path / "clip", method=method, data=family.data(tmp_path), out=tmp_path / "o")
