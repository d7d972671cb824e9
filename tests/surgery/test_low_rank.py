"""Low-rank pairs in files: a matrix runs as W + B A, a hydra stores W once, and whatever is cut or written keeps
that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edited import edited
from low_rank import changed_tensors, sums, with_changes
from safetensors.torch import load_file
from tiny_families import FAMILIES, Family, thoroughly
from tiny_members import KEPTS, RAGGED, logits, member
from torch import Tensor, nn

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.lowrank import in_effect
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import CheckpointError, HydraError, ManifestError, UsageError
from hydrasurgeon.families.hf_encoder import modeling_hydrasurgeon as modelling
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.tensors import TensorFile
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.tensors import to_tensor
from hydrasurgeon.sharing.output import Target
from hydrasurgeon.sharing.upload import Repository
from hydrasurgeon.stages.evaluate import evaluate
from hydrasurgeon.stages.export import export
from hydrasurgeon.stages.inspect import inspect
from hydrasurgeon.stages.verify import verify

VIT = FAMILIES["timm ViT"]
QKV = "blocks.1.attn.qkv.weight"
OUT = "blocks.1.attn.proj.weight"


def effective(path: Path) -> dict[str, Tensor]:
    """What a single model's file reads as."""
    tensors = in_effect(open_checkpoint(path)).tensors
    return {name: to_tensor(tensors.read(name), info.dtype) for name, info in tensors.items()}


def as_whole(path: Path, out: Path) -> Path:
    """The same model with plain weights."""
    kept = open_checkpoint(path).manifest.kept
    mask = out.with_suffix(".mask.json")
    mask.write_text(json.dumps(kept))
    return hs.prune(path, mask=mask, out=f"{out}/").path


def module_of(path: Path) -> nn.Module:
    return hs.load(path, device="cpu").module


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def failing(path: Path, **options: Any) -> list[str]:
    return [f"{c.name}: {c.detail}" for c in verify(path, **options).checks if c.holds is False]


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    VIT.write(tmp_path / "source")
    return member(tmp_path / "source", VIT, [[0, 1, 2, 3]] * 3, tmp_path / "vit.safetensors")


@pytest.mark.parametrize("family", thoroughly())
def test_a_hydra_of_changes_answers_as_its_members(family: Family, tmp_path: Path) -> None:
    """Members that keep other heads and have other changes: W is stored once, and each runs the very weights it ran
    alone."""
    family.write(tmp_path / "source")
    plain = [member(tmp_path / "source", family, rows, tmp_path / f"p{i}.safetensors") for i, rows in enumerate(KEPTS)]
    members = [with_changes(path, tmp_path / f"m{i}.safetensors", seed=i) for i, path in enumerate(plain)]
    for path in members:
        torch.testing.assert_close(effective(path), sums(path), rtol=2e-7, atol=1e-8)
    fused = hs.fuse(members, out=tmp_path / "hydra.safetensors")
    inputs = family.inputs(dtype=torch.float64)
    expected = torch.cat([logits(path, inputs, "float64") for path in members], dim=1)
    assert (expected[:, 0] - expected[:, 1]).abs().max() > 1e-3
    torch.testing.assert_close(logits(fused.path, inputs, "float64"), expected, rtol=0, atol=1e-10)
    for inside, path in zip(module_of(fused.path).members, members, strict=True):
        assert same(inside.state_dict(), module_of(path).state_dict())
    stored = load_file(fused.path)
    once = hs.fuse(plain, out=tmp_path / "plain.safetensors").bytes_stored
    pairs = sum(t.nbytes for path in members for n, t in load_file(path).items() if ".lora_" in n)
    assert fused.bytes_stored == sum(t.nbytes for t in stored.values()) == once + pairs
    assert {n.split(".lora_")[0] != n for n in stored if n.startswith("members.")} == {True}
    assert failing(fused.path, parents=tmp_path) == []


