"""CAHP step by step against slow, obvious versions, and the commands around it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.anatomy.maps import attention_maps
from hydrasurgeon.criteria.cahp import choice as cahp
from hydrasurgeon.criteria.cahp.attention_map_score import (
    ClassMoments,
    jeffries_matusita,
)
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.families.timm_vit.family import TimmViT
from hydrasurgeon.heads import Head, count

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
HEADS = 4


def live(path: Path, spec: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    model = hs.load(path, device="cpu")
    samples = open_data(spec)
    (batch,) = Batches(samples, model.transform, batch_size=len(samples))
    return model.module.requires_grad_(False), batch.inputs, batch.labels


def test_maps_are_what_timm_multiplies_the_values_with(tiny: MAKE, images: SPEC) -> None:
    module, x, _ = live(tiny(), images(rows=6))
    site = TimmViT().anatomy(module).blocks[1].attention
    attn, seen = module.blocks[1].attn, {}
    attn.fused_attn = False  # then timm writes its maps out
    attn.register_forward_pre_hook(lambda _, args: seen.update(given=args[0]))
    attn.attn_drop.register_forward_hook(lambda _, args, out: seen.update(maps=out))
    module(x)
    torch.testing.assert_close(
        attention_maps(site, seen["given"], None), seen["maps"], rtol=0, atol=1e-6
    )


def test_streamed_moments_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    maps, labels = rng.random((50, 2, 8)), rng.integers(0, 4, 50)
    labels[labels == 3] = 2
    labels[7] = 3  # one sample has no variance: it gets the floor
    moments = ClassMoments(2, range(4), width=8)
    for part in np.array_split(np.arange(50), 7):
        moments.add(maps[part], labels[part])
    means, variances = moments.finish()
    assert moments.used == [0, 1, 2, 3]
    for i in range(3):
        mine = maps[labels == i]
        np.testing.assert_allclose(means[i], mine.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(variances[i], mine.var(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(means[3], maps[7], rtol=1e-12)
    assert (variances[3] == 1e-6).all()
    few = ClassMoments(1, [0, 1, 2], width=8)
    few.add(maps[:3, :1], np.array([1, 1, 1]))
    with pytest.raises(DataError, match="fewer than two"):
        few.finish()


def test_jeffries_matusita_against_the_integral() -> None:
    """JM = ∫(√p − √q)² of two normal densities, which is 2(1 − e^−B): integrated, not computed by B."""
    grid = np.linspace(-40, 40, 400_001)

    def integral(m1: float, s1: float, m2: float, s2: float) -> float:
        p = np.exp(-((grid - m1) ** 2) / (2 * s1)) / np.sqrt(2 * np.pi * s1)
        q = np.exp(-((grid - m2) ** 2) / (2 * s2)) / np.sqrt(2 * np.pi * s2)
        return float(np.sum((np.sqrt(p) - np.sqrt(q)) ** 2) * (grid[1] - grid[0]))

    rng = np.random.default_rng(1)
    means, variances = rng.normal(size=(3, 4, 2)), rng.uniform(0.3, 2, size=(3, 4, 2))
    rows = np.array(
        [
            [
                integral(means[a, h, d], variances[a, h, d], means[b, h, d], variances[b, h, d])
                for a, b in itertools.combinations(range(3), 2)
                for d in range(2)
            ]
            for h in range(4)
        ]
    )
    expected = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=-1))
    np.testing.assert_allclose(jeffries_matusita(means, variances), expected, atol=1e-7)


def grid_heads(layers: int, heads: int) -> list[Head]:
    return [Head("vision", layer, h) for layer in range(layers) for h in range(heads)]


def blobs(centres: int, each: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    middle = rng.permutation([(10.0 * (i % 4), 10.0 * (i // 4)) for i in range(centres)])
    return np.repeat(middle, each, axis=0) + rng.normal(size=(centres * each, 2))


def test_clusters_keep_their_weightiest_and_layers_are_never_empty() -> None:
    heads = grid_heads(4, 3)  # three clusters of four points: heads 0-3, 4-7, 8-11 in order
    points = blobs(3, 4)
    weights = [0.1, 0.9, 0.2, 0.3, 0.8, 0.1, 0.1, 0.2, 0.1, 0.2, 0.7, 0.6]
    choice = cahp.choose(heads, points, weights, clusters=3)
    assert [len(c) for c in choice.clusters] == [4, 4, 4]
    assert choice.clusters[0] == tuple(heads[:4])
    # The clusters' best are 1, 4 and 10 (layers 0, 1, 3); layer 2 (6, 7, 8) gets its best back: 7.
    assert choice.stay == (heads[1], heads[4], heads[7], heads[10])


def test_the_degree_of_the_knees_polynomial() -> None:
    """kneed alone, on a curve of which the degree moves the knee."""
    from kneed import KneeLocator

    ks = list(range(2, 40))
    heights = [1 - 0.9 ** (k + 3 * (k % 5 == 0)) for k in ks]
    knees = {
        degree: KneeLocator(
            ks,
            heights,
            curve="concave",
            direction="increasing",
            interp_method="polynomial",
            polynomial_degree=degree,
        ).knee
        for degree in (2, 3, 4, 6)
    }
    assert len(set(knees.values())) > 1
    for degree, knee in knees.items():
        assert cahp.knee_of(ks, heights, degree) == knee


def test_the_degree_is_an_option(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """Recorded by score, followed by prune; other criteria have none."""
    path, data = tiny(), images()
    settings = hs.score(path, method="cahp", data=data, degree=3).result.settings
    assert settings["degree"] == 3
    curve = settings["curve"]
    knee = cahp.knee_of([k for k, _ in curve], [height for _, height in curve], 3)
    highest = max(curve, key=lambda point: point[1])[0]
    assert settings["automatic"] == (knee or highest)
    kept = hs.prune(path, method="cahp", keep="auto", out=tmp_path / "a.safetensors").manifest.kept
    assert count(kept) == settings["count"]
    with pytest.raises(UsageError, match="--degree requires --method cahp"):
        hs.score(path, method="taylor", data=data, degree=3)


def test_weights_are_mean_absolute_mask_gradients(tiny: MAKE, images: SPEC) -> None:
    """Slow version: masks as factors on W_O's columns, batches of 32; of nine the first and the fifth count."""
    path, spec = tiny(), images(rows=270)
    module, x, y = live(path, spec)
    total = torch.zeros(3, HEADS, dtype=torch.float64)
    for i in (0, 4):
        for layer in range(3):
            module.blocks[layer].attn.proj.weight.requires_grad_(True)
        module.zero_grad()
        part = slice(32 * i, 32 * i + 32)
        cross_entropy(module(x[part]), y[part]).backward()
        for layer in range(3):
            w = module.blocks[layer].attn.proj.weight
            total[layer] += (w.detach() * w.grad).view(32, HEADS, 8).sum(dim=(0, 2)).double().abs()
    expected = ((total - total.min()) / (total.max() - total.min())).numpy()
    for size in (64, 20, 270):  # whatever the batches of the run
        found = hs.score(path, method="cahp", data=spec, batch_size=size).result
        np.testing.assert_allclose(np.array(found.values["vision"]), expected, atol=1e-4)


