"""NaN and infinity, in weights or in what is computed with them, are named: no stage passes them on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from edited import edited
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckpointError, SurgeryError, UsageError
from hydrasurgeon.stages.export import export

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
QKV = "blocks.1.attn.qkv.weight"


def broken(path: Path, value: float = float("nan"), at: str = QKV) -> Path:
    """One number of head 2 in layer 1 replaced."""

    def change(name: str, tensor: Tensor) -> Tensor:
        if name == at:
            tensor.view(-1)[17 * tensor.shape[-1]] = value
        return tensor

    return edited(path, path.with_name("broken.safetensors"), change)


def overflowing(path: Path) -> Path:
    """Finite weights whose products are not."""
    return edited(path, path.with_name("huge.safetensors"), lambda _, t: t.sign() * 3e38)


DATA_METHODS = ("taylor", "cahp", "circuit")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", DATA_METHODS)
def test_score_names_the_tensor(tiny: MAKE, images: SPEC, method: str, value: float) -> None:
    path = broken(tiny(), value)
    before = path.read_bytes()
    options = {"objective": "acc"} if method == "circuit" else {}
    with pytest.raises(CheckpointError, match=rf"broken\.safetensors: tensor {QKV} holds NaN"):
        hs.score(path, method=method, data=images(), device="cpu", **options)
    assert path.read_bytes() == before


@pytest.mark.parametrize("method", DATA_METHODS)
def test_models_that_overflow_are_not_scored(tiny: MAKE, images: SPEC, method: str) -> None:
    path = overflowing(tiny())
    options = {"objective": "acc"} if method == "circuit" else {}
    with pytest.raises(SurgeryError, match=r"is (nan|inf)|hold NaN"):
        hs.score(path, method=method, data=images(), device="cpu", **options)


def test_heads_that_hold_nan_can_be_cut_away(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """A mask needs no scores: what is left is sound."""
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps({"vision": [[0, 1], [0, 1, 3], [2]]}))
    pruned = hs.prune(broken(tiny()), mask=mask, out=tmp_path / "m.safetensors").path
    assert hs.evaluate([pruned], data=images(), device="cpu").report.results[0].id.n == 40


def test_eval_and_load_name_the_tensor(tiny: MAKE, images: SPEC) -> None:
    path = broken(tiny())
    for use in (
        lambda: hs.load(path),
        lambda: hs.evaluate([path], data=images()),
        lambda: export(path),
    ):
        with pytest.raises(CheckpointError, match=f"tensor {QKV} holds NaN"):
            use()


def test_logits_that_are_not_finite_are_refused(
    tiny: MAKE, images: SPEC, capsys: pytest.CaptureFixture[str]
) -> None:
    path, spec = overflowing(tiny()), images()
    with pytest.raises(CheckpointError, match=r"huge.* hold NaN or infinity"):
        hs.evaluate([path], data=spec, device="cpu")
    assert run(["eval", str(path), "--data", spec, "--device", "cpu", "--json", "-"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hold NaN or infinity" in captured.err


def test_a_hydra_names_its_tensor(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    whole, members = tiny(), []
    for i in range(2):
        mask = tmp_path / f"{i}.json"
        mask.write_text(json.dumps({"vision": [[0, 1], [1, 2, 3], [i]]}))
        members.append(hs.prune(whole, mask=mask, out=tmp_path / f"m{i}.safetensors").path)
        with pytest.raises(CheckpointError, match=f"tensor {QKV} holds NaN"):
            hs.prune(broken(whole), mask=mask, out=tmp_path / "n.safetensors")
    hydra = broken(hs.fuse(members, out=tmp_path / "h.safetensors").path)
    with pytest.raises(CheckpointError, match=f"tensor {QKV} holds NaN"):
        hs.evaluate([hydra], data=images(), device="cpu")
    with pytest.raises(CheckpointError, match=f"tensor {QKV} holds NaN"):
        hs.fuse([members[0], broken(members[1])], out=tmp_path / "again.safetensors")


def test_finetune_names_the_tensor_not_the_learning_rate(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=f"tensor {QKV} holds NaN"):
        hs.finetune(broken(tiny()), data=images(), recipe="demo", out=tmp_path / "t.safetensors")
    with pytest.raises(UsageError, match="the loss is nan in step 1") as caught:
        hs.finetune(
            overflowing(tiny("v")), data=images(), recipe="demo", out=tmp_path / "t.safetensors"
        )
    assert "The model overflows" in str(caught.value.hint)


def test_repairs_that_are_not_finite_are_not_written(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps({"vision": [[0, 1]] * 3}))
    path = overflowing(tiny())
    with pytest.raises(SurgeryError, match="hold NaN or infinity"):
        hs.prune(path, mask=mask, compensate="lstsq", data=images(), out=tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()
