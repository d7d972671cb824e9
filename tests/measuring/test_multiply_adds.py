"""Multiply-adds by hand: the same figure whatever attention runs as, on any torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import conv2d, linear, scaled_dot_product_attention

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
