"""Pruned = masked, fused = members, in float64; kept heads, masks and orders; slices of tensors, packed and not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edited import edited
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.criteria.selection import kept_from_file
from hydrasurgeon.errors import CheckFailed, CheckpointError, HydraError, SurgeryError, UsageError
from hydrasurgeon.files.manifest import Model, SingleManifest, Tower
from hydrasurgeon.heads import (
    Head,
    HeadAxis,
    all_heads,
    intersect_union,
    kept_from_mask,
    positions,
    removal_order,
    take_heads,
)

MAKE = Callable[..., Path]
INPUTS = torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def member(path: Path, kept: dict[str, list[list[int]]], out: Path) -> Path:
    mask = out.with_suffix(".json")
    mask.write_text(json.dumps(kept))
    hs.prune(path, mask=mask, out=out)
    return out


def logits(path: Path, dtype: str = "float64") -> torch.Tensor:
    model = hs.load(path, device="cpu", dtype=dtype)
    with torch.inference_mode():
        return model(INPUTS.to(next(model.parameters()).dtype))


def test_pruning_twice_is_pruning_once(tiny: MAKE, tmp_path: Path) -> None:
    whole = tiny()
    first = member(whole, {"vision": [[0, 2, 3], [1, 2], [0, 1, 2, 3]]}, tmp_path / "a.safetensors")
    second = member(first, {"vision": [[0, 3], [2], [1]]}, tmp_path / "b.safetensors")
    direct = member(whole, {"vision": [[0, 3], [2], [1]]}, tmp_path / "c.safetensors")
    assert torch.equal(logits(second), logits(direct))
    for name, tensor in load_file(direct).items():
        assert torch.equal(tensor, load_file(second)[name])
    with pytest.raises(SurgeryError, match="no head 1"):
        member(first, {"vision": [[1], [1], [1]]}, tmp_path / "d.safetensors")


KEPTS = (
    {"vision": [[0, 1, 2, 3], [0, 1], [1, 2, 3]]},
    {"vision": [[0, 1, 2, 3], [1, 3], [0]]},
    {"vision": [[0, 1, 2, 3], [], [0, 2]]},
)


@pytest.mark.parametrize("mode", ["stacked", "apart"])
@pytest.mark.parametrize("tuned", [False, True])
def test_every_way_to_run_a_hydra_gives_the_same(
    tiny: MAKE, tmp_path: Path, mode: str, tuned: bool
) -> None:
    """Also in inference mode and under autocast; the trunk and the union of heads are in play."""
    model, expected = fused_of(tiny(), tmp_path, mode, tuned)
    with torch.inference_mode():
        torch.testing.assert_close(model(INPUTS), expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(model(INPUTS), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(INPUTS).detach(), expected, rtol=0, atol=1e-12)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        single = model.float()
        found = single(INPUTS.float())
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.05)


def fused_of(whole: Path, tmp_path: Path, mode: str, tuned: bool) -> tuple[Any, torch.Tensor]:
    """A hydra in float64, and what its members answer."""
    members = [member(whole, kept, tmp_path / f"m{i}.safetensors") for i, kept in enumerate(KEPTS)]
    if tuned:
        members = [
            scrambled(
                m,
                tmp_path / f"t{i}.safetensors",
                lambda name: not name.startswith("blocks.0."),
                seed=i,
            )
            for i, m in enumerate(members)
        ]
    expected = torch.cat([logits(m) for m in members], dim=1)
    fused = hs.fuse(members, out=tmp_path / "hydra.safetensors", mlp="separate")
    model = hs.load(fused.path, device="cpu", dtype="float64")
    model.module.mode = mode
    return model, expected


def scrambled(path: Path, out: Path, change: Callable[[str], bool], seed: int) -> Path:
    """A member whose tensors of some names were 'tuned': random noise added, manifest made afresh."""
    from hydrasurgeon.checkpoints.checkpoint import rewritten
    from hydrasurgeon.checkpoints.writing import save
    from hydrasurgeon.files.tensors import Planned
    from hydrasurgeon.runtime.torch_tensors import to_raw

    generator = torch.Generator().manual_seed(seed)
    opened = open_checkpoint(path)
    planned = []
    for name, tensor in load_file(path).items():
        noisy = (
            tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
            if change(name)
            else tensor
        )
        raw, dtype = to_raw(noisy)
        planned.append(Planned(name, dtype, tuple(tensor.shape), lambda raw=raw: [raw]))
    save(out, planned, lambda sha256: rewritten(opened.manifest, weights_sha256=sha256))
    return out


@pytest.mark.parametrize("mlp", ["separate", "average"])
def test_tuned_members(tiny: MAKE, tmp_path: Path, mlp: str) -> None:
    """Everything differs: exact with separate MLPs; with averaged ones, equal to members given the mean MLP."""
    whole = tiny()
    members = []
    for i, kept in enumerate(KEPTS):
        pruned = member(whole, kept, tmp_path / f"m{i}.safetensors")
        members.append(scrambled(pruned, tmp_path / f"t{i}.safetensors", lambda name: True, seed=i))
    fused = hs.fuse(members, out=tmp_path / "hydra.safetensors", mlp=mlp)
    found = logits(fused.path)
    if mlp == "separate":
        expected = torch.cat([logits(m) for m in members], dim=1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        return
    models = [hs.load(m, device="cpu", dtype="float64") for m in members]
    with torch.no_grad():
        for layer in range(3):
            mlps = [dict(m.module.blocks[layer].mlp.named_parameters()) for m in models]
            for name in mlps[0]:
                # The file holds float32: average the float32 weights, as fuse does.
                mean = torch.stack([p[name] for p in mlps]).mean(dim=0).float().double()
                for p in mlps:
                    p[name].copy_(mean)
        expected = torch.cat([m(INPUTS) for m in models], dim=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def test_what_is_frozen_is_stored_once(tiny: MAKE, tmp_path: Path) -> None:
    whole = tiny()
    members = []
    for i, kept in enumerate(KEPTS):
        pruned = member(whole, kept, tmp_path / f"m{i}.safetensors")
        change = lambda name: name.startswith(("blocks.2.attn.qkv", "head."))  # noqa: E731
        members.append(scrambled(pruned, tmp_path / f"t{i}.safetensors", change, seed=i))
    fused = hs.fuse(members, out=tmp_path / "hydra.safetensors")
    names = set(load_file(fused.path))
    own = {name for name in names if name.startswith("members.")}
    assert own == {
        f"members.{i}.{name}"
        for i in range(3)
        for name in (
            "blocks.2.attn.qkv.weight",
            "blocks.2.attn.qkv.bias",
            "head.weight",
            "head.bias",
        )
    }
    expected = torch.cat([logits(m) for m in members], dim=1)
    torch.testing.assert_close(logits(fused.path), expected, rtol=0, atol=1e-12)


def test_gradients_flow_through_a_hydra(tiny: MAKE, tmp_path: Path) -> None:
    whole = tiny()
    members = [member(whole, kept, tmp_path / f"m{i}.safetensors") for i, kept in enumerate(KEPTS)]
    hydra = hs.load(
        hs.fuse(members, out=tmp_path / "h.safetensors").path, device="cpu", dtype="float64"
    )
    hydra.requires_grad_(True)
    hydra(INPUTS)[:, :, 0].sum().backward()
    total = hydra.module.members[0].patch_embed.proj.weight.grad.clone()
    separate = torch.zeros_like(total)
    for path in members:
        model = hs.load(path, device="cpu", dtype="float64").requires_grad_(True)
        model(INPUTS)[:, :, 0].sum().backward()
        separate += model.module.patch_embed.proj.weight.grad
    torch.testing.assert_close(total, separate, rtol=0, atol=1e-12)


def test_a_check_of_predictions_that_are_nan_fails(
    tiny: MAKE, images: Callable[..., str], tmp_path: Path
) -> None:
    """NaN is larger than nothing, so that "larger than the tolerance" would let it pass."""
    # Finite weights whose products overflow: infinity minus infinity.
    whole = edited(tiny(), tmp_path / "huge.safetensors", lambda _, tensor: tensor.sign() * 3e38)
    members = [member(whole, {"vision": [[i]] * 3}, tmp_path / f"m{i}.safetensors") for i in (0, 1)]
    with pytest.raises(CheckFailed, match=r"m0\.safetensors: its logits hold NaN"):
        hs.fuse(members, out=tmp_path / "h.safetensors", check=images())


@pytest.mark.parametrize(
    ("name", "dtype", "value"),
    [
        ("norm.bias", torch.float32, float("nan")),
        ("blocks.1.attn.qkv.weight", torch.float32, float("inf")),
        ("blocks.1.attn.proj.weight", torch.bfloat16, float("-inf")),
        ("blocks.0.mlp.fc1.weight", torch.float16, float("nan")),
        ("blocks.2.attn.qkv.bias", torch.float64, float("nan")),
    ],
)
def test_weights_that_are_no_numbers_are_neither_pruned_nor_fused(
    tiny: MAKE, tmp_path: Path, name: str, dtype: torch.dtype, value: float
) -> None:
    def spoil(each: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(dtype)
        if each == name:
            tensor.view(-1)[-1] = value
        return tensor

    sound = edited(tiny(), tmp_path / "sound.safetensors", lambda _, tensor: tensor.to(dtype))
    spoiled = edited(sound, tmp_path / "spoiled.safetensors", spoil)
    before = sorted(tmp_path.iterdir())
    said = rf"spoiled\.safetensors: tensor {re.escape(name)} holds NaN or infinity"
    mask = written(tmp_path / "mask.json", {"vision": [[3], [3], [3]]})  # the head that holds it
    with pytest.raises(CheckpointError, match=said):
        hs.prune(spoiled, mask=mask, out=tmp_path / "m")
    for mlp in ("average", "separate"):
        with pytest.raises(CheckpointError, match=said):
            hs.fuse([sound, spoiled], out=tmp_path / "h", mlp=mlp)
    mask.unlink()
    assert sorted(tmp_path.iterdir()) == before


def written(path: Path, mask: object) -> Path:
    path.write_text(json.dumps(mask))
    return path


masks = st.integers(1, 5).flatmap(
    lambda heads: st.lists(
        st.lists(st.booleans(), min_size=heads, max_size=heads), min_size=1, max_size=5
    )
)


@given(masks)
def test_mask_round_trip(rows: list[list[bool]]) -> None:
    kept = kept_from_mask(np.array(rows))
    assert [[h in row for h in range(len(rows[0]))] for row in kept] == rows


@given(st.sets(st.integers(0, 11)), st.data())
def test_positions_undo_the_slice(present: set[int], data: st.DataObject) -> None:
    row = sorted(present)
    wanted = data.draw(st.lists(st.sampled_from(row), unique=True)) if row else []
    assert [row[i] for i in positions(row, wanted)] == wanted


def test_intersection_and_union() -> None:
    members = [{"v": ((0, 1), (2,))}, {"v": ((1, 3), ())}]
    assert intersect_union(members) == ({"v": ((1,), ())}, {"v": ((0, 1, 3), (2,))})


def test_removal_order_breaks_ties_by_place() -> None:
    kept = {"v": ((0, 1), (0, 1))}
    scores = {"v": [[0.5, 0.1], [0.1, 0.0]]}
    assert removal_order(scores, all_heads(kept)) == [
        Head("v", 1, 1),
        Head("v", 0, 1),
        Head("v", 1, 0),
        Head("v", 0, 0),
    ]


HEAD_DIM = 2


def packed(heads: int, blocks: int = 3, embed: int = 5) -> np.ndarray:
    """Entry [row, column] says which block, head and channel it belongs to."""
    rows = [
        100 * b + 10 * h + d for b in range(blocks) for h in range(heads) for d in range(HEAD_DIM)
    ]
    return np.array(rows)[:, None] + np.zeros(embed, dtype=int)


def test_no_heads_leave_an_empty_tensor() -> None:
    assert take_heads(packed(3), [], spec=HeadAxis(0, 3), head_dim=HEAD_DIM).shape == (0, 5)
    assert take_heads(torch.zeros(7, 6), [], spec=HeadAxis(1), head_dim=HEAD_DIM).shape == (7, 0)


@given(st.lists(st.integers(0, 5), unique=True), st.data())
def test_composed_cuts_are_one_cut(first: list[int], data: st.DataObject) -> None:
    second = (
        data.draw(st.lists(st.integers(0, max(0, len(first) - 1)), unique=True)) if first else []
    )
    spec = HeadAxis(0, 3)
    twice = take_heads(
        take_heads(packed(6), first, spec=spec, head_dim=HEAD_DIM),
        second,
        spec=spec,
        head_dim=HEAD_DIM,
    )
    once = take_heads(packed(6), [first[i] for i in second], spec=spec, head_dim=HEAD_DIM)
    assert np.array_equal(twice, once)


@given(st.lists(st.integers(0, 3), unique=True))
def test_numpy_and_torch_agree(at: list[int]) -> None:
    spec = HeadAxis(0, 3)
    array = packed(4)
    from_torch = take_heads(torch.from_numpy(array), at, spec=spec, head_dim=HEAD_DIM)
    assert np.array_equal(from_torch.numpy(), take_heads(array, at, spec=spec, head_dim=HEAD_DIM))


MANIFEST = SingleManifest(
    kind="member",
    model=Model(family="timm", arch="vit_tiny_patch16_224", num_classes=2),
    towers={"vision": Tower(layers=2, heads=3, head_dim=4, dim=12)},
    kept={"vision": ((0, 1, 2), (0, 2))},
    weights_sha256="0" * 64,
)


def read(folder: Path, content: str) -> object:
    (folder / "m.json").write_text(content)
    return kept_from_file(folder / "m.json", MANIFEST)


@pytest.mark.parametrize(
    "content",
    [
        "[[0], [2]]",
        '{"vision": [[0], [2]]}',
        '{"kept": {"vision": [[0], [2]]}}',
        '{"mask": [[true, false, false], [false, false, true]]}',
    ],
)
def test_masks_that_are_read(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, content) == {"vision": ((0,), (2,))}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[[0], [true]]", UsageError),
        ("[[0], [2.0]]", UsageError),
        ('[[0], ["2"]]', UsageError),
        ("[[0], [[2]]]", UsageError),
        ("[[0], [null]]", UsageError),
        ("[[0], [1]]", SurgeryError),
        ("[[0], [-1]]", SurgeryError),
        ("[[], []]", SurgeryError),
        ("[[0], [1e400]]", UsageError),
        ("[[0], [" + "1" * 5000 + "]]", UsageError),
        ("[" * 100_000, UsageError),
        ('{"kept":' * 5000 + "1" + "}" * 5000, UsageError),
        ('{"vision": [[0], [2]], "vision": [[0], [0]]}', UsageError),
        ("", UsageError),
    ],
)
def test_masks_that_are_refused(tmp_path: Path, content: str, error: type[HydraError]) -> None:
    with pytest.raises(error, match=r"m\.json") as refused:
        read(tmp_path, content)
    assert len(refused.value.message) < 300 + len(str(tmp_path))


def test_a_mask_is_a_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", Path("/dev/zero")):
        with pytest.raises(UsageError):
            kept_from_file(path, MANIFEST)
