"""`export --format padded`: the library that a model came from runs it without our code, and answers as the pruned
model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edited import edited
from tiny_families import FAMILIES, LAYERS, Family, thoroughly
from tiny_members import KEPTS, RAGGED, member

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import CheckFailed, UsageError
from hydrasurgeon.heads import HeadAxis, put_heads, take_heads
from hydrasurgeon.stages.export import export


@pytest.mark.parametrize("spec", [HeadAxis(0), HeadAxis(0, 3), HeadAxis(1)])
@pytest.mark.parametrize("at", [[0, 2], [], [3], [0, 1, 2, 3]])
def test_heads_go_back_to_where_they_were(spec: HeadAxis, at: list[int]) -> None:
    whole = np.random.default_rng(0).random((24, 24))
    cut = take_heads(whole, at, spec=spec, head_dim=24 // (4 * spec.blocks))
    back = put_heads(cut, at, 4, spec=spec, head_dim=24 // (4 * spec.blocks))
    rest = [head for head in range(4) if head not in at]
    assert np.array_equal(take_heads(back, at, spec=spec, head_dim=24 // (4 * spec.blocks)), cut)
    assert not take_heads(back, rest, spec=spec, head_dim=24 // (4 * spec.blocks)).any()


@pytest.mark.parametrize("family", thoroughly())
def test_its_own_library_answers_alike(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    pruned = member(tmp_path / "source", family, RAGGED, tmp_path / "m.safetensors")
    made = export(pruned, format="padded", out=f"{tmp_path}/whole/")
    assert made.max_difference < 1e-12
    inputs = family.inputs(rows=5)
    found = family.stock(made.path)(inputs)
    with torch.inference_mode():
        expected = hs.load(pruned, device="cpu")(inputs)[:, 0]
        again = hs.load(made.path, device="cpu", dtype="float64")(in_float64(inputs))[:, 0]
        right = hs.load(pruned, device="cpu", dtype="float64")(in_float64(inputs))[:, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(again, right, rtol=0, atol=1e-12)
    whole = hs.load(tmp_path / "source", device="cpu")
    with torch.inference_mode():
        assert (whole(inputs)[:, 0] - expected).abs().max() > 1e-2  # the heads that went matter


def in_float64(inputs: Any) -> Any:
    return inputs.double() if isinstance(inputs, torch.Tensor) else inputs


def test_one_member_of_a_hydra(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    parts = [
        member(tmp_path / "source", family, rows, tmp_path / f"m{i}.safetensors")
        for i, rows in enumerate(KEPTS)
    ]
    hydra = hs.fuse(parts, out=tmp_path / "h.safetensors", mlp="separate").path
    inputs = family.inputs(rows=5)
    with torch.inference_mode():
        expected = hs.load(hydra, device="cpu")(inputs)
    for number in range(3):
        made = export(hydra, format="padded", member=number, out=f"{tmp_path}/w{number}/")
        torch.testing.assert_close(
            family.stock(made.path)(inputs), expected[:, number], rtol=0, atol=1e-5
        )
    for number in (None, 3, -1):
        with pytest.raises(UsageError, match="is a hydra of 3 members"):
            export(hydra, format="padded", member=number, out=f"{tmp_path}/x/")
    with pytest.raises(UsageError, match="is a member, not a hydra"):
        export(parts[0], format="padded", member=0, out=f"{tmp_path}/x/")
    assert not (tmp_path / "x").exists()


def test_what_is_written_can_be_pruned_again(tmp_path: Path) -> None:
    """A whole model with a manifest of its own: what is zero is a head like the others."""
    family = FAMILIES["BERT"]
    family.write(tmp_path / "source")
    pruned = member(tmp_path / "source", family, RAGGED, tmp_path / "m.safetensors")
    made = export(pruned, format="padded")
    assert made.path == tmp_path / "m-padded"
    opened = open_checkpoint(made.path)
    assert opened.manifest.kind == "backbone"
    assert opened.manifest.kept == {"text": ((0, 1, 2, 3),) * LAYERS}
    assert opened.manifest.decision is None
    parent, step = open_checkpoint(pruned), opened.manifest.history[-1]
    assert opened.manifest.history[:-1] == parent.manifest.history
    assert (step.command, dict(step.args), step.inputs) == (
        "export",
        {"format": "padded"},
        (parent.record(parent.digests()),),
    )
    assert (
        "hydrasurgeon export m.safetensors --format padded" in (made.path / "README.md").read_text()
    )
    again = member(made.path, family, RAGGED, tmp_path / "again.safetensors")
    assert open_checkpoint(again).digests() == open_checkpoint(pruned).digests()


@pytest.mark.slow
def test_it_says_what_it_came_from_and_that_can_be_proven(tmp_path: Path) -> None:
    """A calibrated hydra's member, whose history is no chain, and what is made of it."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    parts = [
        member(tmp_path / "source", family, rows, tmp_path / f"m{i}.safetensors")
        for i, rows in enumerate(KEPTS)
    ]
    hydra = hs.fuse(parts, out=tmp_path / "h.safetensors").path
    data = family.data(tmp_path, rows=160)
    ready = hs.calibrate(hydra, data=data, ood_score="msp", out=tmp_path / "c.safetensors").path
    made = export(ready, format="padded", member=0, out=f"{tmp_path}/w/")
    history = open_checkpoint(made.path).manifest.history
    assert [each.command for each in history] == ["prune"] * 3 + ["fuse", "export"]
    assert dict(history[-1].args) == {"format": "padded", "member": 0}
    assert history[-1].inputs[0].sha256 == open_checkpoint(hydra).manifest.weights_sha256
    again = member(made.path, family, RAGGED, tmp_path / "again.safetensors")
    for path in (made.path, again):
        checks = hs.verify(path, parents=tmp_path).checks
        assert all(check.holds is not False for check in checks), checks
        assert any(
            check.name == "w = export c.safetensors" and "bit for bit" in check.detail
            for check in checks
        )
        replayed = hs.replay(path, folder=tmp_path)
        assert replayed.holds, replayed.checks
    # The script that replay prints, too.
    assert "hydrasurgeon export " in hs.replay(made.path, folder=tmp_path, dry_run=True).script
    # Another number is not what the export made.
    forged = edited(
        made.path, tmp_path / "f.safetensors", lambda name, tensor: tensor + ("norm" in name)
    )
    (check,) = [c for c in hs.verify(forged, parents=tmp_path).checks if "export" in c.name]
    assert check.holds is False
    assert "is another" in check.detail


def test_a_model_that_would_answer_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    pruned = member(tmp_path / "source", family, RAGGED, tmp_path / "m.safetensors")

    def misplaced(array: Any, at: Any, heads: int, **spec: Any) -> Any:
        return (
            put_heads(array, [(head + 1) % heads for head in at], heads, **spec).astype(array.dtype)
            + 1
        )

    monkeypatch.setattr("hydrasurgeon.sharing.padded.put_heads", misplaced)
    with pytest.raises(CheckFailed, match="with zeros for its heads the model"):
        export(pruned, format="padded", out=f"{tmp_path}/x/")
    assert not (tmp_path / "x").exists()
