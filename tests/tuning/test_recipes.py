"""A recipe says how to train, or is refused before anything begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydrasurgeon.errors import UsageError
from hydrasurgeon.tuning.recipes import load_recipe, recipe_names

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
