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
    hydra = hs.fuse([made, other], out=f"{tmp_path}/h/").path
    assert open_checkpoint(hydra).note is None


@pytest.mark.parametrize("family", thoroughly("BERT", "ModernBERT", "DistilBERT", "MPNet", "DINOv2"))
def test_a_config_that_transformers_wrote_again(family: Family, tmp_path: Path) -> None:
    """It adds its version, the type and every default."""
    from transformers import AutoConfig

    made = cut(tmp_path, family)
    before = json.loads((made / "config.json").read_text())
    text = {k: v for k, v in before.items() if k not in ("auto_map", "hydrasurgeon", "transformers_weights")}
    again = AutoConfig.for_model(**{**text, "model_type": before["model_type"].removeprefix("hydrasurgeon_")})
    again.save_pretrained(tmp_path / "again")
    shutil.copyfile(tmp_path / "again" / "config.json", made / "config.json")
    assert json.loads((made / "config.json").read_text()) != before
    assert open_checkpoint(made).note is None


def test_an_edited_config_is_named_and_does_not_count(tmp_path: Path) -> None:
    made = cut(tmp_path, FAMILIES["BERT"])
    expected = hs.load(made, device="cpu")(FAMILIES["BERT"].inputs())
    # The first lies in no config.json of ours as long as it is the default.
    edit(made, {"attention_probs_dropout_prob": 0.25, "hidden_size": 64, "transformers_version": "9"})
    note = open_checkpoint(made).note
    assert (
        note
        == f"{made}/config.json: hidden_size is 64 there and 32 in the manifest, attention_probs_dropout_prob is 0.25"
        " there and 0.1 in the manifest; the manifest counts here, config.json only in other libraries"
    )
    # By the name of its weight file too.
    assert open_checkpoint(made / "model.safetensors").note == note
    with pytest.warns(UserWarning, match="hidden_size is 64 there and 32 in the manifest") as warned:
        model = hs.load(made, device="cpu")
    assert warned[0].filename == __file__
    assert model(FAMILIES["BERT"].inputs()).equal(expected)
    data = FAMILIES["BERT"].data(tmp_path)
    assert note in hs.evaluate([made], data=data).notes
    assert note in hs.prune(made, method="random", keep=1).notes
    assert export(made, format="padded", out=f"{tmp_path}/padded/").notes == (note,)
    assert note in hs.bench([made], batch="1", runs=1).notes
    assert note in hs.probe(made, data=data, method="random", draws=1, limit=6).notes
    assert hs.score(made, method="random").notes == (note,)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("BERT", "hidden_size", 64),
        ("BERT", "id2label", {"0": "a", "1": "b", "2": "c"}),
        ("timm ViT", "model_args", {"embed_dim": 64}),
        ("OpenCLIP", "preprocess_cfg", {"mean": [0, 0, 0]}),
    ],
)
def test_an_edited_config_is_named_and_does_not_count(name: str, key: str, value: object, tmp_path: Path) -> None:
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
