"""probe: curvature and separation against exact and obvious ways, on every family; what cannot be probed is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.__main__ import main
from probing.curvature import Weights, curvature
from probing.probe import probe
from probing.report import ProbeReport
from probing.separation import distances, head_moments
from row_files import write_lines
from tiny_families import ONE_CLASS, Family, thoroughly
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.heads import Head, all_heads
from hydrasurgeon.runtime.classifier import live_module

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
SMALLEST = "timm:vit_tiny_patch16_224,img_size=8,patch_size=4,in_chans=1,embed_dim=4,depth=2,num_heads=2,num_classes=3"


def model_of(path: Path) -> tuple[Any, Any]:
    opened = open_checkpoint(path)
    module = live_module(opened).double().requires_grad_(False)
    with torch.no_grad():
        for parameter in module.parameters():  # far from zero, so that every term counts
            parameter.add_(
                0.4
                * torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
                )
            )
    return module, opened.family.anatomy(module)


def samples(rows: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 1, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.arange(rows) % 3


def in_batches(size: int, rows: int = 7) -> list[tuple[Tensor, Tensor]]:
    x, y = samples(rows)
    return list(zip(x.split(size), y.split(size), strict=True))


def exact(
    module: Any, weights: Weights, of: Callable[..., Tensor] = cross_entropy
) -> tuple[Tensor, Tensor]:
    """Gradient and whole Hessian of the mean loss, by autograd alone."""
    names = [n for p in weights.parameters for n, q in module.named_parameters() if q is p]
    shapes = [p.shape for p in weights.parameters]
    x, y = samples()

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split([s.numel() for s in shapes])
        changed = {n: part.view(s) for n, part, s in zip(names, parts, shapes, strict=True)}
        return of(functional_call(module, changed, (x,)), y)

    at = torch.cat([p.detach().reshape(-1) for p in weights.parameters])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.func.grad(loss)(at), torch.autograd.functional.hessian(loss, at)


def flat(parts: Any) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


@pytest.mark.slow
def test_against_the_exact_hessian(tiny: MAKE) -> None:
    """Gradient and δᵀHδ to rounding; Hutchinson's diagonal as closely as its draws allow."""
    module, anatomy = model_of(tiny(arch=SMALLEST))
    weights = Weights.of(anatomy.sites)
    removal = weights.removal([Head("vision", 0, 1), Head("vision", 1, 0)])
    gradient, hessian = exact(module, weights)
    draws = 120
    bent = curvature(module, weights, in_batches(3), removal, draws=draws, seed=0)
    assert torch.allclose(flat(bent.gradient), gradient, atol=1e-12)
    assert bent.along == pytest.approx(float(flat(removal) @ hessian @ flat(removal)), abs=1e-11)
    diagonal = hessian.diagonal()
    # Of one draw the variance is twice the sum of squares beside the diagonal; batches draw anew.
    spread = ((hessian - torch.diag(diagonal)) ** 2).sum(dim=1).sqrt() * 2
    off = (flat(bent.diagonal) - diagonal).abs() / (spread / draws**0.5).clamp(min=1e-9)
    assert off.max() < 6
    # More draws come closer.
    few = curvature(module, weights, in_batches(3), removal, draws=10, seed=0)
    errors = [(flat(each.diagonal) - diagonal).norm() for each in (few, bent)]
    assert errors[1] < errors[0] / 2
    means = np.array(bent.means)
    error = means.std(ddof=1) / draws**0.5
    assert means.mean() == pytest.approx(float(diagonal.mean()), abs=4 * error)
    assert means.mean() == pytest.approx(float(flat(bent.diagonal).mean()), abs=1e-12)
    x, y = samples()
    assert bent.loss == pytest.approx(float(cross_entropy(module(x), y)), abs=1e-12)


def test_separation_against_numpy(tiny: MAKE) -> None:
    """Moments taken up in batches, against all vectors at once and an inverse."""
    module, anatomy = model_of(tiny())
    vectors: dict[int, list[Tensor]] = {}
    for block in anatomy.blocks:
        site = block.attention
        site.out.register_forward_pre_hook(
            lambda _, a, layer=site.layer: vectors.setdefault(layer, []).append(a[0])
        )
    generator = torch.Generator().manual_seed(0)
    inside = torch.randn(60, 1, 28, 28, generator=generator, dtype=torch.float64)
    outside = 0.5 + 2 * torch.randn(30, 1, 28, 28, generator=generator, dtype=torch.float64)
    seen = []
    slow = []
    for data in (inside, outside):
        vectors.clear()
        index = torch.arange(len(data))
        shown = np.zeros(len(data), dtype=bool)
        shown[::7] = True
        pairs = zip(data.split(16), index.split(16), strict=True)
        seen.append(head_moments(module, anatomy, pairs, shown))
        slow.append(
            {k: torch.cat(v)[:, 0].unflatten(-1, (4, 8)).numpy() for k, v in vectors.items()}
        )
    for layer in range(3):
        here, there = (each["vision", layer] for each in seen)
        a, b = (each[layer] for each in slow)
        euclidean, mahalanobis = distances(here, there)
        assert np.allclose(np.stack(here.rows), a[::7], atol=1e-6)
        for head in range(4):
            apart = a[:, head].mean(axis=0) - b[:, head].mean(axis=0)
            assert euclidean[head] == pytest.approx(float(np.linalg.norm(apart)), rel=1e-9)
            precision = np.linalg.inv(np.cov(a[:, head], rowvar=False))
            assert mahalanobis[head] == pytest.approx(
                float(np.sqrt(apart @ precision @ apart)), rel=1e-6
            )