@pytest.mark.parametrize("family", thoroughly())
def test_cutting_and_adding_change_places(family: Family, tmp_path: Path) -> None:
    """Heads are cut out of pairs as out of their matrices; what runs is the cut sum, bit for bit."""
    family.write(tmp_path / "source")
    whole = member(tmp_path / "source", family, [[0, 1, 2, 3]] * 3, tmp_path / "whole.safetensors")
    changed = with_changes(whole, tmp_path / "changed.safetensors", seed=1)
    cut = member(changed, family, RAGGED, tmp_path / "cut.safetensors")
    merged = member(changed, family, [[0, 1, 2, 3]] * 3, f"{tmp_path}/merged/")
    cut_later = member(merged, family, RAGGED, tmp_path / "later.safetensors")
    assert any(".lora_" in name for name in load_file(cut))
    assert same(effective(cut), effective(cut_later))
    at_once = member(changed, family, RAGGED, f"{tmp_path}/at_once/")
    assert same(effective(at_once), effective(cut_later))
    for path in (cut, merged, at_once, cut_later):
        assert failing(path, parents=tmp_path) == []


@pytest.mark.parametrize("family", thoroughly("timm ViT", "BERT", "OpenCLIP", "ModernBERT", "ViT"))
def test_their_own_library_loads_a_directory(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    whole = member(tmp_path / "source", family, [[0, 1, 2, 3]] * 3, tmp_path / "whole.safetensors")
    changed = with_changes(whole, tmp_path / "changed.safetensors", seed=1)
    made = hs.prune(changed, mask=sidecar(changed), out=f"{tmp_path}/dir/")
    assert "merged" in made.notes[-1]
    inputs = family.inputs()
    found = family.stock(made.path)(inputs)
    torch.testing.assert_close(found, logits(changed, inputs)[:, 0], rtol=0, atol=1e-4)
    assert (logits(whole, inputs)[:, 0] - found).abs().max() > 1e-2
    padded = export(
        member(changed, family, RAGGED, tmp_path / "cut.safetensors"), format="padded", out=f"{tmp_path}/padded/"
    )
    assert padded.max_difference < 1e-12


@pytest.mark.parametrize("rows", [KEPTS, (RAGGED, RAGGED)], ids=["unequal", "equal"])
def test_transformers_alone_loads_a_hydra_of_changes(rows: Any, tmp_path: Path) -> None:
    """By the code that lies in the directory; one of the members has no pairs, of another layers lack them."""
    family = FAMILIES["BERT"]
    family.write(tmp_path / "source")
    parts = [member(tmp_path / "source", family, each, tmp_path / f"p{i}.safetensors") for i, each in enumerate(rows)]
    parts[0] = with_changes(parts[0], tmp_path / "m0.safetensors", seed=0)
    parts[1] = with_changes(parts[1], tmp_path / "m1.safetensors", seed=1, only=lambda n: "layer.1." in n)
    folder = hs.fuse(parts, out=f"{tmp_path}/hydra/").path
    config = modelling.Config.from_pretrained(folder)
    there = modelling.HydraModel.from_pretrained(folder, config=config)
    for inside, path in zip(there.members, parts, strict=True):
        assert same(inside.state_dict(), effective(path))
    inputs = family.inputs()
    with torch.inference_mode():
        found = there(**inputs).logits.softmax(-1)
    torch.testing.assert_close(found, hs.load(folder, device="cpu").predict(inputs), rtol=0, atol=1e-5)


def test_what_pruning_alone_made_different_shares_pairs_and_trunk(vit: Path, tmp_path: Path) -> None:
    changed = with_changes(vit, tmp_path / "changed.safetensors", seed=1)
    parts = [member(changed, VIT, rows, tmp_path / f"m{i}.safetensors") for i, rows in enumerate(KEPTS)]
    fused = hs.fuse(parts, out=tmp_path / "hydra.safetensors")
    assert fused.manifest.fusion.trunk == 1
    assert not [name for name in load_file(fused.path) if name.startswith("members.")]
    assert fused.bytes_stored <= open_checkpoint(changed).tensors.nbytes
    for inside, path in zip(module_of(fused.path).members, parts, strict=True):
        assert same(inside.state_dict(), module_of(path).state_dict())
    assert failing(fused.path, parents=tmp_path) == []


def test_members_that_were_changed_otherwise(vit: Path, tmp_path: Path) -> None:
    """No pairs, pairs of another rank, pairs of some layers, a W of its own: everything else is shared all the same."""
    parts = [
        vit,
        with_changes(vit, tmp_path / "wide.safetensors", seed=1, rank=3),
        with_changes(vit, tmp_path / "some.safetensors", seed=2, only=lambda n: n == QKV),
        with_changes(
            edited(vit, tmp_path / "moved.safetensors", lambda n, t: t + (n == OUT)),
            tmp_path / "other.safetensors",
            seed=3,
        ),
    ]
    fused = hs.fuse(parts, out=tmp_path / "hydra.safetensors")
    for inside, path in zip(module_of(fused.path).members, parts, strict=True):
        assert same(inside.state_dict(), module_of(path).state_dict())
    stored = load_file(fused.path).keys()
    assert QKV in stored
    assert OUT not in stored
    assert f"members.2.{QKV}.lora_a" in stored
    assert f"members.2.{OUT}.lora_a" not in stored
    assert fused.manifest.fusion.trunk == 0
    assert failing(fused.path, parents=tmp_path) == []
    late = with_changes(vit, tmp_path / "late.safetensors", seed=4, only=lambda n: ".2." in n)
    assert hs.fuse([vit, late], out=tmp_path / "late-hydra").manifest.fusion.trunk == 2


def test_how_large_it_is_said_to_be(vit: Path, tmp_path: Path) -> None:
    """Three members: the model once, and 2 layers' worth of numbers · rank for each; at work each has attention of its
    own."""
    members = [with_changes(vit, tmp_path / f"m{i}.safetensors", seed=i, rank=2) for i in range(3)]
    hydra = hs.fuse(members, out=tmp_path / "hydra").path
    model = sum(t.numel() for t in load_file(vit).values())
    of_pairs = 3 * 2 * ((32 + 96) + (32 + 32))  # layers · rank · (in + out) of q, k, v and of W_O
    attention = 3 * (96 * 32 + 32 * 32)
    one, all_of_them = inspect(members[0]), inspect(hydra)
    assert (one.parameters, one.low_rank, one.in_memory) == (model + of_pairs, of_pairs, model)
    assert all_of_them.parameters == model + 3 * of_pairs
    assert all_of_them.low_rank == 3 * of_pairs
    assert all_of_them.in_memory == model + 2 * attention
    report = evaluate([members[0], hydra], data=VIT.data(tmp_path), device="cpu")
    assert [row.cost.params for row in report.report.results] == [model, model + 2 * attention]


def test_in_half_precision_it_is_rounded_once(vit: Path, tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        half = edited(vit, tmp_path / f"half-{dtype}.safetensors", lambda n, t, d=dtype: t.to(d))
        path = with_changes(half, tmp_path / f"changed-{dtype}.safetensors", seed=1)
        found, stored = effective(path), load_file(path)
        exact = stored[QKV].double() + stored[f"{QKV}.lora_b"].double() @ stored[f"{QKV}.lora_a"].double()
        assert found[QKV].dtype == dtype
        assert torch.equal(found[QKV], exact.to(dtype))


def test_scores_are_those_of_the_sum(vit: Path, tmp_path: Path) -> None:
    changed = with_changes(vit, tmp_path / "changed.safetensors", seed=1)
    merged = as_whole(changed, tmp_path / "merged")
    before = load_file(changed)
    data = VIT.data(tmp_path)
    for method in ("magnitude", "taylor"):
        scores = []
        for path in (changed, merged, vit):
            hs.score(path, method=method, data=data, device="cpu")
            scores.append(np.array(open_checkpoint(path).manifest.scores[method].values["vision"]))
        assert np.array_equal(scores[0], scores[1])
        assert not np.allclose(scores[0], scores[2], rtol=1e-3)
    assert same(load_file(changed), before)
    assert failing(changed) == []


def test_a_repair_replaces_the_pair_of_w_o(vit: Path, tmp_path: Path) -> None:
    changed, data = with_changes(vit, tmp_path / "changed.safetensors", seed=1), VIT.data(tmp_path)
    (tmp_path / "mask.json").write_text(json.dumps({"vision": [[0, 1, 2, 3], [1, 3], [0, 1, 2]]}))
    for how in ("mean", "lstsq"):
        made = hs.prune(
            changed, mask=tmp_path / "mask.json", compensate=how, data=data, out=tmp_path / how, device="cpu"
        ).path
        stored = load_file(made).keys()
        assert f"{OUT}.lora_a" not in stored
        assert f"{QKV}.lora_a" in stored
        assert f"{OUT.replace('.1.', '.0.')}.lora_b" in stored
        assert failing(made, parents=tmp_path, data=data) == []


def test_calibrated_and_cut_again(vit: Path, tmp_path: Path) -> None:
    changed = with_changes(vit, tmp_path / "changed.safetensors", seed=1)
    data = VIT.data(tmp_path, rows=240)
    ready = hs.calibrate(changed, data=data, ood_score="msp", out=tmp_path / "ready", device="cpu").path
    assert f"{QKV}.lora_b" in load_file(ready)
    again = member(ready, VIT, RAGGED, tmp_path / "again.safetensors")
    assert same(effective(again), effective(member(changed, VIT, RAGGED, tmp_path / "cut.safetensors")))
    with pytest.raises(UsageError, match="low-rank pairs, which libraries that load a directory"):
        hs.calibrate(changed, data=data, ood_score="msp", out=f"{tmp_path}/dir/", device="cpu")
    with pytest.raises(UsageError, match="low-rank pairs, which libraries that load a directory"):
        hs.score(changed, method="magnitude", out=f"{tmp_path}/scored/")
    assert not (tmp_path / "dir").exists()
    assert not (tmp_path / "scored").exists()


def test_a_file_with_pairs_is_no_repository(tmp_path: Path) -> None:
    """What is written depends on the path alone: `replay` does not upload again."""
    repository = Repository("someone/model", private=False)
    for path, uploads, merges in (("m.safetensors", None, False), ("d", None, True), ("d", repository, True)):
        assert Target(tmp_path / path, None, uploads).merges(pairs=True) == merges
    file = Target(tmp_path / "m.safetensors", None, repository)
    assert not file.merges(pairs=False)
    with pytest.raises(UsageError, match="keeps low-rank pairs"):
        file.merges(pairs=True)


HOSTILE: list[tuple[str, str, Callable[[dict[str, Tensor], str], Any]]] = [
    ("A is missing", "lora_a is missing", lambda t, at: t.pop(f"{at}{QKV}.lora_a")),
    ("B is missing", "lora_b is missing", lambda t, at: t.pop(f"{at}{QKV}.lora_b")),
    ("other ranks", "are no pair", lambda t, at: t.update({f"{at}{QKV}.lora_a": torch.ones(3, 32)})),
    (
        "rank zero",
        "are no pair",
        lambda t, at: t.update({f"{at}{QKV}.lora_a": torch.ones(0, 32), f"{at}{QKV}.lora_b": torch.ones(96, 0)}),
    ),
    ("a vector", "are no pair", lambda t, at: t.update({f"{at}{QKV}.lora_a": torch.ones(2)})),
    ("another width", "has shape", lambda t, at: t.update({f"{at}{QKV}.lora_a": torch.ones(2, 31)})),
    ("another height", "has shape", lambda t, at: t.update({f"{at}{QKV}.lora_b": torch.ones(95, 2)})),
    ("integers", "has dtype I32", lambda t, at: t.update({f"{at}{QKV}.lora_b": torch.ones(96, 2, dtype=torch.int32)})),
    (
        "beside an MLP",
        "only attention's matrices",
        lambda t, at: t.update(
            {
                f"{at}blocks.0.mlp.fc1.weight.lora_a": torch.ones(2, 32),
                f"{at}blocks.0.mlp.fc1.weight.lora_b": torch.ones(128, 2),
            }
        ),
    ),
    (
        "beside a bias",
        "only attention's matrices",
        lambda t, at: t.update(
            {
                f"{at}blocks.0.attn.qkv.bias.lora_a": torch.ones(2, 1),
                f"{at}blocks.0.attn.qkv.bias.lora_b": torch.ones(96, 2),
            }
        ),
    ),
    ("of nothing", "tensor", lambda t, at: t.update({f"{at}blocks.9.attn.qkv.weight.lora_a": torch.ones(2, 32)})),
]


@pytest.mark.parametrize(("sentence", "change"), [each[1:] for each in HOSTILE], ids=[each[0] for each in HOSTILE])
@pytest.mark.parametrize("kind", ["single", "hydra"])
def test_halves_that_make_no_pair(
    vit: Path, tmp_path: Path, kind: str, sentence: str, change: Callable[[dict[str, Tensor], str], Any]
) -> None:
    path, at = with_changes(vit, tmp_path / "m0.safetensors", seed=0), ""
    if kind == "hydra":
        other = with_changes(vit, tmp_path / "m1.safetensors", seed=1)
        path, at = hs.fuse([path, other], out=tmp_path / "h.safetensors").path, "members.1."
    with pytest.raises(HydraError, match=sentence) as refused:
        open_checkpoint(changed_tensors(path, lambda tensors: change(tensors, at)))
    assert refused.value.exit_code == 3


def test_a_stray_half_where_names_are_picked_out(tmp_path: Path) -> None:
    family = FAMILIES["BERT"]
    family.write(tmp_path / "source")
    path = member(tmp_path / "source", family, [[0, 1, 2, 3]] * 3, tmp_path / "m.safetensors")
    with pytest.raises(ManifestError, match=r"nothing\.lora_a is not part of"):
        open_checkpoint(changed_tensors(path, lambda t: t.update({"nothing.lora_a": torch.ones(1, 2)})))


def test_halves_that_are_no_numbers(vit: Path, tmp_path: Path) -> None:
    first = with_changes(vit, tmp_path / "m0.safetensors", seed=0)
    bad = with_changes(vit, tmp_path / "m1.safetensors", seed=1)
    hydra = hs.fuse([first, bad], out=tmp_path / "h.safetensors").path

    def spoil(tensors: dict[str, Tensor]) -> None:
        name = next(n for n in tensors if n.endswith(f"{QKV}.lora_b"))
        tensors[name][0, 0] = float("nan")

    for path in (bad, hydra):
        changed_tensors(path, spoil)
        with pytest.raises(CheckpointError, match=rf"{QKV}\.lora_b holds NaN"):
            as_classifier(open_checkpoint(path), device="cpu")
        assert any(check.startswith("finite weights") for check in failing(path))
    with pytest.raises(CheckpointError, match=rf"{QKV}\.lora_b holds NaN"):
        hs.fuse([bad, first], out=tmp_path / "again")


def test_one_bit_of_a_pair_is_enough(vit: Path, tmp_path: Path) -> None:
    """The hash is of what lies in the file: the halves too."""
    members = [with_changes(vit, tmp_path / f"m{i}.safetensors", seed=i) for i in range(2)]
    hydra = hs.fuse(members, out=tmp_path / "hydra.safetensors").path
    for path in (members[0], hydra):
        name = next(n for n in load_file(path) if n.endswith(".lora_a"))
        at = TensorFile(path).infos[name].start
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)
        with pytest.raises(ManifestError, match="belongs to other weights"):
            hs.load(path, device="cpu")
        assert failing(path)
