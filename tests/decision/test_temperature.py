"""The temperature against a fine grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy import ndarray

from hydrasurgeon.statistics.probabilities import mean_probs, nll, tempered
from hydrasurgeon.statistics.temperature import temperature_of


def members(count: int = 400, klasses: int = 4, apart: float = 1.0, seed: int = 0) -> ndarray:
    random = torch.Generator().manual_seed(seed)
    shared = 2 * torch.randn(count, 1, klasses, generator=random, dtype=torch.float64).numpy()
    own = apart * torch.randn(count, 3, klasses, generator=random, dtype=torch.float64).numpy()
    return shared + own


def drawn(probs: ndarray, seed: int = 1) -> ndarray:
    return torch.multinomial(
        torch.from_numpy(probs), 1, generator=torch.Generator().manual_seed(seed)
    )[:, 0].numpy()


def test_temperature_is_no_worse_than_any_point_of_a_grid() -> None:
    p = mean_probs(members(300))
    y = drawn(tempered(p, 1.7))
    best = nll(tempered(p, temperature_of(np.log(p)[:, None], y)), y)
    for t in np.exp(np.linspace(math.log(0.06), math.log(18), 200)).tolist():
        assert best <= nll(tempered(p, t), y) + 1e-9


def test_temperature_of_answers_that_are_sure_and_wrong() -> None:
    logits = 1e4 * np.array([[1.0, 0.0, 0.0]] * 3 + [[0.0, 1.0, 0.0]], dtype=np.float64)
    found = temperature_of(logits[:, None], np.array([0, 0, 0, 0]))
    assert found == pytest.approx(20.0, rel=1e-4)
