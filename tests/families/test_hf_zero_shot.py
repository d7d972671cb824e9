"""transformers' CLIP and SigLIP by class names, beside the uniform suite: texts, labels, losses and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import ADJECTIVES, FAMILIES, IMAGE, TEXT, VOCAB, tokenizer, transformers_model
from tiny_members import KEPTS, logits, member

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, Disagreement, UsageError
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.hf_clip.both_towers import read_towers, weights
from hydrasurgeon.families.hf_clip.zero_shot_family import HFZeroShot
from hydrasurgeon.families.hf_clip.zero_shot_modules import canonical
from hydrasurgeon.families.weights import shapes_of
from hydrasurgeon.runtime.hydra import Hydra
from hydrasurgeon.runtime.kinds import kind_of
from hydrasurgeon.tasks import task_of

CLIP, SIGLIP = FAMILIES["CLIP by class names"], FAMILIES["SigLIP by class names"]
BOTH = pytest.mark.parametrize("family", [CLIP, SIGLIP], ids=["CLIP", "SigLIP"])


@pytest.mark.parametrize(("cls", "name"), [("CLIPModel", "clip"), ("SiglipModel", "siglip")])
def test_the_librarys_usual_sizes_make_its_tensors(cls: str, name: str) -> None:
    """A config.json that says nothing of sizes, as the first ones of the hub."""
    import transformers

    config = {"architectures": [cls], "model_type": name, "text_config": {}, "vision_config": {}}
    family = HFZeroShot()
    bare = BareCheckpoint({}, "here", config=config)
    assert family.recognises(bare)
    assert not family.recognises(
        BareCheckpoint({}, "here", config=config | {"architectures": [f"{cls[:-5]}VisionModel"]})
    )
    model = family.identify(bare)[0]
    family.check(model, family.towers(model), "here")
    with torch.device("meta"):
        made = getattr(transformers, cls)(getattr(transformers, cls).config_class())
    assert shapes_of(weights(read_towers(config, "here"))) == {
        n: tuple(p.shape) for n, p in made.named_parameters()
    }


@pytest.mark.parametrize("end", [2, 7])
def test_texts_are_read_where_clip_reads_them(end: int, tmp_path: Path) -> None:
    """At the token that its config names; where that is 2, as files of before 2023 have it, at the highest."""
    text = {**TEXT, "max_position_embeddings": 9, "eos_token_id": end, "bos_token_id": 0}
    theirs = transformers_model(
        "CLIPModel", {"vision_config": IMAGE, "text_config": text, "projection_dim": 16}
    )
    theirs.save_pretrained(tmp_path / "clip")
    tokenizer(tmp_path / "clip")
    ours = hs.load(tmp_path / "clip", classes=",".join(ADJECTIVES), device="cpu").module
    ids = torch.randint(8, len(VOCAB), (6, 9), generator=torch.Generator().manual_seed(0))
    ids[torch.arange(6), torch.tensor([8, 2, 5, 0, 1, 3])] = 7
    with torch.no_grad():
        expected = theirs.text_projection(theirs.text_model(input_ids=ids).pooler_output)
        expected = torch.nn.functional.normalize(expected, dim=-1)
        found = Hydra([ours], lambda clip: clip.text_anatomy(), mode="apart")(ids)[:, 0]
    torch.testing.assert_close(ours.text_features(ids), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("labels_need_not_fit")
def test_siglip_says_yes_or_no_to_each_name(tmp_path: Path) -> None:
    """Its probabilities are those of its own pipeline: a sigmoid each; labels of one class are lists of one."""
    SIGLIP.write(tmp_path / "s")
    data = SIGLIP.data(tmp_path, rows=150)
    out = hs.calibrate(
        tmp_path / "s", data=data, out=tmp_path / "ready.safetensors", device="cpu"
    ).path
    model = open_checkpoint(out).manifest.model
    assert model.task == "multi_label"
    images = SIGLIP.inputs()
    expected = SIGLIP.stock(tmp_path / "s")(images).sigmoid()
    found = kind_of(task_of(model)).probs(logits(tmp_path / "s", images)[:, 0])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    (row,) = hs.evaluate([out], data=data, device="cpu").report.results
    assert row.id is not None
    answers = tmp_path / "a.jsonl"
    hs.predict(out, data=data, device="cpu", out=answers)
    first = json.loads(answers.read_text().splitlines()[0])
    assert {name for name, _ in first["top"]} == {*ADJECTIVES}
    assert all(0 < probability < 1 for _, probability in first["top"])


def test_siglips_texts_are_written_as_it_learnt_them() -> None:
    assert canonical("A Photo of  a Dog, by day.", bare=True) == "a photo of a dog by day"
    assert canonical("A Photo of a Dog.", bare=False) == "a photo of a dog."


@BOTH
def test_folders_load_in_transformers_where_no_head_is_gone(family: Any, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    whole = hs.prune(
        tmp_path / "source", method="random", keep=4, out=f"{tmp_path / 'whole'}/"
    ).path
    images = family.inputs()
    torch.testing.assert_close(
        family.stock(whole)(images), logits(whole, images)[:, 0], rtol=0, atol=1e-5
    )
    cut = [
        member(tmp_path / "source", family, rows, f"{tmp_path / f'm{i}'}/")
        for i, rows in enumerate(KEPTS)
    ]
    hydra = hs.fuse(cut, out=f"{tmp_path / 'hydra'}/").path
    expected = torch.cat([logits(path, images) for path in cut], dim=1)
    torch.testing.assert_close(logits(hydra, images), expected, rtol=0, atol=1e-5)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    CLIP.write(tmp_path / "c")
    words = tmp_path / "c" / "tokenizer.json"
    words.write_text(words.read_text().replace('"dull"', '"full"'))
    with pytest.raises(Disagreement, match="another tokenizer"):
        open_checkpoint(tmp_path / "c")
    (tmp_path / "c" / "heads.json").unlink()
    with pytest.raises(UsageError, match="known by its config"):
        open_checkpoint(tmp_path / "c", arch="transformers:bert")
    words.unlink()
    (tmp_path / "c" / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        hs.load(tmp_path / "c", classes="a,b", device="cpu")
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    config["text_config"]["hidden_size"] = 33
    (tmp_path / "c" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"text_config.*multiple of 4 heads"):
        open_checkpoint(tmp_path / "c")
