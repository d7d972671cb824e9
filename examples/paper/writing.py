"""Writes a module that was trained here as the checkpoint that it was loaded from."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from hydrasurgeon.checkpoints.checkpoint import open_single, rewritten, undecided
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.files.atomic import claims
from hydrasurgeon.runtime.torch_tensors import plan_tensors


@claims()
def write(checkpoint: Path, module: nn.Module, out: Path) -> None:
    """Write a checkpoint with a module's weights, without scores, which belong to the old weights."""
    opened = undecided(open_single(checkpoint))
    manifest = opened.manifest
    planned = plan_tensors(module.cpu().state_dict())
    target = claim_checkpoint(out, force=False)
    save(
        target,
        planned,
        lambda sha256: rewritten(manifest, weights_sha256=sha256, scores={}),
        files=opened.files,
    )
