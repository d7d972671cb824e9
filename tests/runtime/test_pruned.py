"""Models pruned in memory hold the bits of the files that `prune` writes, and share what they do not cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_families import LAYERS, Family, thoroughly
from tiny_members import RAGGED, logits, member
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.checkpoints.checkpoint import as_single, open_checkpoint
from hydrasurgeon.heads import all_heads
from hydrasurgeon.runtime.pruned import LoadedBackbone


def same_bits(module: nn.Module, written: nn.Module) -> None:
    mine, theirs = module.state_dict(), written.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("family", thoroughly())
def test_memory_equals_the_file_and_masked(family: Family, tmp_path: Path) -> None:
    source = tmp_path / "source"
    family.write(source)
    path = member(source, family, RAGGED, tmp_path / "m.safetensors")
    opened, kept = open_checkpoint(source), as_single(open_checkpoint(path)).manifest.kept
    for dtype in ("float32", "bfloat16", "float64"):
        backbone = LoadedBackbone(opened, device="cpu", dtype=dtype)
        inputs = family.inputs(dtype=getattr(torch, dtype))
        module = backbone.module(kept)
        same_bits(module, hs.load(path, device="cpu", dtype=dtype).module)
        with torch.inference_mode():
            # Equal up to what a matrix product makes of where in memory its factors lie.
            torch.testing.assert_close(module(inputs), logits(path, inputs, dtype)[:, 0])
    whole = backbone.module(backbone.manifest.kept)
    full = family.in_each_tower(((0, 1, 2, 3),) * LAYERS)
    gone = [head for head in all_heads(full) if head.number not in RAGGED[head.layer]]
    with torch.inference_mode(), ablated(opened.family.anatomy(whole).sites, gone):
        masked = whole(inputs)
    with torch.inference_mode():
        torch.testing.assert_close(backbone.module(kept)(inputs), masked, rtol=0, atol=1e-11)