def test_score_and_prune(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, spec = tiny(), images()
    scored = hs.score(path, method="cahp", data=spec, keep="auto").result
    once = path.read_bytes()
    hs.score(path, method="cahp", data=spec, keep="auto")
    assert path.read_bytes() == once
    settings = scored.settings
    assert len(settings["clusters"]) == settings["automatic"]
    assert sorted(tuple(h) for c in settings["clusters"] for h in c) == [
        tuple(h) for h in grid_heads(3, 4)
    ]
    assert len(settings["points"]) == 12
    auto = hs.prune(path, method="cahp", keep="auto")
    assert auto.path.name == "vit-cahp-auto.safetensors"
    kept = auto.manifest.kept
    assert kept is not None
    assert {t: [list(r) for r in rows] for t, rows in kept.items()} == settings["kept"]
    # How many depends on the machine: t-SNE makes much of the last bits.
    assert count(kept) == settings["count"] <= 6
    assert any(f"leaves {count(kept)} of 12 heads" in note for note in auto.notes) is (
        count(kept) < 6
    )
    for layer, row in enumerate(kept["vision"]):
        assert row  # no layer is empty
        for cluster in settings["clusters"]:
            mine = [h for t, la, h in cluster if la == layer]
            assert len(set(mine) & set(row)) <= 2  # its best, and one for an empty layer
    two = hs.prune(path, method="cahp", keep=2, out=tmp_path / "two.safetensors")
    assert count(two.manifest.kept or {}) >= 6
    assert hs.prune(path, method="cahp", remove=2, out=tmp_path / "r.safetensors").removed <= 2
    asked = hs.score(path, method="cahp", data=spec, keep=2).result
    assert len(asked.settings["clusters"]) == 6
    assert {"vision": [list(r) for r in (two.manifest.kept or {})["vision"]]} == asked.settings[
        "kept"
    ]
    late = hs.prune(path, method="cahp", keep=1, layers="2", out=tmp_path / "late.safetensors")
    assert [len(r) for r in (late.manifest.kept or {})["vision"]] == [4, 4, 1]
    # A pruned member, ragged and with an empty layer, can be scored again.
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps({"vision": [[0, 3], [], [1, 2, 3]]}))
    ragged = hs.prune(path, mask=mask, out=tmp_path / "ragged.safetensors")
    again = hs.score(ragged.path, method="cahp", data=spec).result
    assert len(again.settings["points"]) == 5
    assert again.values["vision"][1] == (0.0, 0.0, 0.0, 0.0)
    pruned = hs.prune(ragged.path, method="cahp", keep="auto")
    assert [len(r) > 0 for r in (pruned.manifest.kept or {})["vision"]] == [True, False, True]
