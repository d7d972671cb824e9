"""A recipe says how to train, or is refused before anything begins; its dropout reaches the layers' branches, never
attention weights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_families import LAYERS, Family, dinov2_without_dropout, thoroughly
from torch import nn

from hydrasurgeon.errors import UsageError
from hydrasurgeon.tuning.recipes import load_recipe, recipe_names
from hydrasurgeon.tuning.start import set_dropout, starting_module, starting_point

PLAIN = 'optimizer = "sgd"\nlr = 0.1\nsteps = 1\n'


@pytest.mark.parametrize("name", recipe_names())
def test_our_own_recipes_are_valid(name: str) -> None:
    assert load_recipe(name, {}).lr > 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("betas = [5.0, 5.0]\n", "betas"),
        ("momentum = -1\n", "momentum"),
        ("weight_decay = inf\n", "weight_decay"),
        ("batch_size = 1180591620717411303424\n", "batch_size"),
        ("augment = 3\n", "augment"),
        ("freeze = 3\n", "freeze"),
        ('augment = {rand_augment = "rand-m12-n2"}\n', "rand_augment"),
        ("augment = {rand_augment = [2, 31]}\n", "rand_augment"),
        ("augment = {random_resized_crop = [0.9, 0.1]}\n", "smaller fraction"),
        ("augment = {pad_crop = 100000}\n", "pad_crop"),
        ("x = " + "[" * 5000, "not TOML"),
        ("x = " + "1" * 5000, "not TOML"),
        ("x" * 3000 + " = 1\n", "no such field"),
    ],
)
def test_recipes_that_are_refused(tmp_path: Path, more: str, says: str) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(PLAIN + more)
    with pytest.raises(UsageError, match=says) as refused:
        load_recipe(recipe, {})
    assert len(refused.value.message) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"#" * (2 << 20)])
def test_files_that_are_no_recipe(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"r\.toml"):
        load_recipe(tmp_path / "r.toml", {})


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
