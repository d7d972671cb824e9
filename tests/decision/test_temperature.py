"""Temperature and the joint calibration: what they find, against a fine grid and against data made by them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hydrasurgeon.files.decided import Joint
from hydrasurgeon.statistics.probabilities import mean_probs, nll, tempered
from hydrasurgeon.statistics.temperature import calibrated, fit_joint, fit_temperature


def joint(aleatoric: float, epistemic: float) -> Joint:
    return Joint(aleatoric=aleatoric, epistemic=epistemic)


def members(count: int = 400, klasses: int = 4, apart: float = 1.0, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    shared = 2 * torch.randn(count, 1, klasses, generator=random, dtype=torch.float64)
    own = apart * torch.randn(count, 3, klasses, generator=random, dtype=torch.float64)
    return shared + own


def drawn(probs: Tensor, seed: int = 1) -> Tensor:
    return torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed))[:, 0]


def test_joint_is_the_formula() -> None:
    z = members(3)
    found = calibrated(z, joint=joint(2.0, 0.5))
    for i in range(3):
        mean = z[i].mean(dim=0)
        each = [torch.softmax((mean + 0.5 * (z[i, m] - mean)) / 2.0, dim=0) for m in range(3)]
        torch.testing.assert_close(found[i], sum(each[1:], each[0]) / 3)
    torch.testing.assert_close(calibrated(z, joint=joint(1.0, 1.0)), mean_probs(z))
    torch.testing.assert_close(calibrated(z, 2.0), tempered(mean_probs(z), 2.0))
    torch.testing.assert_close(calibrated(z, 2.0, joint(1.0, 1.0)), mean_probs(z))


@pytest.mark.parametrize("truth", [joint(0.5, 0.3), joint(2.0, 2.5)])
def test_joint_finds_the_constants_that_made_the_data(truth: Joint) -> None:
    z = members(20_000)
    found = fit_joint(z, drawn(calibrated(z, joint=truth)))
    assert found.aleatoric == pytest.approx(truth.aleatoric, rel=0.1)
    assert found.epistemic == pytest.approx(truth.epistemic, rel=0.25, abs=0.1)


def test_joint_is_no_worse_than_any_point_of_a_grid() -> None:
    z = members(300, apart=2.0)
    y = drawn(calibrated(z, joint=joint(1.5, 0.2)))
    best = nll(calibrated(z, joint=fit_joint(z, y)), y)
    for a in torch.linspace(math.log(0.06), math.log(18), 25).exp().tolist():
        for e in torch.linspace(math.log(0.06), math.log(18), 25).exp().tolist():
            assert best <= nll(calibrated(z, joint=joint(a, e)), y) + 1e-9
    alike = joint(fit_temperature(mean_probs(z[:, :1]), y), 1.0)
    assert fit_joint(z[:, :1], y).aleatoric == pytest.approx(alike.aleatoric, rel=1e-4)


def test_joint_works_within_inference_mode() -> None:
    z = members(50)
    y = drawn(mean_probs(z))
    with torch.inference_mode():
        inside = fit_joint(z.clone(), y.clone())
    assert inside == fit_joint(z, y)


def test_temperature_is_no_worse_than_any_point_of_a_grid() -> None:
    p = mean_probs(members(300))
    y = drawn(tempered(p, 1.7))
    best = nll(tempered(p, fit_temperature(p, y)), y)
    for t in torch.linspace(math.log(0.06), math.log(18), 200).exp().tolist():
        assert best <= nll(tempered(p, t), y) + 1e-9


def test_temperature_of_answers_that_are_sure_and_wrong() -> None:
    p = torch.tensor([[1.0, 0.0, 0.0]] * 3 + [[0.0, 1.0, 0.0]], dtype=torch.float64)
    found = fit_temperature(p, torch.tensor([0, 0, 0, 0]))
    assert found == pytest.approx(20.0, rel=1e-4)


def test_of_many_samples_a_random_part_tells_the_joint_constants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z = members(6000)
    y = drawn(calibrated(z, joint=joint(2.0, 0.5)))
    order = y.argsort()  # the first are all of one class
    z, y = z[order], y[order]
    whole = fit_joint(z, y)
    monkeypatch.setattr("hydrasurgeon.statistics.temperature.MOST", 3000 * z[0].numel())
    part = fit_joint(z, y)
    assert part != whole
    assert part.aleatoric == pytest.approx(whole.aleatoric, rel=0.1)
    assert nll(calibrated(z, joint=part), y) == pytest.approx(
        nll(calibrated(z, joint=whole), y), abs=2e-3
    )
