"""Weights in several files with an index, as transformers writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_families import FAMILIES
from transformers import AutoModelForSequenceClassification

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import CheckpointError


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    FAMILIES["BERT"].write(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def shards(bert: Path, tmp_path: Path) -> Path:
    FAMILIES["BERT"].write(tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors").unlink()
    model = AutoModelForSequenceClassification.from_pretrained(bert)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len([*(tmp_path / "shards").glob("*.safetensors")]) > 2
    return tmp_path / "shards"


def test_they_are_the_same_weights(bert: Path, shards: Path, tmp_path: Path) -> None:
    assert open_checkpoint(shards).digests() == open_checkpoint(bert).digests()
    for source in (bert, shards):
        hs.score(source, method="magnitude")
    one, other = (
        hs.prune(source, method="magnitude", keep=2, out=tmp_path / f"{source.name}.safetensors")
        for source in (bert, shards)
    )
    assert one.manifest.weights_sha256 == other.manifest.weights_sha256
    inputs = FAMILIES["BERT"].inputs()
    with torch.inference_mode():
        logits = [hs.load(each.path, device="cpu")(inputs) for each in (one, other)]
    assert torch.equal(*logits)


def test_a_shard_is_missing_or_damaged(shards: Path) -> None:
    shard = sorted(shards.glob("*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="beyond the end"):
        open_checkpoint(shards)
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"shard {shard.name} is missing"):
        open_checkpoint(shards)
