"""The recipe's dropout: it reaches the layers' branches, never attention weights; a model without a place for it says
so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_families import LAYERS, Family, dinov2_without_dropout, thoroughly
from torch import nn

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
    note = set_dropout(module, source, 0.37, is_explicit=False)
    changed = {name for name, rate in rates().items() if rate == 0.37}
    within = {re.split(r"\.\d+\.", name)[-1] for name in changed}
    assert within == places
    assert len(changed) == LAYERS * len(places)
    assert {n: r for n, r in rates().items() if n not in changed} == {
        n: r for n, r in before.items() if n not in changed
    }
    assert (note is None) == bool(places)