@pytest.mark.slow
@pytest.mark.parametrize("family", thoroughly(*ONE_CLASS))
def test_every_family(family: Family, tmp_path: Path) -> None:
    """Losses are those that eval gives of the model and of what prune makes; every head has its numbers."""
    folder = tmp_path / "model"
    family.write(folder)
    spec = family.data(tmp_path)
    foreign = tmp_path / ("foreign.jsonl" if family.is_text else "foreign.npz")
    if family.is_text:
        write_lines(foreign, ({"text": t} for t in ("a the a", "very dull plot plot") * 5))
    else:
        pixels = np.random.default_rng(1).integers(0, 256, (10, 28, 28, 3), dtype=np.uint8)
        np.savez(foreign, images=pixels)
    report = probe(
        folder,
        data=spec,
        ood=[f"far={foreign}"],
        draws=2,
        method="magnitude",
        keep=2,
        corrupt=["all:5"],
        json=tmp_path / "p.json",
        device="cpu",
    )
    about = report.proposition
    member = hs.prune(folder, method="magnitude", keep=2, out=tmp_path / "m.safetensors")
    kept = set(all_heads(member.manifest.kept))
    assert not kept & {Head(*head) for head in about.removed}
    rows = hs.evaluate([folder, member.path], data=spec, device="cpu").report.results
    assert about.losses.clean == pytest.approx(rows[0].id.nll, rel=1e-4)
    assert about.losses.clean_pruned == pytest.approx(rows[1].id.nll, rel=1e-4)
    assert about.losses.noisy != about.losses.clean
    towers = open_checkpoint(folder).manifest.towers
    assert set(about.hessian.heads) == set(towers)
    (each,) = report.separation
    assert set(each.mahalanobis) == {family.tower}
    values = [
        v for rows in (each.euclidean, each.mahalanobis) for row in rows[family.tower] for v in row
    ]
    assert len(values) == 2 * 3 * 4
    assert all(v is not None and v > 0 for v in values)
    assert report.pictured is not None
    assert len(report.pictured.most) == len(report.pictured.least) == 6
    assert ProbeReport.model_validate_json((tmp_path / "p.json").read_text()) == report


@pytest.mark.slow
def test_the_command_prints_to_its_last_line(
    tiny: MAKE, images: SPEC, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = f"far={images('far.npz', seed=9, labels=False)}"
    words = [str(tiny()), "--data", images(), "--ood", foreign, "--draws", "2", "--remove", "2"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for part in ("Proposition 1", "conditions", "distance of far", "least important by taylor"):
        assert part in printed


@pytest.mark.slow
def test_a_member_and_the_same_bytes(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """Heads that are gone have no numbers, a layer may have none; the same command gives the same report."""
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps({"vision": [[0, 2], [], [1, 2, 3]]}))
    member = hs.prune(tiny(), mask=mask, out=tmp_path / "m.safetensors").path
    options = {
        "data": images(),
        "ood": [images("far.npz", seed=9, labels=False)],
        "draws": 1,
        "remove": 1,
    }
    outputs = []
    for name in ("a", "b"):
        probe(member, **options, json=tmp_path / f"{name}.json", plot=tmp_path / f"{name}.png")
        outputs.append([(tmp_path / f"{name}.{s}").read_bytes() for s in ("json", "png")])
    assert outputs[0] == outputs[1]
    report = json.loads(outputs[0][0])
    for rows in (report["proposition"]["hessian"]["heads"], report["separation"][0]["euclidean"]):
        assert [[v is not None for v in row] for row in rows["vision"]] == [
            [True, False, True, False],
            [False] * 4,
            [False, True, True, True],
        ]
    assert len(report["proposition"]["removed"]) == 1
    last = report["separation"][0]["euclidean"]["vision"][2]
    assert report["separation"][0]["last_layer"]["euclidean"] == pytest.approx(
        np.mean([v for v in last if v is not None])
    )
