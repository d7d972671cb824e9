"""Multiply-adds by hand: the same figure whatever attention runs as, on any torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from tiny_families import FAMILIES
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import conv2d, linear, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

import hydrasurgeon as hs
from hydrasurgeon.measuring.cost import MultiplyAdds

# Batch, heads, queries, keys, numbers in a query and in a value: all different.
B, H, Q, K, E, V = 2, 3, 5, 7, 8, 6
ATTENTION = B * H * Q * K * (E + V)


def counted(run: Callable[[], object], mode: Callable[[], AbstractContextManager[object]]) -> int:
    with mode(), MultiplyAdds() as counter:
        run()
    return counter.count


MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("bias", [None, torch.zeros(B, 1, Q, K)], ids=["plain", "masked"])
def test_attention_whatever_it_runs_as(mode: type, bias: torch.Tensor | None) -> None:
    q, k = torch.randn(B, H, Q, E, requires_grad=True), torch.randn(B, H, K, E)
    v = torch.randn(B, H, K, V)
    for kernels in (
        nullcontext(),
        sdpa_kernel(SDPBackend.MATH),
        sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
    ):
        with kernels:
            found = counted(lambda: scaled_dot_product_attention(q, k, v, attn_mask=bias), mode)
            assert found == ATTENTION


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
def test_products_and_convolutions(mode: type) -> None:
    a, b = torch.randn(4, 3, 5), torch.randn(4, 5, 6)
    images, kernels = torch.randn(2, 4, 9, 9), torch.randn(6, 2, 3, 3)
    for run, expected in (
        (lambda: linear(a, b[0].mT, b[0, 0]), 4 * 3 * 5 * 6),
        (lambda: linear(a, b[0].mT), 4 * 3 * 5 * 6),
        (lambda: a @ b, 4 * 3 * 5 * 6),
        (lambda: a[0] @ b[0], 3 * 5 * 6),
        (lambda: a[0] @ b[0, :, 0], 3 * 5),
        (lambda: torch.baddbmm(torch.zeros(4, 3, 6), a, b), 4 * 3 * 5 * 6),
        (lambda: torch.einsum("nij,njk->nik", a, b), 4 * 3 * 5 * 6),
        # 7 x 7 places, 6 filters of 2 x 3 x 3 numbers: each sees half of the channels.
        (lambda: conv2d(images, kernels, groups=2), 2 * 7 * 7 * 6 * 2 * 9),
        (lambda: a.softmax(-1) + a, 0),
    ):
        assert counted(run, mode) == expected


WIDTH, DEPTH, NEURONS, CLASSES = 32, 3, {"timm ViT": 128, "BERT": 48}, 3
"""Sizes of the tiny families."""


def by_hand(name: str, tokens: int) -> tuple[int, int]:
    """Multiply-adds as the model runs, and if every layer computed all tokens."""
    square, mlp = WIDTH**2, 2 * WIDTH * NEURONS[name]
    layer = tokens * (4 * square + mlp) + 2 * tokens**2 * WIDTH
    # Keys and values of all tokens; query, attention, output and MLP of the first alone.
    last = tokens * 2 * square + 2 * square + mlp + 2 * tokens * WIDTH
    patches = 16 * (3 * 7 * 7) * WIDTH if name == "timm ViT" else 0
    pooler = square if name == "BERT" else 0
    rest = patches + pooler + WIDTH * CLASSES
    return rest + (DEPTH - 1) * layer + last, rest + DEPTH * layer


@pytest.mark.parametrize("name", ["timm ViT", pytest.param("BERT", marks=pytest.mark.slow)])
def test_both_conventions_by_hand_and_by_torchs_own_counter(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    (found,) = hs.bench([tmp_path / "source"], batch="1", runs=1, device="cpu").results
    tokens = found.tokens or 17
    assert (found.macs, found.macs_all_tokens) == by_hand(name, tokens)
    inputs = family.inputs(1)
    if found.tokens is not None:
        ids = torch.full((1, tokens), 5)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # A multiplication and an addition are two operations; torch knows attention by some names only.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        family.stock(tmp_path / "source")(inputs)
    assert counter.get_total_flops() == 2 * by_hand(name, tokens)[1]


def test_a_hydra_of_three_counts_each_member(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """Members of different models, each with another number of heads in the last layer."""
    tokens, width, head, classes = 17, 32, 8, 5
    square, patches = width**2, 16 * 49 * width
    layer = tokens * 12 * square + 2 * tokens**2 * width
    paths, as_run, all_tokens = [], 0, 0
    for seed, kept in enumerate((4, 2, 1)):
        source, mask = tiny(f"{seed}.safetensors", seed=seed), tmp_path / f"{seed}.json"
        mask.write_text(json.dumps({"vision": [[0, 1, 2, 3], [0, 1, 2, 3], [*range(kept)]]}))
        paths.append(hs.prune(source, mask=mask, out=tmp_path / f"m{seed}.safetensors").path)
        rest, heads = patches + 2 * layer + width * classes, kept * head
        as_run += rest + heads * (2 * width * (tokens + 1) + 2 * tokens) + 8 * square
        all_tokens += rest + tokens * (heads * (4 * width + 2 * tokens) + 8 * square)
    hydra = hs.fuse(paths, mlp="separate", out=tmp_path / "hydra.safetensors").path
    (found,) = hs.bench([hydra], batch="1", runs=1, device="cpu").results
    assert (found.macs, found.macs_all_tokens) == (as_run, all_tokens)
