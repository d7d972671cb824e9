"""Weights in several files, as transformers cuts them, are the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import HydraError
from hydrasurgeon.files.manifest import read_manifest


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    FAMILIES["BERT"].write(tmp_path / "whole")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "bert", max_shard_size="20KB")
    AutoTokenizer.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "bert")
    assert (tmp_path / "bert" / "model.safetensors.index.json").exists()
    return tmp_path / "bert"


def test_shards_are_scored_pruned_and_replaced(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("bert").digests() == open_checkpoint("whole").digests()
    before = {path.name: path.read_bytes() for path in bert.glob("*.safetensors")}
    assert run(["score", "bert", "--method", "magnitude", "--quiet"]) == 0
    scored = open_checkpoint("bert")
    assert set(scored.manifest.scores) == {"magnitude"}
    assert read_manifest(bert / "heads.json") == scored.manifest
    assert {path.name: path.read_bytes() for path in bert.glob("*.safetensors")} == before
    cut = hs.prune("bert", method="magnitude", keep=2, out="cut/")
    whole = hs.prune("whole", method="magnitude", keep=2, out="next/")
    assert open_checkpoint(cut.path).digests() == open_checkpoint(whole.path).digests()
    assert [p.name for p in cut.path.glob("*.safetensors*")] == ["model.safetensors"]


def test_an_index_that_names_a_file_that_is_not_there(bert: Path) -> None:
    index = bert / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    said["weight_map"] = dict.fromkeys(said["weight_map"], "model-00009-of-00009.safetensors")
    index.write_text(json.dumps(said))
    with pytest.raises(HydraError, match="00009"):
        open_checkpoint(bert)
