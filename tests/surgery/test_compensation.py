"""Training-free repair against least squares on collected activations, in float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from stacked_system import inputs_of, weighted_ridge
from torch import Tensor, nn

import hydrasurgeon as hs
from hydrasurgeon.anatomy.maps import real_tokens
from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block, Stack
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.timm_vit.family import TimmViT
from hydrasurgeon.surgery.refit import CalibrationInputs, refit

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
HEADS, HEAD_DIM = 4, 8


def double(path: Path) -> nn.Module:
    return hs.load(path, device="cpu", dtype="float64").module.requires_grad_(False)


def mask_file(path: Path, kept: object) -> Path:
    path.write_text(json.dumps(kept))
    return path


def heads_of(module: nn.Module, layer: int, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What flows into a block, its heads' outputs and its attention's output, by hooks on timm's own module."""
    found: dict[str, Tensor] = {}
    block = module.blocks[layer]
    hooks = [
        block.register_forward_pre_hook(lambda _, args: found.update(stream=args[0])),
        block.attn.proj.register_forward_hook(
            lambda _, args, out: found.update(heads=args[0], out=out)
        ),
    ]
    module(inputs)
    for hook in hooks:
        hook.remove()
    return found["stream"], found["heads"], found["out"]


VIT = {"vision": ((0, 1, 2, 3),) * 3}
TOY = {"text": ((0, 1, 2),) * 2}
"""All heads of the models here."""


def sensitivities(module: nn.Module, layer: int, inputs: Tensor) -> Tensor:
    """Slow version: the margin's gradient at a layer's attention output, one sample at a time."""
    rows = []
    for one in inputs.split(1):
        shift = torch.zeros(1, 17, 32, dtype=torch.float64, requires_grad=True)
        hook = module.blocks[layer].attn.proj.register_forward_hook(
            lambda _, args, out, shift=shift: out + shift
        )
        first, second = module(one)[0].topk(2).values
        (first - second).backward()
        hook.remove()
        rows.append(shift.grad.square().sum(dim=-1))
    return torch.cat(rows)


