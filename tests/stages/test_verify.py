"""verify: a file agrees with itself and with what it was made from, and one bit is enough to see that it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from edited import edited
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_families import FAMILIES, Family
from tiny_members import members_of
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.files.tensors import TensorFile
from hydrasurgeon.stages.verify import Verification, verify

MAKE = Callable[..., Path]


def outcomes(result: Verification) -> dict[str, bool | None]:
    return {check.name: check.holds for check in result.checks}


@pytest.fixture
def members(tiny: MAKE, tmp_path: Path) -> list[Path]:
    """Three different members of one backbone, nothing tuned."""
    tiny()
    for seed in (1, 2, 3):
        hs.prune(
            tmp_path / "vit.safetensors",
            method="random",
            remove=4,
            seed=seed,
            out=tmp_path / f"m{seed}",
        )
    return [tmp_path / f"m{seed}.safetensors" for seed in (1, 2, 3)]


@pytest.fixture
def hydra(members: list[Path], tmp_path: Path) -> Path:
    return hs.fuse(members, out=tmp_path / "hydra.safetensors").path


def test_a_hydra_proves_its_members_by_itself(hydra: Path) -> None:
    assert outcomes(verify(hydra)) == {
        "weights hash": True,
        "finite weights": True,
        "shapes": True,
        "member 0": True,
        "member 1": True,
        "member 2": True,
        "manifest hash": True,
        "history": True,
    }


@pytest.mark.slow
def test_every_tensor_edited_in_one_bit_is_caught(hydra: Path) -> None:
    rng = np.random.default_rng(0)
    content = bytearray(hydra.read_bytes())
    for info in TensorFile(hydra).infos.values():
        for _ in range(2):
            at, bit = info.start + int(rng.integers(info.nbytes)), 1 << int(rng.integers(8))
            content[at] ^= bit
            hydra.write_bytes(content)
            result = verify(hydra)
            assert not result.holds, info.name
            assert outcomes(result)["weights hash"] is False
            content[at] ^= bit
    hydra.write_bytes(content)
    assert verify(hydra).holds


def test_an_edit_with_a_mended_hash_is_told_by_the_members(
    members: list[Path], tmp_path: Path
) -> None:
    hydra = hs.fuse(members, out=tmp_path / "hydra", mlp="separate").path

    def nudge(name: str, tensor: Tensor) -> Tensor:
        return tensor * 1.0001 if name.endswith("1.attn.proj.weight") else tensor

    forged = outcomes(verify(edited(hydra, tmp_path / "forged.safetensors", nudge)))
    assert forged["weights hash"] is True
    assert [forged[f"member {i}"] for i in range(3)] == [False] * 3


def with_extra(path: Path, out: Path) -> Path:
    """A copy of a file with a tensor that nothing uses, and all else as it was."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file({**tensors, "bert.extra": torch.zeros(16)}, out, metadata=metadata)
    return out


def test_a_tensor_that_was_added_to_a_file_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No hash covers it: every command refuses the file, and `verify` says why."""
    family: Family = FAMILIES["BERT"]
    family.write(tmp_path / "source")
    sealed = hs.prune(
        tmp_path / "source", method="random", keep=2, out=tmp_path / "m.safetensors"
    ).path
    added = with_extra(sealed, tmp_path / "x.safetensors")
    (check,) = verify(added).checks
    assert (check.name, check.holds) == ("manifest", False)
    assert "tensor bert.extra has no hash" in check.detail
    assert run(["verify", str(added)]) == 1
    assert run(["predict", str(added), "--text", "a"]) == 3
    assert "bert.extra" in capsys.readouterr().err


def test_tensors_that_nothing_uses_are_named(tmp_path: Path) -> None:
    """A foreign file may hold heads of other tasks: nothing vouches for them, which `verify` says."""
    family: Family = FAMILIES["BERT"]
    source = tmp_path / "source"
    family.write(source)
    assert "unused tensors" not in outcomes(verify(source))
    with_extra(source / "model.safetensors", source / "model.safetensors")
    for _ in range(2):
        result = verify(source)
        (check,) = [check for check in result.checks if check.name == "unused tensors"]
        assert check.holds is None
        assert "bert.extra" in check.detail
        assert result.holds
        hs.score(source, method="random")  # which writes a manifest beside it


@pytest.mark.parametrize("name", ["BERT", "DINOv2", "OpenCLIP"])
def test_other_families(name: str, tmp_path: Path) -> None:
    family: Family = FAMILIES[name]
    source = tmp_path / "source"
    family.write(source)
    paths = members_of(source, family, tmp_path)
    hydra = hs.fuse(paths, out=tmp_path / "hydra.safetensors").path
    assert all(outcomes(verify(hydra)).values())


@pytest.mark.parametrize(
    ("at", "change", "says"),
    [
        (
            1,
            {"inputs": ({"name": "m1", "sha256": "0" * 64},)},
            "step 2, score, read other weights than it left",
        ),
        (1, {"inputs": ()}, "step 2, score, read nothing"),
        (0, {"output": None}, None),  # as older versions wrote it
        (1, {"output": "0" * 64}, "step 2, score, read other weights than it left"),
    ],
)
def test_a_history_that_does_not_hang_together(
    members: list[Path], tmp_path: Path, at: int, change: dict[str, object], says: str | None
) -> None:
    scored = hs.score(members[0], method="random", out=tmp_path / "s").path
    history = [step.model_dump() for step in open_checkpoint(scored).manifest.history]
    assert [step["command"] for step in history] == ["prune", "score"]
    history[at] |= change
    forged = edited(scored, tmp_path / "f.safetensors", lambda _, tensor: tensor, history=history)
    (check,) = [check for check in verify(forged).checks if check.name == "history"]
    unknown = "step 1, prune, does not say what it wrote"
    assert (check.holds, check.detail) == ((None, unknown) if says is None else (False, says))


@pytest.mark.parametrize("field", ["trunk", "kept"])
def test_kept_heads_and_trunk_must_fit_the_tensors(hydra: Path, tmp_path: Path, field: str) -> None:
    with safe_open(hydra, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    manifest = json.loads(metadata["hydrasurgeon"])
    if field == "trunk":
        manifest["fusion"]["trunk"] = 3
    else:
        manifest["members"][0]["kept"]["vision"] = [[0], [0], [0]]
    save_file(tensors, hydra, metadata={**metadata, "hydrasurgeon": json.dumps(manifest)})
    (tmp_path / "hydra.heads.json").unlink()
    found = outcomes(verify(hydra))
    # The heads of one member may still fit the tensors of all: then its hash tells.
    assert found.get("manifest" if field == "trunk" else "member 0") is False
