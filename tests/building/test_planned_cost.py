"""What a planned hydra costs = what the hydra costs that is then fused, to the last multiply-add and parameter."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest
from tiny_families import FAMILIES, HEADS, LAYERS, Family, thoroughly
from tiny_members import member

import hydrasurgeon as hs
from hydrasurgeon.building.cost import CostModel, Part, cost_model, stored
from hydrasurgeon.checkpoints.reading import as_single, open_checkpoint
from hydrasurgeon.families.weights import head_axes
from hydrasurgeon.files.tensors import digest
from hydrasurgeon.heads import positions, take_heads
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.pruned import LoadedBackbone

Rows = list[list[int]]
FULL = [0, 1, 2, 3]


def opened_cost(source: Path, family: Family) -> CostModel:
    return cost_model(LoadedBackbone(open_checkpoint(source), device="cpu"), family.inputs())


def built(paths: list[Path], family: Family, out: Path) -> tuple[int, int]:
    """Multiply-adds of the model that is really written, and the numbers in its file; one path: of that model."""
    path = paths[0] if len(paths) == 1 else hs.fuse(paths, out=out).path
    opened = open_checkpoint(path)
    model = as_classifier(opened, device="cpu", lean=True)
    numbers = sum(math.prod(opened.tensors[name].shape) for name in opened.tensors)
    assert stored(opened) == numbers
    return macs(model, family.inputs()), numbers


def plan(path: Path, source: Path) -> Part:
    """The member that lies in a file, as `Part` speaks of it."""
    opened, backbone = open_checkpoint(path), open_checkpoint(source)
    kept, manifest, axes = (
        as_single(opened).manifest.kept,
        as_single(backbone).manifest,
        head_axes(backbone.weights.values()),
    )
    own = {}
    for name, weight in backbone.weights.items():
        if weight.part != "output":
            continue
        plain = backbone.tensors.read(name)
        if name in axes:
            tower, layer, axis = axes[name]
            at = positions(manifest.kept[tower][layer], kept[tower][layer])
            plain = take_heads(plain, at, spec=axis, head_dim=manifest.towers[tower].head_dim)
        sha256 = digest(opened.tensors.read(name))
        if sha256 != digest(plain):
            own[name] = sha256
    return Part(kept, own)


def random_rows(random: Random) -> list[Rows]:
    """One to three members, ragged, with a trunk of any length and a layer that may be empty."""
    members, trunk = random.randint(1, 3), random.randint(0, LAYERS)
    common = [sorted(random.sample(range(HEADS), random.randint(0, HEADS))) for _ in range(trunk)]
    plans = [
        common
        + [
            sorted(random.sample(range(HEADS), random.randint(0, HEADS)))
            for _ in range(LAYERS - trunk)
        ]
        for _ in range(members)
    ]
    return plans if all(any(rows) for rows in plans) else random_rows(random)


SOME: list[list[Rows]] = [
    [[FULL, FULL, FULL]],
    [[[0, 2, 3], [], [1]]],
    [[[0, 1], [1, 2], [3]], [[0, 1], [1, 2], [3]]],  # equal members
    [[FULL, FULL, [0, 1]], [FULL, FULL, [1, 2, 3]]],  # apart in the last layer only
    [[FULL, FULL, [0, 1]], [FULL, FULL, [2, 3]]],  # … with no head in common
    [[FULL, [], [0]], [FULL, [0, 1], []], [FULL, [], [0]]],
    [[[0], [1], [2]], [[], [], [3]], [[0, 1], FULL, FULL]],
]


@pytest.mark.parametrize("family", thoroughly())
def test_planned_is_built(family: Family, tmp_path: Path) -> None:
    check_all(SOME, family, tmp_path)


@pytest.mark.slow
def test_drawn_plans_are_built(tmp_path: Path) -> None:
    random = Random(1)
    check_all([random_rows(random) for _ in range(30)], FAMILIES["timm ViT"], tmp_path)


def check_all(plans: list[list[Rows]], family: Family, folder: Path) -> None:
    source = folder / "source"
    family.write(source)
    cost = opened_cost(source, family)
    members: dict[str, Path] = {}
    for at, rows in enumerate(plans):
        for row in rows:
            if str(row) not in members:
                members[str(row)] = member(
                    source, family, row, folder / f"m{len(members)}.safetensors"
                )
        paths = [members[str(row)] for row in rows]
        parts = [plan(path, source) for path in paths]
        assert not any(part.own for part in parts)
        expected = built(paths, family, folder / f"{at}.safetensors")
        assert (cost.count(parts, "macs"), cost.count(parts, "params")) == expected, rows


@pytest.mark.parametrize(
    ("name", "how"), [("timm ViT", "lstsq"), pytest.param("BERT", "mean", marks=pytest.mark.slow)]
)
def test_repaired_layers_are_counted_where_they_are_stored(
    name: str, how: str, tmp_path: Path
) -> None:
    """Two repairs of one prefix are equal and shared; a repaired layer beside a plain one is not."""
    family, source = FAMILIES[name], tmp_path / "source"
    family.write(source)
    data = family.data(tmp_path)
    cost = opened_cost(source, family)
    rows = {
        "a": [FULL, [0, 1], [1]],
        "b": [FULL, [0, 1], [0, 1]],
        "c": [[2, 3], [2], FULL],
        "d": [FULL, FULL, [0, 1]],
    }
    plain = {
        key: member(source, family, row, tmp_path / f"{key}.safetensors")
        for key, row in rows.items()
    }
    mended = {
        key.upper(): hs.prune(
            source,
            mask=tmp_path / f"{key}.safetensors.mask.json",
            compensate=how,
            data=data,
            out=tmp_path / f"{key}-{how}.safetensors",
        ).path
        for key in rows
    }
    paths = plain | mended
    parts = {key: plan(path, source) for key, path in paths.items()}
    assert all(parts[key].own for key in mended)
    for at, chosen in enumerate(
        ("A", "AB", "Aa", "AA", "ABa", "AC", "Ac", "ACd", "Dd", "DDd", "BcD")
    ):
        expected = built([paths[key] for key in chosen], family, tmp_path / f"{at}.safetensors")
        planned = [parts[key] for key in chosen]
        assert (cost.count(planned, "macs"), cost.count(planned, "params")) == expected, chosen
