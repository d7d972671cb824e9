"""A config that was edited beside a manifest does not count, and `verify` names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_families import FAMILIES, Family, thoroughly
from tiny_members import KEPTS, RAGGED, member

import hydrasurgeon as hs


@pytest.mark.parametrize("family", thoroughly())
def test_configs_that_nobody_edited(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    made = member(tmp_path / "source", family, RAGGED, f"{tmp_path}/m/")
    assert hs.verify(made).holds
    # The library's own config, beside a manifest that `score` wrote.
    hs.score(tmp_path / "source", method="magnitude")
    assert hs.verify(tmp_path / "source").holds
    other = member(tmp_path / "source", family, KEPTS[1], tmp_path / "o.safetensors")
    assert hs.verify(hs.fuse([made, other], out=f"{tmp_path}/h/").path).holds


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("BERT", "hidden_size", 64),
        ("BERT", "id2label", {"0": "a", "1": "b", "2": "c"}),
        ("timm ViT", "model_args", {"embed_dim": 64}),
        ("OpenCLIP", "preprocess_cfg", {"mean": [0, 0, 0]}),
    ],
)
def test_an_edited_config_is_named_and_does_not_count(
    name: str, key: str, value: object, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    made = member(tmp_path / "source", family, RAGGED, f"{tmp_path}/m/")
    expected = hs.load(made, device="cpu")(family.inputs())
    place = made / ("open_clip_config.json" if name == "OpenCLIP" else "config.json")
    place.write_text(json.dumps({**json.loads(place.read_text()), key: value}))
    assert hs.load(made, device="cpu")(family.inputs()).equal(expected)
    (broken,) = [check for check in hs.verify(made).checks if check.holds is False]
    assert broken.name == place.name
    assert broken.detail.startswith(f"{key} is ")
