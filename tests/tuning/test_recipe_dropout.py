"""The recipe's dropout: it reaches the layers' branches, never attention weights; a model without a place for it says
so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_families import FAMILIES, LAYERS, Family, dinov2_without_dropout, thoroughly
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.tuning.start import set_dropout, starting_module, starting_point

TIMM = {"attn.proj_drop", "mlp.drop1", "mlp.drop2"}
BERT = {"attention.output.dropout", "output.dropout"}
MODERN = {"mlp.drop"}
PLACES = {
    "BERT": BERT,
    "RoBERTa": BERT,
    "ELECTRA": BERT,
    "DeBERTa-v3": BERT,
    "MPNet": {"attention.dropout", "output.dropout"},
    "DistilBERT": {"ffn.dropout"},
    "ModernBERT": MODERN,
    "ModernBERT pooling by mean": MODERN,
    "ViT": {"dropout"},
    "DeiT": {"dropout"},
    "DeiT distilled": {"dropout"},
    "DINOv2": set(),
    "DINOv2 with registers": set(),
    "CLIP": set(),
    "SigLIP 2": set(),
    "CLIP by class names": set(),
    "SigLIP by class names": set(),
    "Qwen3": set(),
    "Gemma2": set(),
    "OpenCLIP": set(),
}
"""What is called so in each layer, by transformers' and OpenCLIP's own sources; timm's is the others'."""
VISION = ("ViT", "DeiT", "DeiT distilled", "DINOv2", "DINOv2 with registers")
"""Whose branches older releases of transformers call otherwise."""
SHORT = {"steps": "1", "warmup": "0", "batch_size": "8"}


@pytest.mark.parametrize("family", thoroughly())
def test_it_reaches_the_branches_and_nothing_else(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "m")
    if family.name in VISION:
        dinov2_without_dropout()
    places = PLACES.get(family.name, TIMM)
    source = starting_point(tmp_path / "m", None)
    module = starting_module(source, source.manifest.model, "keep", 0)

    def rates() -> dict[str, float]:
        return {
            name: part.p for name, part in module.named_modules() if isinstance(part, nn.Dropout)
        }

    before = rates()
    note = set_dropout(module, source, 0.37, wanted=False)
    changed = {name for name, rate in rates().items() if rate == 0.37}
    within = {re.split(r"\.\d+\.", name)[-1] for name in changed}
    assert within == places
    assert len(changed) == LAYERS * len(places)
    assert {n: r for n, r in rates().items() if n not in changed} == {
        n: r for n, r in before.items() if n not in changed
    }
    assert (note is None) == bool(places)


@pytest.fixture
def dinov2(tmp_path: Path) -> tuple[Path, str]:
    dinov2_without_dropout()
    FAMILIES["DINOv2"].write(tmp_path / "dinov2")
    return tmp_path / "dinov2", FAMILIES["DINOv2"].data(tmp_path, rows=8)


def test_what_is_asked_for_and_has_no_place_is_refused(
    dinov2: tuple[Path, str], tmp_path: Path
) -> None:
    path, data = dinov2
    fields = SHORT | {"dropout": "0.1"}
    with pytest.raises(SurgeryError, match=r"--set dropout=0.1: no layer of Dinov2\w+ has dropout"):
        hs.finetune(path, data=data, recipe="demo", set=fields, out=tmp_path / "t", device="cpu")
    assert not list(tmp_path.glob("t*"))
    # Without a chance there is nothing to place.
    tuned = hs.finetune(
        path,
        data=data,
        recipe="demo",
        set=SHORT | {"dropout": "0"},
        out=tmp_path / "t",
        device="cpu",
    )
    assert not [note for note in tuned.notes if "dropout" in note]
