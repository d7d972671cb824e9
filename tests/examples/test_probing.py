"""probe: curvature and separation against exact and obvious ways, on every family; what cannot be probed is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.curvature import Weights, curvature, loss_of, means_by_head
from probing.probe import probe
from probing.report import ProbeReport
from probing.separation import Moments, distances, head_moments, plane
from tiny_families import ONE_CLASS, Family, thoroughly
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import DataError, SurgeryError, UsageError
from hydrasurgeon.heads import Head, all_heads
from hydrasurgeon.problems import PROBLEMS
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


def test_of_many_labels_against_the_exact_hessian(tiny: MAKE) -> None:
    """The mean over the labels of their binary cross-entropies."""
    module, anatomy = model_of(tiny(arch=SMALLEST))
    weights = Weights.of(anatomy.sites)
    removal = weights.removal([Head("vision", 0, 1), Head("vision", 1, 0)])
    (x, _), truth = samples(), (torch.arange(21).reshape(7, 3) % 2).double()
    gradient, hessian = exact(
        module, weights, lambda z, _: binary_cross_entropy_with_logits(z, truth)
    )
    batches = list(zip(x.split(3), truth.split(3), strict=True))
    losses = PROBLEMS["multi_label"].losses
    bent = curvature(module, weights, batches, removal, draws=1, seed=0, losses=losses)
    assert torch.allclose(flat(bent.gradient), gradient, atol=1e-12)
    assert bent.along == pytest.approx(float(flat(removal) @ hessian @ flat(removal)), abs=1e-11)
    assert bent.loss == pytest.approx(
        float(binary_cross_entropy_with_logits(module(x), truth)), abs=1e-12
    )
    assert loss_of(module, batches, losses) == pytest.approx(bent.loss, abs=1e-12)


def test_batches_do_not_matter(tiny: MAKE) -> None:
    module, anatomy = model_of(tiny(arch=SMALLEST))
    weights = Weights.of(anatomy.sites)
    removal = weights.removal([Head("vision", 0, 0)])
    one, many = (
        curvature(module, weights, in_batches(s), removal, draws=1, seed=0) for s in (7, 2)
    )
    assert torch.allclose(flat(one.gradient), flat(many.gradient), atol=1e-12)
    assert one.along == pytest.approx(many.along, abs=1e-12)
    assert all(not p.requires_grad for p in module.parameters())


def test_the_removal_is_the_pruning(tiny: MAKE) -> None:
    """θ + δθ answers as the model without those heads; the expansion to second order holds for small steps."""
    module, anatomy = model_of(tiny(arch=SMALLEST))
    weights = Weights.of(anatomy.sites)
    gone = [Head("vision", 0, 1), Head("vision", 1, 1)]
    removal = weights.removal(gone)
    with ablated(anatomy.sites, gone):
        pruned = loss_of(module, in_batches(3))

    def moved(share: float) -> float:
        with torch.no_grad():
            for parameter, change in zip(weights.parameters, removal, strict=True):
                parameter.add_(change, alpha=share)
            loss = loss_of(module, in_batches(3))
            for parameter, change in zip(weights.parameters, removal, strict=True):
                parameter.sub_(change, alpha=share)
        return loss

    assert moved(1.0) == pytest.approx(pruned, abs=1e-12)
    bent = curvature(module, weights, in_batches(3), removal, draws=1, seed=0)
    first = float(flat(bent.gradient) @ flat(removal))
    errors = []
    for step in (0.02, 0.01):
        expansion = bent.loss + step * first + step**2 * bent.along / 2
        errors.append(abs(moved(step) - expansion))
    assert errors[1] < errors[0] / 5  # of third order: eight times less


def test_means_by_head(tiny: MAKE) -> None:
    """By slices of each matrix, one after another."""
    _, anatomy = model_of(tiny(arch=SMALLEST))
    weights = Weights.of(anatomy.sites)
    values = [torch.randn_like(p) for p in weights.parameters]
    means = means_by_head(weights, values)
    qkv, out = values[0], values[1]
    for head in range(2):
        rows = [slice(4 * part + 2 * head, 4 * part + 2 * head + 2) for part in range(3)]
        parts = [qkv[row].reshape(-1) for row in rows] + [
            out[:, 2 * head : 2 * head + 2].reshape(-1)
        ]
        assert means["vision", 0][head] == pytest.approx(float(torch.cat(parts).mean()), abs=1e-12)


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


def test_moments_far_from_zero() -> None:
    """A large mean and a small spread: sums of plain squares would lose it."""
    rows = 1e6 + np.random.default_rng(0).normal(size=(500, 1, 3))
    moments = Moments()
    for part in np.array_split(rows, 7):
        moments.add(torch.from_numpy(part), np.zeros(len(part), dtype=bool))
    assert np.allclose(moments.covariance[0], np.cov(rows[:, 0], rowvar=False), rtol=1e-6)
    assert np.allclose(moments.centroid[0], rows.mean(axis=0))


def test_a_head_that_says_nothing() -> None:
    """No spread at all: it is as far as it is within what it spans, and no infinity."""
    still, moved = Moments(), Moments()
    for moments, at in ((still, 0.0), (moved, 1.0)):
        moments.add(torch.full((9, 1, 3), at), np.zeros(9, dtype=bool))
    assert distances(still, moved) == ([pytest.approx(3**0.5)], [0.0])


def test_the_plane_is_that_of_pca() -> None:
    """By the eigenvectors of the covariance."""
    random = np.random.default_rng(0)
    a = (random.normal(size=(50, 8)) * np.arange(1, 9)).astype(np.float32)
    b = (random.normal(size=(40, 8)) + 2).astype(np.float32)
    here, there, share = plane(a, b)
    both = np.concatenate([a, b]).astype(float)
    sizes, axes = np.linalg.eigh(np.cov(both, rowvar=False))
    expected = (both - both.mean(axis=0)) @ axes[:, [-1, -2]]
    assert np.allclose(np.abs(np.concatenate([here, there])), np.abs(expected), atol=1e-8)
    assert share == pytest.approx(sizes[-2:].sum() / sizes.sum())
    flipped = plane(b, a)
    assert np.allclose(flipped[1], here)
    narrow, _, whole = plane(a[:, :1], b[:, :1])
    assert narrow.shape == (50, 2)
    assert whole == pytest.approx(1)


@pytest.mark.parametrize("family", thoroughly(*ONE_CLASS))
def test_every_family(family: Family, tmp_path: Path) -> None:
    """Losses are those that eval gives of the model and of what prune makes; every head has its numbers."""
    folder = tmp_path / "model"
    family.write(folder)
    spec = family.data(tmp_path)
    foreign = tmp_path / ("foreign.jsonl" if family.is_text else "foreign.npz")
    if family.is_text:
        foreign.write_text(
            "".join(json.dumps({"text": t}) + "\n" for t in ("a the a", "very dull plot plot") * 5)
        )
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


def test_which_heads_matter(tiny: MAKE, images: SPEC) -> None:
    """The first to go of an order are the least important, those that never went the most."""
    path, spec = tiny(), images()
    scored = hs.score(path, method="circuit", objective="acc", data=spec, remove=4, device="cpu")
    order = [tuple(head) for head in scored.result.order]
    options = {
        "data": spec,
        "ood": [images("far.npz", labels=False)],
        "draws": 1,
        "corrupt": ["fog:3"],
    }
    report = probe(path, method="circuit", objective="acc", remove=2, **options)
    assert report.pictured.least[:4] == tuple(order)
    assert set(report.proposition.removed) == set(order[:2])
    assert report.proposition.method == "circuit-acc"
    assert not set(report.pictured.most) & set(order)
    by_default = probe(path, data=spec, draws=1)
    assert len(by_default.proposition.removed) == 3  # one of four in each layer
    # As `prune` does it: the layers one after another.
    member = hs.prune(path, method="taylor", keep=3, data=spec)
    whole = {Head("vision", layer, h) for layer in range(3) for h in range(4)}
    gone = whole - set(all_heads(member.manifest.kept))
    assert {Head(*head) for head in by_default.proposition.removed} == gone
    assert by_default.separation == ()
    assert by_default.pictured is None
    assert by_default.proposition.noisy.endswith("75 corruptions of it")


def test_noisy_data_of_ones_own(tiny: MAKE, images: SPEC) -> None:
    """The same data as noisy data: nothing differs, to the last draw."""
    path, spec = tiny(), images()
    report = probe(path, data=spec, shift=spec, draws=2, dtype="float64", method="random")
    hessian = report.proposition.hessian
    assert (hessian.mean, hessian.along, hessian.positive_weights) == (0, 0, 0)
    assert report.proposition.losses.gap == 0
    assert report.proposition.gradient.noisy == report.proposition.gradient.clean
    (note,) = [note for note in report.notes if "no noise" in note]
    assert note.endswith("which shows nothing of Proposition 1")
    other = probe(path, data=spec, shift=images("other.npz", seed=3), draws=2, method="random")
    assert not [note for note in other.notes if "no noise" in note]


def test_what_cannot_be_probed(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, spec = tiny(), images()
    members = [
        hs.prune(path, method="random", keep=2, seed=s, out=tmp_path / f"{s}.safetensors").path
        for s in (0, 1)
    ]
    hydra = hs.fuse(members, out=tmp_path / "h.safetensors").path
    with pytest.raises(SurgeryError, match="is a hydra of 2 members"):
        probe(hydra, data=spec)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, UsageError, "--data is required"),
        ({"data": images("bare.npz", labels=False)}, DataError, "has no labels"),
        ({"data": spec, "dtype": "bfloat16"}, UsageError, "--dtype bfloat16"),
        ({"data": spec, "keep": 4}, SurgeryError, "no head would go"),
        (
            {"data": images("few.npz", rows=8), "ood": [spec]},
            DataError,
            "no covariance of 8 dimensions",
        ),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            probe(path, **options)
