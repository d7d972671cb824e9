"""The rivals in benchmarks/quality_rivals.py, against their definitions by autograd."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

pytestmark = pytest.mark.bench
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("quality_rivals")


def test_laplace_is_the_inverse_hessian_of_a_linear_classifier(rivals: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (40,), generator=generator)
    weights = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    phi = torch.cat([features, torch.ones(40, 1, dtype=torch.float64)], dim=1)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        return cross_entropy(phi @ flat.view(3, 4).T, labels, reduction="sum")

    hessian = torch.autograd.functional.hessian(loss, weights.flatten())
    posterior = torch.linalg.inv(hessian + 0.7 * torch.eye(12, dtype=torch.float64))
    logits = phi @ weights.T
    covariance = rivals.Laplace(features, logits).covariance(features[:5], 0.7)
    for row in range(5):
        jacobian = torch.block_diag(*[phi[row][None]] * 3)
        torch.testing.assert_close(
            covariance[row], jacobian @ posterior @ jacobian.T, atol=1e-10, rtol=0
        )
    draws = rivals.Laplace(features, logits).draws(
        features[:1].expand(400, -1), logits[:1].expand(400, -1), 0.7, 0
    )
    pairs = draws.reshape(-1, 3) - logits[0]
    torch.testing.assert_close(pairs.T @ pairs / len(pairs), covariance[0], atol=0.05, rtol=0.05)


def test_a_duo_weighs_both_by_what_suits_validation_data(rivals: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(300) % 4
    truth = torch.nn.functional.one_hot(labels, 4).double()
    large = truth * 2 + torch.randn(300, 4, generator=generator)
    small = truth + torch.randn(300, 4, generator=generator)
    a, b = rivals.duo(large, small, labels)
    assert a > b > 0
    best = cross_entropy(a * large + b * small, labels)
    for step in (0.05, -0.05):
        assert cross_entropy((a + step) * large + b * small, labels) > best
        assert cross_entropy(a * large + (b + step) * small, labels) > best
