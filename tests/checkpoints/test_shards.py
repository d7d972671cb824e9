"""--max-shard-size: weights in several files are the same weights, here and in transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.manifest import read_manifest
from hydrasurgeon.files.shards import parse_size

INDEX = "model.safetensors.index.json"


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    FAMILIES["BERT"].write(tmp_path / "bert")
    return tmp_path / "bert"


def sizes(folder: Path) -> dict[str, int]:
    return {
        p.name: sum(a.nbytes for a in load_file(p).values()) for p in folder.glob("*.safetensors")
    }


def test_a_member_in_shards(bert: Path, tmp_path: Path) -> None:
    whole = hs.prune(bert, method="random", keep=2, out=f"{tmp_path}/whole/")
    cut = hs.prune(bert, method="random", keep=2, out=f"{tmp_path}/cut/", max_shard_size="20KB")
    files = sizes(cut.path)
    assert sorted(files) == [
        f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))
    ]
    assert len(files) > 2
    assert max(files.values()) <= 20_000
    index = json.loads((cut.path / INDEX).read_text())
    assert index["metadata"] == {"total_size": sum(files.values())}
    assert index["weight_map"] == {
        name: p.name for p in cut.path.glob("*.safetensors") for name in load_file(p)
    }
    assert cut.manifest == whole.manifest
    assert {p.name for p in cut.path.iterdir()} - {*files, INDEX} == {
        p.name for p in whole.path.iterdir()
    } - {"model.safetensors"}
    for opened in (open_checkpoint(cut.path), open_checkpoint(whole.path)):
        assert opened.digests() == open_checkpoint(whole.path).digests()
        assert opened.manifest == whole.manifest
    (cut.path / "heads.json").unlink()  # the first shard knows it too
    assert open_checkpoint(cut.path).manifest == whole.manifest
    again = hs.prune(bert, method="random", keep=2, out=f"{tmp_path}/again/", max_shard_size="20KB")
    for name in (*files, INDEX):
        assert (again.path / name).read_bytes() == (cut.path / name).read_bytes()


def test_transformers_loads_the_shards(bert: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    inputs = FAMILIES["BERT"].inputs()
    members = [
        hs.prune(
            bert, method="random", keep=2, seed=i, out=f"{tmp_path}/m{i}/", max_shard_size="20KB"
        ).path
        for i in (1, 2)
    ]
    hydra = hs.fuse(members, out=f"{tmp_path}/hydra/", max_shard_size="30KB").path
    assert len(sizes(hydra)) > 2
    for path in (*members, hydra):
        ours = hs.load(path, device="cpu")
        stock = AutoModelForSequenceClassification.from_pretrained(path, trust_remote_code=True)
        with torch.inference_mode():
            logits = stock.eval()(**inputs).logits
            expected = ours(inputs)
        if path == hydra:
            torch.testing.assert_close(logits.softmax(-1), ours.predict(inputs), rtol=0, atol=1e-5)
        else:
            torch.testing.assert_close(logits, expected[:, 0], rtol=0, atol=1e-5)


def test_shards_are_scored_pruned_and_replaced(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["prune", "bert", "--method", "random", "-o", "cut/", "--quiet"]
    assert run([*line, "--keep", "3", "--max-shard-size", "20KB"]) == 0
    before = sizes(tmp_path / "cut")
    assert run(["score", "cut", "--method", "magnitude", "--quiet"]) == 0
    scored = open_checkpoint("cut")
    assert set(scored.manifest.scores) == {"random", "magnitude"}
    scored.digests()
    assert read_manifest(tmp_path / "cut" / "heads.json") == scored.manifest
    assert sizes(tmp_path / "cut") == before
    made = hs.prune("cut", method="magnitude", keep=2, out="next.safetensors")
    assert open_checkpoint(made.path).digests()
    assert run([*line, "--keep", "2", "--force"]) == 0  # no shard of the old output stays
    assert [p.name for p in (tmp_path / "cut").glob("*.safetensors*")] == ["model.safetensors"]
    assert run([*line, "--keep", "2", "--force", "--max-shard-size", "1GB"]) == 0
    assert [p.name for p in (tmp_path / "cut").glob("*.safetensors*")] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5 * 10**9),
        ("1.5MB", 1_500_000),
        ("2GiB", 2**31),
        ("300kb", 300_000),
        ("7", 7),
        ("8 B", 8),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "0.5", "-1GB", "5TB", "GB", "nan", "1e9", "5 G B", "9" * 20]
)
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--max-shard-size"):
        parse_size(text)