def test_lstsq_solves_the_stacked_system(tiny: MAKE, images: SPEC) -> None:
    """Layer after layer, the student rebuilt in timm's own module by writing the repaired weights into it."""
    path, spec = tiny(), images(rows=20)
    x = inputs_of(path, spec)
    teacher, student = double(path), double(path)
    kept = {"vision": ((1, 3), (0, 1, 2, 3), (2,))}
    anatomy = TimmViT().anatomy(double(path))
    repairs = refit(anatomy, VIT, kept, CalibrationInputs(lambda: x.split(7), 3))
    assert sorted(repairs) == [(0, False), (2, False)]
    for layer, row in ((0, [1, 3]), (2, [2])):
        columns = torch.zeros(HEADS, HEAD_DIM, dtype=torch.bool)
        columns[row] = True
        columns = columns.flatten()
        proj = student.blocks[layer].attn.proj
        stream, _, target = heads_of(teacher, layer, x)
        own, heads, _ = heads_of(student, layer, x)
        target = target + (stream - own)
        s = sensitivities(teacher, layer, x)
        weight, bias = weighted_ridge(
            heads[..., columns].flatten(0, 1).numpy(),
            target.flatten(0, 1).numpy(),
            s.flatten().numpy(),
            proj.weight[:, columns].numpy(),
        )
        np.testing.assert_allclose(
            repairs[layer, False].weight.numpy(), weight, rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(repairs[layer, False].bias.numpy(), bias, rtol=1e-4, atol=1e-6)
        proj.weight.zero_()
        proj.weight[:, columns] = repairs[layer, False].weight
        proj.bias.copy_(repairs[layer, False].bias)


def logits_error(path: Path, whole: Path, x: Tensor) -> float:
    return float((double(path)(x) - double(whole)(x)).square().mean())


def test_lstsq_brings_the_logits_back(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, spec = tiny(), images(rows=80)
    mask = mask_file(tmp_path / "m.json", {"vision": [[1, 3], [0, 1, 2, 3], []]})
    x = inputs_of(path, images("other.npz", seed=3))
    errors = {}
    for how in ("none", "lstsq"):
        out = tmp_path / f"{how}.safetensors"
        pruned = hs.prune(path, mask=mask, compensate=how, data=spec, out=out)
        errors[how] = logits_error(pruned.path, path, x)
        recorded = pruned.manifest.history[-1]
        assert recorded.args.get("compensate") == how
        assert [d.rows for d in recorded.data] == ([] if how == "none" else [80])
        if how == "lstsq":
            again = hs.prune(
                path, mask=mask, compensate=how, data=spec, out=tmp_path / "again.safetensors"
            )
            assert again.path.read_bytes() == pruned.path.read_bytes()
            assert load_file(pruned.path)["blocks.2.attn.proj.weight"].shape == (32, 0)
    assert errors["lstsq"] < 0.3 * errors["none"]


def test_lstsq_is_the_default_where_data_is_given(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """Of scores in the manifest alone nothing is refitted, which is said."""
    path, data = tiny(), images()
    hs.score(path, method="magnitude")
    options = {"method": "magnitude", "keep": 2, "data": data}
    made = {
        how: hs.prune(path, **options, compensate=how, out=tmp_path / f"{how}.safetensors")
        for how in (None, "lstsq", "none")
    }
    assert made[None].manifest.weights_sha256 == made["lstsq"].manifest.weights_sha256
    assert made[None].manifest.weights_sha256 != made["none"].manifest.weights_sha256
    hs.score(path, method="taylor", data=data)
    told = hs.prune(path, method="taylor", keep=2, out=tmp_path / "told.safetensors")
    assert any("were not refitted" in note for note in told.notes)
    with pytest.raises(UsageError, match="--compensate lstsq requires --data"):
        hs.prune(path, method="taylor", keep=2, compensate="lstsq", out=tmp_path / "x.safetensors")


def test_repaired_members_fuse(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, spec = tiny(), images()
    for seed in (1, 2):
        hs.prune(
            path,
            method="random",
            sample="4/8",
            seed=seed,
            compensate="lstsq",
            data=spec,
            out=tmp_path / f"{seed}.safetensors",
        )
    members = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    fused = hs.fuse(members, out=tmp_path / "h.safetensors")
    x = inputs_of(path, spec)
    expected = torch.stack([double(m)(x) for m in members], dim=1)
    torch.testing.assert_close(
        hs.load(fused.path, dtype="float64")(x), expected, rtol=0, atol=1e-12
    )


class Toy(nn.Module):
    """Post-norm layers over given token vectors, with padding, and no output bias where asked."""

    def __init__(self, *, bias: bool = True, prenorm: bool = False) -> None:
        super().__init__()
        self.prenorm = prenorm
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(6),
                    "norm2": nn.LayerNorm(6),
                    "q": nn.Linear(6, 6),
                    "k": nn.Linear(6, 6),
                    "v": nn.Linear(6, 6),
                    "out": nn.Linear(6, 6, bias=bias),
                    "mlp": nn.Linear(6, 6),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(6, 3)

    def anatomy(self) -> Anatomy:
        def embed(inputs: dict[str, Tensor]) -> Stack:
            padding = torch.where(inputs["mask"], 0.0, -torch.inf)[:, None, None]
            return Stack(inputs["tokens"], padding.to(inputs["tokens"]))

        blocks = tuple(
            Block(
                m["norm1"],
                Attention(
                    tower="text",
                    layer=i,
                    heads=(0, 1, 2),
                    head_dim=2,
                    project=(m["q"], m["k"], m["v"]),
                    out=m["out"],
                    scale=0.7,
                ),
                nn.Identity(),
                m["norm2"],
                m["mlp"],
                nn.Identity(),
                prenorm=self.prenorm,
            )
            for i, m in enumerate(self.layers)
        )
        return Anatomy(embed, (), blocks, lambda stack: self.head(stack.hidden[:, 0]), ())


def toy_batches(rows: int = 90, padding: float = 0.0) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(rows, 5, 6, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < 2 + torch.arange(rows)[:, None] % 4
    tokens = torch.where(mask[..., None], tokens, padding)
    return [{"tokens": t, "mask": m} for t, m in zip(tokens.split(30), mask.split(30), strict=True)]


@pytest.mark.parametrize("prenorm", [False, True])
def test_padding_has_no_say(prenorm: bool) -> None:
    torch.manual_seed(0)
    anatomy = Toy(prenorm=prenorm).double().requires_grad_(False).anatomy()
    kept = {"text": ((0, 2), (1,))}
    found = [
        refit(
            anatomy,
            TOY,
            kept,
            CalibrationInputs(lambda filler=filler: toy_batches(padding=filler), 3),
        )
        for filler in (0.0, 50.0)
    ]
    for layer in (0, 1):
        assert torch.allclose(
            found[0][layer, False].weight, found[1][layer, False].weight, atol=1e-10
        )
        assert torch.allclose(found[0][layer, False].bias, found[1][layer, False].bias, atol=1e-10)


def test_a_head_that_repeats_others_is_replaced_exactly() -> None:
    """Head 2's values are a linear map of head 0's, so the refit W_O can say all that it said."""
    torch.manual_seed(0)
    toy = Toy().double().requires_grad_(False)
    for m in toy.layers:
        for part in ("q", "k"):
            m[part].weight[4:], m[part].bias[4:] = m[part].weight[:2], m[part].bias[:2]
        turn = torch.tensor([[0.5, -1.0], [2.0, 0.3]]).double()
        m["v"].weight[4:], m["v"].bias[4:] = turn @ m["v"].weight[:2], turn @ m["v"].bias[:2] + 1
    kept = {"text": ((0, 1), (0, 1))}
    repairs = refit(toy.anatomy(), TOY, kept, CalibrationInputs(toy_batches, 3))
    for layer, m in enumerate(toy.layers):
        weight = m["out"].weight[:, :4].clone()
        weight[:, :2] += m["out"].weight[:, 4:] @ turn
        # The ridge of a thousandth keeps it from being exact.
        assert torch.allclose(repairs[layer, False].weight, weight, atol=0.02)
        assert not torch.allclose(repairs[layer, False].weight, m["out"].weight[:, :4], atol=0.2)
        bias = m["out"].bias + m["out"].weight[:, 4:].sum(dim=1)
        assert torch.allclose(repairs[layer, False].bias, bias, atol=0.02)


def test_real_tokens_under_padding_and_causal_masks() -> None:
    hidden = torch.zeros(2, 3, 4)
    padding = torch.zeros(2, 1, 1, 3)
    padding[1, ..., 2] = torch.finfo(torch.float32).min
    causal = torch.full((3, 3), -torch.inf).triu(1)
    expected = torch.tensor([[True, True, True], [True, True, False]])
    assert torch.equal(real_tokens(Stack(hidden, padding)), expected)
    assert torch.equal(real_tokens(Stack(hidden, padding + causal)), expected)
    assert real_tokens(Stack(hidden)).all()
    assert real_tokens(Stack(hidden, causal[None, None])).all()
