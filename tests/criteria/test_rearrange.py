"""Kwon's rearrangement of masks against an obvious version, and Fisher's products against single samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import FAMILIES, QUICK, Family
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.criteria.rearrange import _layer, cost, rearranged
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import ManifestError, SurgeryError
from hydrasurgeon.files.manifest import Score, SingleManifest
from hydrasurgeon.heads import all_heads, drop

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
EACH = [pytest.param(FAMILIES[name], id=name.replace(" ", "-")) for name in QUICK]


def gradients_of(path: Path, spec: str) -> dict[tuple[str, int], np.ndarray]:
    """Slow version: one sample at a time, [sample, head] of each layer."""
    model = hs.load(path, device="cpu")
    model.module.requires_grad_(False)
    sites = model.anatomy.sites
    rows: dict[tuple[str, int], list[np.ndarray]] = {(s.tower, s.layer): [] for s in sites}
    for batch in Batches(open_data(spec), model.transform, batch_size=1):
        masks = {place: torch.ones(4, requires_grad=True) for place in rows}
        with masked(sites, masks):
            cross_entropy(model(batch.inputs)[:, 0], batch.labels).backward()
        for place, mask in masks.items():
            assert mask.grad is not None
            rows[place].append(mask.grad.double().numpy())
    return {place: np.stack(each) for place, each in rows.items()}


def kwon(gradients: np.ndarray, number: int) -> list[int]:
    """Written out from the paper's description, on gradients of single samples instead of their products."""
    importance = (gradients**2).sum(axis=0)
    by_importance = sorted(range(gradients.shape[1]), key=lambda h: importance[h])
    gone = by_importance[:number]
    for head in by_importance[number:]:
        trial = [*gone, head]
        costs = [
            float((gradients[:, [h for h in trial if h != back]].sum(axis=1) ** 2).sum())
            for back in trial
        ]
        gone.append(head)
        del gone[int(np.argmin(costs))]
    return sorted(gone)


@pytest.mark.slow
@pytest.mark.parametrize("family", EACH)
def test_products_in_every_family(family: Family, tmp_path: Path) -> None:
    source, data = tmp_path / "source", family.data(tmp_path)
    family.write(source)
    score = hs.score(source, method="fisher", data=data, device="cpu", batch_size=5).result
    for (tower, layer), gradients in gradients_of(source, data).items():
        expected = gradients.T @ gradients
        recorded = np.array(score.settings["information"][tower][layer])
        np.testing.assert_allclose(recorded, expected, rtol=1e-2, atol=1e-3 * expected.max())
        assert np.diag(recorded).tolist() == list(score.values[tower][layer])
    hs.prune(source, method="fisher", keep=2, rearrange=True, out=tmp_path / "m.safetensors")


def test_prune_rearranges_each_layer(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, spec = tiny(), images()
    score = hs.score(path, method="fisher", data=spec, batch_size=7, device="cpu").result
    gradients = gradients_of(path, spec)
    for remove in (4, 6, 8):
        plain = hs.prune(
            path, method="fisher", remove=remove, out=tmp_path / f"p{remove}.safetensors"
        )
        moved = hs.prune(
            path,
            method="fisher",
            remove=remove,
            rearrange=True,
            out=tmp_path / f"r{remove}.safetensors",
        )
        for layer in range(3):
            number = 4 - len(plain.manifest.kept["vision"][layer])
            row = moved.manifest.kept["vision"][layer]
            gone = [h for h in range(4) if h not in row]
            assert gone == kwon(gradients["vision", layer], number)
            matrix = np.array(score.settings["information"]["vision"][layer])
            first = [h for h in range(4) if h not in plain.manifest.kept["vision"][layer]]
            assert cost(matrix, gone) <= cost(matrix, first)
    assert moved.manifest.history[-1].args["rearrange"] is True


def fabricated(manifest: SingleManifest, matrix: np.ndarray) -> Score:
    """Scores of a model whose first layer has this information between heads."""
    others = [np.eye(4)] * 2
    information = {"vision": [matrix.tolist(), *(each.tolist() for each in others)]}
    values = {"vision": tuple(tuple(np.diag(each).tolist()) for each in (matrix, *others))}
    return Score(values=values, settings={"information": information})


def test_heads_that_cancel_go_together(tiny: MAKE) -> None:
    """By the diagonal 0 and 1 go, at cost 2 + 2·0.9; 2 and 3 matter more alone, and cancel each other: 0.2."""
    manifest: Any = open_checkpoint(tiny()).manifest
    matrix = np.array([[1, 0.9, 0, 0], [0.9, 1, 0, 0], [0, 0, 1.1, -1], [0, 0, -1, 1.1]])
    score = fabricated(manifest, matrix)
    heads = all_heads(manifest.kept)
    kept = drop(manifest.kept, [h for h in heads if h.layer == 0 and h.number < 2])
    assert rearranged(manifest, score, kept, heads, "x")["vision"] == (
        (0, 1),
        (0, 1, 2, 3),
        (0, 1, 2, 3),
    )
    # Heads that may not go are left alone, and so is what nothing is gained by.
    free = [h for h in heads if h.number < 3]
    assert rearranged(manifest, score, kept, free, "x")["vision"][0] in ((1, 3), (0, 3))
    equal = fabricated(manifest, np.eye(4))
    assert rearranged(manifest, equal, kept, heads, "x") == kept


@pytest.mark.parametrize("seed", range(20))
def test_it_never_costs_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 7))
    matrix = gradients.T @ gradients
    for number in range(1, 7):
        first = np.argsort(np.diag(matrix))[:number].tolist()
        gone = _layer(matrix, first, range(7), [])
        assert sorted(gone) == kwon(gradients, number)
        least = min(cost(matrix, list(each)) for each in itertools.combinations(range(7), number))
        assert least - 1e-9 <= cost(matrix, gone) <= cost(matrix, first) + 1e-9
        if number == 1:
            assert gone == first


def test_what_is_refused(tiny: MAKE) -> None:
    manifest: Any = open_checkpoint(tiny()).manifest
    heads = all_heads(manifest.kept)
    kept = drop(manifest.kept, heads[:2])
    old = Score(values={"vision": ((0.1,) * 4,) * 3})
    with pytest.raises(SurgeryError, match="do not say how heads matter together"):
        rearranged(manifest, old, kept, heads, "x")
    bad: list[Any] = [
        [],
        {},
        {"vision": 3},
        {"vision": [[[1.0]]]},
        {"vision": [["a"]]},
        {"vision": [np.triu(np.ones((4, 4))).tolist()] * 3},
    ]
    for information in bad:
        score = Score(values=old.values, settings={"information": information})
        with pytest.raises(ManifestError, match="no symmetric matrix of 4 heads"):
            rearranged(manifest, score, kept, heads, "x")
