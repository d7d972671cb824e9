"""A cascade's multiply-adds: counted = planned, and the single model's = those of the model itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runtime_states import open_gate
from tiny_families import FAMILIES, Family, thoroughly
from tiny_members import KEPTS, member

import hydrasurgeon as hs
from hydrasurgeon.building.cost import CostModel, Part, cost_model
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.measuring.cost import (
    MultiplyAdds,
    StepMacs,
    macs,
    single_macs,
    step_macs,
    without_padding,
)
from hydrasurgeon.runtime.cascaded import said
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.pruned import LoadedBackbone

UNCUT = "EVA02 with separate projections"
"""Neurons cannot be cut out of it."""
FULL = [0, 1, 2, 3]
TRUNKED = ([FULL, FULL, [0, 1]], [FULL, [1, 2], [0, 1]], [FULL, [1, 2], []])


def planned(plan: CostModel, parts: list[Part], first: int) -> StepMacs:
    """Cost of a cascade whose first so many members answer every row."""
    trunk = plan.trunk(parts)
    return StepMacs(
        plan.shared(parts[0], trunk) + plan.behind(parts[:first], trunk),
        plan.behind(parts[first:], trunk),
    )


@pytest.mark.parametrize("family", thoroughly())
def test_planned_counted_and_single(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    inputs = family.inputs()
    whole = as_classifier(open_checkpoint(tmp_path / "source"), device="cpu", lean=True)
    plan = cost_model(LoadedBackbone(open_checkpoint(tmp_path / "source"), device="cpu"), inputs)
    for number, kepts in enumerate((KEPTS, TRUNKED)):
        paths = [
            member(tmp_path / "source", family, rows, tmp_path / f"m{number}{i}.safetensors")
            for i, rows in enumerate(kepts)
        ]
        fused = hs.fuse(paths, out=tmp_path / "hydra.safetensors", force=True)
        model = hs.load(fused.path, device="cpu")
        parts = [Part(each.kept) for each in model.manifest.members]
        for first in (1, 2):
            counted = step_macs(model, inputs, tuple(range(first)))
            assert counted == planned(plan, parts, first)
        # Going on costs what the other members do; heads in common that the whole computes once, the parts do not.
        assert macs(model, inputs) <= counted.first + counted.rest
        assert step_macs(model, inputs, (2,)) == planned(plan, [parts[2], parts[0], parts[1]], 1)
        assert single_macs(model, inputs) == macs(whole, inputs)


@pytest.mark.parametrize("family", thoroughly(*(name for name in FAMILIES if name != UNCUT)))
def test_the_single_model_has_the_neurons_that_members_lost(family: Family, tmp_path: Path) -> None:
    source = tmp_path / "source"
    family.write(source)
    settings = {"method": "random", "neurons": 0.4, "keep": 3}
    members = [
        hs.prune(source, **settings, seed=seed, out=tmp_path / f"m{seed}").path for seed in (1, 2)
    ]
    model = hs.load(hs.fuse(members, out=tmp_path / "hydra").path, device="cpu")
    inputs = family.inputs()
    whole = as_classifier(open_checkpoint(source), device="cpu", lean=True)
    assert single_macs(model, inputs) == macs(whole, inputs)


def test_expected_by_shares() -> None:
    steps = StepMacs(100, 40)
    assert [steps.expected(share) for share in (0.0, 0.25, 1.0)] == [100, 110, 140]


def test_all_rows_through_count_what_runs(tmp_path: Path) -> None:
    """Counted while the cascade runs, with every row open."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    paths = [
        member(tmp_path / "source", family, rows, tmp_path / f"m{i}.safetensors")
        for i, rows in enumerate(TRUNKED)
    ]
    model = hs.load(hs.fuse(paths, out=tmp_path / "hydra.safetensors").path, device="cpu")
    inputs = family.inputs(4)
    model.state = open_gate((1, 2, 0))
    with torch.inference_mode(), without_padding(model):
        said(model, inputs)
        with MultiplyAdds() as counter:
            said(model, inputs)
    assert counter.count == 4 * step_macs(model, inputs, (1,)).expected(1.0)
