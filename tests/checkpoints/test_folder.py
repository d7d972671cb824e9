"""Paths, folders, indexes and configs: whatever lies there, the answer is one sentence that names it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, HydraError, ManifestError
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.stages.inspect import inspect

MAKE = Callable[..., Path]
ARCH = (
    "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=32,depth=3,num_heads=4"
)


@pytest.mark.parametrize(
    "spec", ["", "/", ".", "..", "x" * 300, "a\0b", "./gone", "vit.safetensors/x"]
)
@pytest.mark.parametrize(
    "use", [inspect, lambda spec: hs.prune(spec, method="random", keep=2)], ids=["inspect", "prune"]
)
def test_paths_that_are_no_checkpoint(
    tiny: MAKE,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spec: str,
    use: Callable[[str], Any],
) -> None:
    tiny()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty" if spec == "." else tmp_path)
    for name in ("a", "b", "c"):  # so that `..` holds several files and none is taken by itself
        save_file({"x": np.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError) as refused:
        use(spec)
    assert refused.value.exit_code == 3
    assert refused.value.message.isprintable()


def test_the_folder_one_stands_in(
    tiny: MAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hs.prune(tiny(), method="random", keep=3, out=f"{tmp_path}/member/")
    monkeypatch.chdir(tmp_path / "member")
    assert open_checkpoint(".").name == "member"
    made = hs.prune(".", method="random", keep=2)
    assert made.path == tmp_path / "member-random-k2.safetensors"


def test_a_name_without_its_suffix(
    tiny: MAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny("m1.safetensors")
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("m1").path == Path("m1.safetensors")
    tiny("v1.5.safetensors")
    assert open_checkpoint("v1.5").path == Path("v1.5.safetensors")
    (tmp_path / "m1").mkdir()
    with pytest.raises(CheckpointError, match="m1: no weights found") as refused:
        open_checkpoint("m1")
    assert refused.value.hint == "Did you mean m1.safetensors?"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(tmp_path / "x")
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is not a regular file"):
        open_checkpoint(tmp_path)


def test_links_that_lead_nowhere(tiny: MAKE, tmp_path: Path) -> None:
    loop = tmp_path / "loop.safetensors"
    loop.symlink_to(loop)
    with pytest.raises(CheckpointError, match="symbolic links"):
        open_checkpoint(loop)
    path = tiny()
    sidecar(path).unlink()
    sidecar(path).symlink_to(sidecar(path))
    with pytest.raises(CheckpointError, match=r"heads\.json: cannot be read"):
        open_checkpoint(path)
    sidecar(path).unlink()
    sidecar(path).mkdir()
    with pytest.raises(ManifestError, match=r"heads\.json: is not a regular file"):
        open_checkpoint(path)


# --- several weight files ---


@pytest.fixture
def sharded(tiny: MAKE, tmp_path: Path) -> Path:
    whole = load_file(tiny("whole.safetensors"))
    names = sorted(whole)
    folder = tmp_path / "sharded"
    folder.mkdir()
    for shard, part in (("a", names[::2]), ("b", names[1::2])):
        save_file({name: whole[name] for name in part}, folder / f"{shard}.safetensors")
    homes = {name: "ab"[i % 2] + ".safetensors" for i, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    assert open_checkpoint(folder, arch=ARCH).tensors.keys() == whole.keys()
    return folder


def rewrite_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


def elsewhere(name: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["weight_map"].update({"head.bias": name})


INDEXES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "above": (elsewhere("../whole.safetensors"), "not one beside it"),
    "absolute": (elsewhere("/etc/passwd.safetensors"), "not one beside it"),
    "no weights": (elsewhere("a.bin"), "not one beside it"),
    "null": (elsewhere(None), "not one beside it"),
    "NUL": (elsewhere("a\0.safetensors"), "not one beside it"),
    "gone": (elsewhere("c.safetensors"), r"shard c\.safetensors is missing"),
    "another shard": (elsewhere("a.safetensors"), r"'head\.bias' is not in a\.safetensors"),
    "no map": (lambda i: {"metadata": {}}, "has no weight_map"),
    "map empty": (lambda i: {"weight_map": {}}, "has no weight_map"),
    "a list": (lambda i: [i], "has no weight_map"),
}


@pytest.mark.parametrize("what", INDEXES)
def test_hostile_indexes(sharded: Path, what: str) -> None:
    change, message = INDEXES[what]
    rewrite_index(sharded, change)
    with pytest.raises(CheckpointError, match=message) as refused:
        open_checkpoint(sharded, arch=ARCH)
    assert refused.value.message.isprintable()
    assert str(sharded) in refused.value.message


BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty"),
    "half": (b'{"weight_map": {', "not JSON"),
    "Latin-1": (b'{"model_type": "b\xe9rt"}', "not UTF-8"),
    "deep and closed": (b"[" * 100_000 + b"]" * 100_000, "nested more than 32 deep"),
    "a list": (b"[]", "not a JSON object|has no weight_map"),
    "NaN": (b'{"model_type": NaN}', "NaN is not a finite number"),
    "a key twice": (b'{"model_type": "bert", "model_type": "vit"}', "occurs twice"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_hostile_texts_beside_the_weights(sharded: Path, tmp_path: Path, what: str) -> None:
    content, message = BROKEN[what]
    FAMILIES["BERT"].write(tmp_path / "bert")
    for folder, name in (
        (sharded, "model.safetensors.index.json"),
        (tmp_path / "bert", "config.json"),
        (tmp_path / "bert", "open_clip_config.json"),
    ):
        (folder / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=message) as refused:
            open_checkpoint(folder)
        assert refused.value.message.startswith(str(folder / name))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "bert" / "model.safetensors")


def test_a_config_of_a_terabyte(tmp_path: Path) -> None:
    FAMILIES["BERT"].write(tmp_path / "bert")
    with (tmp_path / "bert" / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match=r"config\.json: is too large"):
        open_checkpoint(tmp_path / "bert")


def test_shards_that_carry_two_manifests(tiny: MAKE, tmp_path: Path) -> None:
    from safetensors import safe_open

    folder = tmp_path / "two"
    folder.mkdir()
    homes = {}
    for i in range(2):
        path = tiny(f"{i}.safetensors", seed=i)
        with safe_open(path, "np") as file:
            metadata = file.metadata()
        arrays = dict(list(load_file(path).items())[i::2])
        save_file(arrays, folder / f"{i}.safetensors", metadata=metadata)
        homes |= dict.fromkeys(arrays, f"{i}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    with pytest.raises(ManifestError, match=r"1\.safetensors: has another manifest than 0"):
        open_checkpoint(folder)


# --- which weights are the folder's own ---


def test_the_manifest_says_whose_the_weights_are(tiny: MAKE, tmp_path: Path) -> None:
    """A timm member in a folder where OpenCLIP's files were left behind."""
    folder = tmp_path / "both"
    made = hs.prune(tiny(), method="random", keep=2, out=f"{folder}/")
    FAMILIES["OpenCLIP"].write(tmp_path / "clip")
    for name in ("open_clip_config.json", "open_clip_model.safetensors"):
        (folder / name).write_bytes((tmp_path / "clip" / name).read_bytes())
    opened = open_checkpoint(folder)
    assert opened.manifest == made.manifest
    opened.digests()
    (tmp_path / "clip" / "model.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()
    )
    assert open_checkpoint(tmp_path / "clip").manifest.model.family == "open_clip"


def test_a_model_type_nobody_knows(tmp_path: Path) -> None:
    FAMILIES["BERT"].write(tmp_path / "bert")
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    for value in (None, 1, [], {}, "", "gpt2", "bert\n"):
        changed = json.dumps({**config, "model_type": value, "__family__": "timm"})
        (tmp_path / "bert" / "config.json").write_text(changed)
        with pytest.raises(HydraError, match="bert"):
            open_checkpoint(tmp_path / "bert")
