"""fuse --norms average: one set of norms, as in the paper's equations 4 to 7 and in the 116.31 M of its Table 7."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.stages.inspect import inspect
from hydrasurgeon.stages.verify import verify

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
INPUTS = torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
SIZES = {"embed": 32, "depth": 3, "heads": 4, "head_dim": 8, "hidden": 128, "classes": 5}


@pytest.fixture
def members(tiny: MAKE, images: SPEC, tmp_path: Path) -> list[Path]:
    """Two of four heads of each layer, tuned with frozen embeddings."""
    paths = []
    for seed in (1, 2, 3):
        cut = hs.prune(tiny(), method="random", keep=2, seed=seed, out=tmp_path / f"p{seed}")
        plan = {"steps": "3", "lr": "0.01", "warmup": "0", "batch_size": "8"}
        out = tmp_path / f"m{seed}.safetensors"
        hs.finetune(
            cut.path,
            data=images(),
            recipe="demo",
            set=plan,
            freeze="embeddings",
            seed=seed,
            out=out,
        )
        paths.append(out)
    return paths


def parameters(
    *,
    embed: int,
    depth: int,
    heads: int,
    head_dim: int,
    hidden: int,
    classes: int,
    tokens: int,
    patch: int,
    members: int,
) -> int:
    """Count by hand: embeddings, norms and MLPs once, attention and classifiers of each member."""
    embeddings = patch * embed + embed + embed + tokens * embed
    norms = depth * 2 * 2 * embed + 2 * embed
    mlps = depth * (2 * embed * hidden + hidden + embed)
    width = heads * head_dim
    attention = depth * (3 * (embed * width + width) + width * embed + embed)
    classifier = embed * classes + classes
    return embeddings + norms + mlps + members * (attention + classifier)


def test_the_parameters_are_the_papers(members: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "hydra.safetensors"
    hs.fuse(members, norms="average", out=out)
    stored = sum(tensor.numel() for tensor in load_file(out).values())
    ours = {**SIZES, "heads": 2, "tokens": 17, "patch": 49, "members": 3}
    assert stored == parameters(**ours)
    vit_b = {"embed": 768, "depth": 12, "heads": 8, "head_dim": 64, "hidden": 3072}
    vit_b |= {"classes": 1000, "tokens": 197, "patch": 3 * 16 * 16, "members": 3}
    # The paper's count leaves out the class token and the positions, which are no layers.
    assert round((parameters(**vit_b) - 198 * 768) / 1e6, 2) == 116.31


def test_members_run_the_mean_of_their_norms(members: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "hydra.safetensors"
    fused = hs.fuse(members, norms="average", mlp="separate", out=out)
    assert fused.manifest.model_dump(mode="json")["fusion"]["norms"] == "average"
    assert any("norms differ by" in note for note in fused.notes)
    hydra = hs.load(out, device="cpu", dtype="float64")
    states = [load_file(path) for path in members]
    with torch.inference_mode():
        logits = hydra(INPUTS)
        for number, path in enumerate(members):
            alone = hs.load(path, device="cpu", dtype="float64")
            for name, parameter in alone.module.named_parameters():
                if "norm" in name:
                    mean = torch.stack([state[name].double() for state in states]).mean(dim=0)
                    parameter.copy_(mean.float())  # as the file stores it
            torch.testing.assert_close(alone(INPUTS)[:, 0], logits[:, number], rtol=0, atol=1e-12)
    assert all(check.holds is not False for check in verify(out).checks)


def test_by_default_norms_stay_apart(members: list[Path], tmp_path: Path) -> None:
    """So a hydra with separate MLPs is exact, and older manifests read the same."""
    out = tmp_path / "hydra.safetensors"
    hs.fuse(members, mlp="separate", out=out)
    record = inspect(out).manifest.model_dump(mode="json")["fusion"]
    assert record == {"mlp": "separate", "trunk": 0}
    hydra = hs.load(out, device="cpu", dtype="float64")
    with torch.inference_mode():
        for number, path in enumerate(members):
            alone = hs.load(path, device="cpu", dtype="float64")
            torch.testing.assert_close(
                alone(INPUTS)[:, 0], hydra(INPUTS)[:, number], rtol=0, atol=1e-12
            )
    assert open_checkpoint(out).manifest.kind == "hydra"
