"""What training logs of a validation set, and an epoch is kept by: the NLL at the constants that fit best, found here by
scipy.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp
from token_logits import drawn
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, gaussian_nll_loss

from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tuning.losses import losses_of

Array = NDArray[np.float64]


def binary(logits: Tensor, labels: Tensor, *, bias: bool) -> float:
    """Of one label: the temperature of the members' mean alone, or Platt's bias of each, too."""
    z, truth = logits.double().numpy(), labels.double().numpy()

    def nll(at: Array) -> float:
        chances = expit(z + bias * at[1]).mean(axis=1)
        odds = np.log(chances / (1 - chances)) / np.exp(at[0])
        return -float(np.mean(truth * log_expit(odds) + (1 - truth) * log_expit(-odds)))

    return float(minimize(nll, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-7}).fun)


@pytest.mark.parametrize("members", [1, 2])
def test_one_logit(members: int) -> None:
    random = torch.Generator().manual_seed(0)
    truth = torch.rand(200, generator=random).double()
    logits = 3 * torch.randn(200, members, 1, generator=random) + 2 * (2 * truth[:, None, None] - 1)
    said = logits[:, 0] if members == 1 else logits
    expected = binary(logits[..., 0], truth, bias=True)
    found = TASKS["binary"].validated(said.float().numpy(), truth.numpy())
    assert found["calibrated_nll"] == pytest.approx(expected, abs=1e-5)


def test_many_labels() -> None:
    random = torch.Generator().manual_seed(1)
    truth = (torch.rand(200, 3, generator=random) < 0.4).double()
    logits = 4 * torch.randn(200, 2, 3, generator=random) + (2 * truth - 1)[:, None]
    rows = logits.transpose(1, 2).flatten(0, 1)
    expected = binary(rows, truth.flatten(), bias=False)
    found = TASKS["multi_label"].validated(logits.float().numpy(), truth.numpy())
    assert found["calibrated_nll"] == pytest.approx(expected, abs=1e-5)
    chances = torch.sigmoid(logits.double()).mean(dim=1)
    plain = binary_cross_entropy(chances, truth)
    assert found["nll"] == pytest.approx(float(plain), abs=1e-6)
    assert found["accuracy"] == float(((chances > 0.5) == truth.bool()).double().mean())


def test_tags() -> None:
    """Over the words that are there; the mean of members is tempered."""
    logits, labels, _ = drawn(100, seed=2)
    labels = labels[:, : logits.shape[2]]
    there = labels >= 0
    z = np.moveaxis(logits.astype(np.float64), 2, 1)[there]
    mean = np.log(np.exp(z - logsumexp(z, axis=-1, keepdims=True)).mean(axis=1))
    truth = labels[there]

    def nll(at: Array) -> float:
        logs = mean / np.exp(at[0])
        logs = logs - logsumexp(logs, axis=-1, keepdims=True)
        return -float(np.mean(logs[np.arange(len(truth)), truth]))

    expected = minimize(nll, np.zeros(1), method="Nelder-Mead").fun
    found = TASKS["token_classification"].validated(logits, labels)
    assert found["calibrated_nll"] == pytest.approx(expected, abs=1e-5)
    assert list(found)[-1] == "calibrated_nll"


def test_numbers() -> None:
    logits = np.array([[1.0], [3.0]])
    assert TASKS["regression"].validated(logits, np.array([2.0, 5.0])) == {"nll": 2.5}


def test_two_outputs_learn_by_the_gaussian_nll() -> None:
    logits, labels = (
        torch.randn(6, 2, generator=torch.Generator().manual_seed(0)),
        torch.arange(6.0),
    )
    expected = gaussian_nll_loss(logits[:, 0], labels, logits[:, 1].exp(), reduction="none")
    found = losses_of(TASKS["regression"]).losses(logits, labels)
    torch.testing.assert_close(found, expected)
