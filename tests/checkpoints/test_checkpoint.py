"""Files: what is written reads back, what is damaged is refused with one clear message, nothing is left
half-written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints import writing as saving
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckpointError, ManifestError, OutputError
from hydrasurgeon.files.manifest import json_schema, read_manifest, sidecar

MAKE = Callable[..., Path]


def test_the_pair_agrees_and_validates(tiny: MAKE) -> None:
    path = tiny()
    with safe_open(path, "pt") as file:
        inside = json.loads(file.metadata()["hydrasurgeon"])
        assert file.metadata()["format"] == "pt"
    outside = json.loads(sidecar(path).read_text())
    assert inside == outside
    jsonschema.validate(outside, json.loads(json_schema()))
    assert outside["kind"] == "backbone"
    assert outside["towers"] == {"vision": {"layers": 3, "heads": 4, "head_dim": 8, "dim": 32}}
    assert outside["kept"] == {"vision": [[0, 1, 2, 3]] * 3}
    assert outside["model"]["labels"] is None


def test_the_weights_hash_is_what_the_docs_say(tiny: MAKE) -> None:
    path = tiny()
    total = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        one = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        total.update(f"{name}\0F32\0{','.join(map(str, tensor.shape))}\0{one}\n".encode())
    assert read_manifest(sidecar(path)).weights_sha256 == total.hexdigest()


def test_outputs_are_byte_identical(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    outputs = []
    for i in range(2):
        folder = tmp_path / str(i)
        folder.mkdir()
        hs.prune(path, method="random", keep=2, seed=3, out=folder / "a.safetensors")
        hs.prune(path, method="random", keep=3, seed=3, out=folder / "b.safetensors")
        hs.fuse([folder / "a", folder / "b"], out=folder / "h.safetensors")
        outputs.append({p.name: p.read_bytes() for p in sorted(folder.iterdir())})
    assert outputs[0] == outputs[1]
    for content in outputs[0].values():
        assert str(tmp_path).encode() not in content


def test_foreign_weights_are_refused(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors["head.bias"] += 1
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(ManifestError, match="belongs to other weights"):
        hs.prune(path, method="random", keep=2, out=tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()
    with pytest.raises(ManifestError, match="belongs to other weights"):
        hs.load(path)


def test_a_sidecar_that_disagrees_is_refused(tiny: MAKE) -> None:
    path = tiny()
    manifest = json.loads(sidecar(path).read_text())
    manifest["kept"]["vision"][0] = [0]
    sidecar(path).write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match="disagrees"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "hydrasurgeon.manifest/9"}, "manifest/9"),
        ({"kept": {"vision": [[0, 9]] * 3}}, "not sorted heads below 4"),
        ({"kept": {"vision": [[0]]}}, "kept heads for 1 layers"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_damaged_manifests(tiny: MAKE, change: dict[str, object], message: str) -> None:
    path = tiny()
    bare = load_file(path)
    save_file(bare, path, metadata={"format": "pt"})
    manifest = json.loads(sidecar(path).read_text()) | change
    sidecar(path).write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match=message):
        open_checkpoint(path)


def test_missing_and_foreign_tensors(tiny: MAKE) -> None:
    path = tiny()
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    missing = {k: v for k, v in tensors.items() if k != "blocks.1.mlp.fc1.bias"}
    save_file(missing, path, metadata=metadata)
    with pytest.raises(CheckpointError, match=r"blocks\.1\.mlp\.fc1\.bias is missing"):
        open_checkpoint(path)
    save_file(
        tensors | {"head.weight": tensors["head.weight"].to(torch.int8)}, path, metadata=metadata
    )
    with pytest.raises(CheckpointError, match=r"head\.weight has dtype I8"):
        open_checkpoint(path)


def test_full_disk_leaves_nothing(
    tiny: MAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny()

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_tensors", full)
    with pytest.raises(OutputError, match="the disk is full"):
        hs.prune(path, method="random", keep=2, out=tmp_path / "m.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["vit.heads.json", "vit.safetensors"]


def test_directory_output_reads_back(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    hs.prune(path, method="random", keep=2, out=f"{tmp_path}/member/")
    assert sorted(p.name for p in (tmp_path / "member").iterdir()) == [
        "README.md",
        "config.json",
        "heads.json",
        "model.safetensors",
    ]
    opened = open_checkpoint(tmp_path / "member")
    assert opened.recorded
    assert opened.manifest.kind == "member"
    opened.digests()


def test_timm_directory(tmp_path: Path) -> None:
    import timm
    from timm.models import save_for_hf

    model = timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=64)
    save_for_hf(model, tmp_path / "dir", safe_serialization=True)
    if "model_args" not in json.loads((tmp_path / "dir" / "config.json").read_text()):
        # Older releases do not write how large the images are: timm would stretch the positions to 224.
        with pytest.raises(CheckpointError, match="pos_embed is 1×17×192"):
            open_checkpoint(tmp_path / "dir")
        return
    opened = open_checkpoint(tmp_path / "dir")
    assert opened.manifest.model.num_classes == 7
    assert opened.manifest.model.preprocess["input_size"] == [3, 64, 64]
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        expected = model.eval()(images)
    torch.testing.assert_close(
        hs.load(tmp_path / "dir", device="cpu")(images)[:, 0], expected, rtol=0, atol=1e-5
    )


def test_sharded_directory(tiny: MAKE, tmp_path: Path) -> None:
    whole = load_file(tiny())
    names = sorted(whole)
    folder = tmp_path / "sharded"
    folder.mkdir()
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, part in shards.items():
        save_file({name: whole[name] for name in part}, folder / shard)
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    arch = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=32,depth=3,num_heads=4"
    pruned = hs.prune(folder, arch=arch, method="magnitude", keep=2, out=tmp_path / "m.safetensors")
    same = hs.prune(
        tmp_path / "vit.safetensors", method="magnitude", keep=2, out=tmp_path / "n.safetensors"
    )
    assert pruned.manifest.weights_sha256 == same.manifest.weights_sha256
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"shard b\.safetensors is missing"):
        open_checkpoint(folder, arch=arch)


def test_assumed_heads_and_pixels_are_shown(
    tiny: MAKE, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shapes tell neither: a user must see what was taken."""
    save_file(load_file(tiny()), tmp_path / "bare.safetensors")
    arch = "timm:vit_large_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=32,depth=3"
    line = ["inspect", str(tmp_path / "bare.safetensors"), "--arch"]
    assert run([*line, arch]) == 0
    said = capsys.readouterr()
    assert "3 layers × 16 heads of 2" in said.out
    assert "pictures 1×28×28 (channels×height×width), mean 0.5, std 0.5" in said.out
    note = "assumed to have 16 heads in each layer, as timm:vit_large_patch16_224 has"
    assert note in said.err
    assert f"--arch {arch},num_heads=N" in said.err
    assert run([*line, f"{arch},num_heads=4"]) == 0
    said = capsys.readouterr()
    assert "3 layers × 4 heads of 8" in said.out
    assert said.err == ""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_keep_their_bits(tiny: MAKE, tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(tiny()).items()}
    path = tmp_path / "other.safetensors"
    save_file(tensors, path)
    arch = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=32,depth=3,num_heads=4"
    pruned = hs.prune(path, arch=arch, method="random", keep=1, out=tmp_path / "m.safetensors")
    head = pruned.manifest.kept["vision"][0][0]
    found = load_file(pruned.path)["blocks.0.attn.qkv.weight"]
    expected = tensors["blocks.0.attn.qkv.weight"].view(3, 4, 8, 32)[:, head].reshape(24, 32)
    assert found.dtype == dtype
    assert torch.equal(found, expected)
