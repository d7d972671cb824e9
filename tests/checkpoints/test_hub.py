"""Hub ids go through huggingface_hub; what it says when something is missing becomes one clear message."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, UsageError


def test_timm_names_live_under_timm(
    bare: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import timm
    from timm.models import save_for_hf

    save_for_hf(
        timm.create_model("vit_tiny_patch16_224", num_classes=3),
        tmp_path / "repo",
        safe_serialization=True,
    )
    asked = []

    def download(repo: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repo, revision))
        return str(tmp_path / "repo")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    opened = open_checkpoint("timm:vit_tiny_patch16_224.augreg_in21k@abc123")
    assert asked == [("timm/vit_tiny_patch16_224.augreg_in21k", "abc123")]
    assert opened.manifest.model.arch == "vit_tiny_patch16_224"
    assert opened.manifest.model.num_classes == 3


def test_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("not cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match="not in the cache and the hub cannot be reached"):
        open_checkpoint("timm:vit_tiny_patch16_224")


def test_a_hub_id_is_pinned_and_its_cache_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest names the commit; outputs go to the working directory, never into the cache."""
    from tiny_families import FAMILIES

    import hydrasurgeon as hs

    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "cache" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    FAMILIES["BERT"].write(snapshot)
    before = sorted(p.name for p in snapshot.iterdir())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(snapshot))
    monkeypatch.chdir(tmp_path)
    pruned = hs.prune("hf:someone/tiny-bert", method="magnitude", keep=2)
    assert pruned.path == Path("tiny-bert-magnitude-k2.safetensors")
    (given,) = pruned.manifest.history[-1].inputs
    assert given.name == f"hf:someone/tiny-bert@{commit}"
    data = FAMILIES["BERT"].data(tmp_path)
    with pytest.raises(UsageError, match="not your file"):
        hs.score("hf:someone/tiny-bert", method="taylor", data=data)
    scored = hs.score(
        "hf:someone/tiny-bert", method="taylor", data=data, out="scored", device="cpu"
    )
    assert hs.prune(scored.path, method="taylor", keep=1).manifest.kept
    assert sorted(p.name for p in snapshot.iterdir()) == before


@pytest.mark.parametrize("revision", ["../../x", "/etc", "a/../b", "-x", "a b", "a\n", "refs//1"])
def test_a_revision_is_no_path(revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(CheckpointError, match="is not a revision"):
        open_checkpoint(f"timm:vit_tiny_patch16_224@{revision}")


def test_the_package_ships_models(tmp_path: Path) -> None:
    """`demo:NAME` is the file itself, recorded by this name; scores need a file of one's own."""
    shipped = Path(str(files("hydrasurgeon") / "demo" / "backbone.safetensors"))
    opened = open_checkpoint("demo:backbone")
    assert opened.path == shipped
    assert opened.name == "demo:backbone"
    assert opened.tensors.digests() == open_checkpoint(shipped).tensors.digests()
    out = tmp_path / "member.safetensors"
    hs.prune("demo:backbone", method="magnitude", keep=4, out=out)
    (step,) = open_checkpoint(out).manifest.history
    assert [record.name for record in step.inputs] == ["demo:backbone"]
    with pytest.raises(UsageError, match="not your file"):
        hs.score("demo:backbone", method="magnitude")
    with pytest.raises(CheckpointError, match="did you mean demo:backbone"):
        open_checkpoint("demo:bakbone")
