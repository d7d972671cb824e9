"""A cascade's multiply-adds: those of its parts, which are at least the whole's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runtime_states import cascade_by
from runtime_states import state as made_state
from tiny_families import FAMILIES, Family, thoroughly
from tiny_members import KEPTS, member

import hydrasurgeon as hs
from hydrasurgeon.measuring.cost import MultiplyAdds, macs, stage_macs, without_padding
from hydrasurgeon.runtime.answering import outputs_in_stages

FULL = [0, 1, 2, 3]
TRUNKED = ([FULL, FULL, [0, 1]], [FULL, [1, 2], [0, 1]], [FULL, [1, 2], []])


def fused(folder: Path, family: Family, kepts: tuple[list[list[int]], ...]) -> hs.Classifier:
    paths = [
        member(folder / "source", family, rows, folder / f"m{i}.safetensors")
        for i, rows in enumerate(kepts)
    ]
    made = hs.fuse(paths, out=folder / "hydra.safetensors", force=True)
    return hs.load(made.path, device="cpu")


@pytest.mark.parametrize("family", thoroughly())
def test_parts_cost_no_less_than_the_whole(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    inputs = family.inputs()
    for number, kepts in enumerate((KEPTS, TRUNKED)):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "source").symlink_to(tmp_path / "source")
        model = fused(folder, family, kepts)
        counted = stage_macs(model, inputs)
        # Heads in common the whole computes once, the parts do not.
        assert macs(model, inputs) <= counted.expected(1.0)


def test_all_rows_through_count_what_runs(tmp_path: Path) -> None:
    """Counted while the cascade runs, with every row going on."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    model, inputs = fused(tmp_path, family, TRUNKED), family.inputs(4)
    model.state = made_state(cascade=cascade_by(1.0))
    with torch.inference_mode(), without_padding(model):
        outputs_in_stages(model, inputs, features=False)
        with MultiplyAdds() as counter:
            outputs_in_stages(model, inputs, features=False)
    assert counter.count == 4 * stage_macs(model, inputs).expected(1.0)
