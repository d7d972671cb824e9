"""Hydras on disk: a manifest that says of the members or the trunk what the tensors do not is refused (exit 3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited import edited
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, ManifestError
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.tensors import TensorFile, Tensors, weights_sha256

MAKE = Callable[..., Path]
Arrays = dict[str, np.ndarray[Any, Any]]


def rewritten(
    path: Path,
    change: Callable[[dict[str, Any]], Any] = lambda m: None,
    arrays: Callable[[Arrays], Any] = lambda a: None,
) -> Path:
    """The file with another manifest and other tensors, which agree in their hash: as someone would send it."""
    with safe_open(path, "np") as file:
        manifest = json.loads(file.metadata()["hydrasurgeon"])
    tensors = dict(load_file(path))
    arrays(tensors)
    save_file(tensors, path)
    sidecar(path).unlink(missing_ok=True)
    stored = Tensors([TensorFile(path)])
    manifest["weights_sha256"] = weights_sha256(stored, stored.digests())
    change(manifest)
    save_file(tensors, path, metadata={"hydrasurgeon": json.dumps(manifest)})
    return path


@pytest.fixture
def pruned(tiny: MAKE, tmp_path: Path) -> Path:
    """Members that were only pruned: all tensors are shared, heads as a union from layer 1 on."""
    backbone = tiny()
    members = [
        hs.prune(
            backbone,
            method="random",
            keep=2,
            seed=seed,
            layers="1-2",
            out=tmp_path / f"p{seed}.safetensors",
        ).path
        for seed in (1, 2)
    ]
    hydra = hs.fuse(members, out=tmp_path / "pruned.safetensors").path
    assert open_checkpoint(hydra).manifest.fusion.trunk == 1
    return hydra


@pytest.fixture
def tuned(pruned: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Members of which one was changed in every MLP and in its classifier."""

    def make(mlp: str) -> Path:
        def change(name: str, tensor: Any) -> Any:
            return tensor + 1 if ".mlp.fc1." in name or name.startswith("head.") else tensor

        edited(tmp_path / "p2.safetensors", tmp_path / "t2.safetensors", change)
        members = [tmp_path / "p1.safetensors", tmp_path / "t2.safetensors"]
        return hs.fuse(members, mlp=mlp, out=tmp_path / f"{mlp}.safetensors").path

    return make


def test_members_are_put_together_again(
    pruned: Path, tuned: Callable[[str], Path], tmp_path: Path
) -> None:
    """What a hydra holds of a member hashes to the member's own file."""
    for hydra, members in ((pruned, ("p1", "p2")), (tuned("separate"), ("p1", "t2"))):
        opened = open_checkpoint(hydra)
        digests, hashes = opened.hashes()
        assert digests == opened.tensors.digests()
        wanted = [open_checkpoint(tmp_path / name).manifest.weights_sha256 for name in members]
        assert hashes == wanted
    averaged = open_checkpoint(tuned("average"))
    assert not set(averaged.hashes()[1]) & set(wanted)
    averaged.digests()


def test_a_member_hash_that_is_wrong(pruned: Path, tuned: Callable[[str], Path]) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["members"][1]["sha256"] = "0" * 64
        manifest["history"][-1]["inputs"][1]["sha256"] = "0" * 64

    for path in (pruned, tuned("separate")):
        rewritten(path, change)
        opened = open_checkpoint(path)
        with pytest.raises(ManifestError, match="member 1 is not the one that the manifest names"):
            opened.digests()
        with pytest.raises(ManifestError, match="member 1"):
            hs.load(path)


def test_one_bit_of_a_member(tuned: Callable[[str], Path]) -> None:
    def flip(arrays: Arrays) -> None:
        arrays["members.1.head.weight"].view("u4")[0, 0] ^= 1

    with pytest.raises(ManifestError, match="member 1 is not the one"):
        open_checkpoint(rewritten(tuned("separate"), arrays=flip)).digests()


@pytest.mark.parametrize("trunk", [2, 3])
def test_a_trunk_that_is_not_shared(pruned: Path, trunk: int) -> None:
    rewritten(pruned, lambda m: m["fusion"].update(trunk=trunk))
    with pytest.raises(ManifestError, match=f"share {trunk} leading layers; they share 1"):
        open_checkpoint(pruned)


def test_a_trunk_over_layers_of_ones_own(tuned: Callable[[str], Path]) -> None:
    path = tuned("separate")
    assert open_checkpoint(path).manifest.fusion.trunk == 0
    with pytest.raises(ManifestError, match="they share 0"):
        open_checkpoint(rewritten(path, lambda m: m["fusion"].update(trunk=1)))


CONTRADICTIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "one member more": (
        lambda m: m["members"].append(m["members"][0]),
        "lists other members than `fuse` read",
    ),
    "one member more, read by fuse too": (
        lambda m: (
            m["members"].append(m["members"][0]),
            m["history"][-1]["inputs"].append(m["history"][-1]["inputs"][0]),
        ),
        r"members\.2\.\S+ is missing",
    ),
    "other heads": (
        lambda m: [member["kept"]["vision"].__setitem__(1, [0]) for member in m["members"]],
        "with these heads needs",
    ),
    "more heads": (
        lambda m: m["members"][0]["kept"]["vision"].__setitem__(1, [0, 1, 2, 3]),
        "with these heads needs",
    ),
    "16 heads": (
        lambda m: m["towers"]["vision"].update(heads=16),
        "heads is 16, model.config says 4",
    ),
    "other head_dim": (
        lambda m: m["towers"]["vision"].update(head_dim=16),
        "head_dim is 16, model.config says 8",
    ),
    "4 layers": (lambda m: m["towers"]["vision"].update(layers=4), "kept heads for 3 layers"),
    "classes": (lambda m: m["model"].update(num_classes=6), "with these heads needs|classes"),
    "labels": (lambda m: m["model"].update(labels=["a", "b", "c"]), "3 labels for 5 classes"),
    "more layers than tensors": (
        lambda m: (
            m["towers"]["vision"].update(layers=4000),
            [member["kept"].update(vision=[[0]] * 4000) for member in m["members"]],
        ),
        "4000 layers, the file has",
    ),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_contradictions(tuned: Callable[[str], Path], what: str) -> None:
    change, message = CONTRADICTIONS[what]
    with pytest.raises(CheckpointError, match=message) as refused:
        open_checkpoint(rewritten(tuned("separate"), change))
    assert refused.value.exit_code == 3


@pytest.mark.parametrize("change", [lambda m: m.append(m[0]), lambda m: m.reverse()])
def test_members_without_tensors_of_their_own(
    pruned: Path, change: Callable[[list[Any]], Any]
) -> None:
    """No tensor tells how many there are, where they differ in their heads alone: what `fuse` read does."""
    path = rewritten(pruned, lambda m: change(m["members"]))
    with pytest.raises(CheckpointError, match="lists other members than `fuse` read"):
        open_checkpoint(path)


def test_one_member_fewer(pruned: Path, tmp_path: Path) -> None:
    three = [*(tmp_path / f"p{i}.safetensors" for i in (1, 2)), tmp_path / "t3.safetensors"]
    edited(three[1], three[2], lambda name, tensor: tensor + 1 if name == "head.bias" else tensor)
    path = hs.fuse(three, out=tmp_path / "three.safetensors").path
    rewritten(path, lambda m: (m["members"].pop(), m["history"][-1]["inputs"].pop()))
    with pytest.raises(
        CheckpointError, match=r"members\.2\.head\.bias is not part of a hydra of 2"
    ):
        open_checkpoint(path)


TENSORS: dict[str, tuple[Callable[[Arrays], Any], str]] = {
    "unknown": (lambda a: a.update(x=np.zeros(1, "f4")), "tensor x is not part of"),
    "of a member that is not there": (
        lambda a: a.update({"members.2.head.bias": a["members.0.head.bias"]}),
        "members.2.head.bias is not part of",
    ),
    "shared and a member's": (
        lambda a: a.update({"head.bias": a["members.0.head.bias"]}),
        "tensor head.bias is not part of",
    ),
    "missing": (lambda a: a.pop("members.1.head.bias"), "members.1.head.bias is missing"),
    "shared missing": (lambda a: a.pop("cls_token"), "cls_token is missing"),
    "integers": (
        lambda a: a.update(cls_token=a["cls_token"].astype("i4")),
        "cls_token has dtype I32",
    ),
    "another shape": (
        lambda a: a.update({"members.0.head.bias": np.zeros(6, "f4")}),
        "head.bias has shape",
    ),
    "fewer heads than the union": (
        lambda a: a.update({"blocks.1.attn.proj.weight": a["blocks.1.attn.proj.weight"][:, 8:]}),
        "with these heads needs",
    ),
}


@pytest.mark.parametrize("what", TENSORS)
def test_tensors_that_do_not_fit(tuned: Callable[[str], Path], what: str) -> None:
    change, message = TENSORS[what]
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(rewritten(tuned("separate"), arrays=change))


def test_a_member_with_a_tensor_of_no_model(pruned: Path, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "p1.safetensors", arrays=lambda a: a.update(x=np.zeros(1, "f4")))
    with pytest.raises(CheckpointError, match="tensor x is not part of timm:vit_tiny"):
        open_checkpoint(path)
