"""A classifier that is fitted before the first step: the minimum of a convex loss, on the features it reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES, TEXT, tokenizer, transformers_model
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.data import first_batch, open_data
from hydrasurgeon.errors import UsageError
from hydrasurgeon.runtime.features import WithFeatures
from hydrasurgeon.tuning.probe import PENALTY, logistic

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.mark.parametrize("intercept", [True, False])
def test_the_slope_is_zero_at_the_minimum(intercept: bool) -> None:
    torch.manual_seed(0)
    features = torch.randn(50, 6, dtype=torch.float64) * torch.tensor([1.0, 10, 0.01, 3, 0, 1]) + 4
    labels = torch.randint(0, 3, (50,))
    weight, bias = (t.requires_grad_() for t in logistic(features, labels, 3, intercept=intercept))
    scale = features.square().mean().sqrt()
    loss = (
        cross_entropy(features @ weight.T + bias, labels)
        + PENALTY / 2 * (weight * scale).square().sum()
    )
    by_weight, by_bias = torch.autograd.grad(loss, (weight, bias))
    assert by_weight.abs().max() < 1e-5
    assert by_bias.abs().max() < 1e-6 if intercept else (bias == 0).all()


def test_what_a_fitted_classifier_answers(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """On its own features, which training with a rate near zero leaves alone, and for the classes of the data."""
    data = images(classes=3, rows=30)
    still = {"classifier": "probe", "steps": "1", "lr": "1e-12", "weight_decay": "0"}
    tuned = hs.finetune(
        tiny(), data=data, recipe="demo", set=still, out=tmp_path / "t", device="cpu"
    )
    model, samples = hs.load(tuned.path, device="cpu"), open_data(data)
    with torch.inference_mode():
        _, features = WithFeatures(model)(first_batch(samples, model.transform, 30))
        features = features[:, 0].double()
    weight, bias = logistic(features, torch.as_tensor(samples.labels), 3)
    stored = load_file(tuned.path)
    torch.testing.assert_close(stored["head.weight"].double(), weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(stored["head.bias"].double(), bias, rtol=1e-3, atol=1e-3)


def test_a_model_without_a_classifier_is_fitted_one(tmp_path: Path) -> None:
    """Where there are labels to fit it to."""
    transformers_model("BertModel", TEXT | {"initializer_range": 0.25}).save_pretrained(
        tmp_path / "bert"
    )
    tokenizer(tmp_path / "bert")
    data = FAMILIES["BERT"].data(tmp_path)
    still = {"steps": "1", "lr": "1e-12", "batch_size": "4"}
    tuned = hs.finetune(
        tmp_path / "bert", data=data, recipe="text", set=still, out=tmp_path / "t", device="cpu"
    )
    assert hs.evaluate([tuned.path], data=data, device="cpu").report.results[
        0
    ].id.nll < 0.7 * math.log(3)


def test_a_fit_needs_labels(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is fitted to labels, and the data has none"):
        hs.finetune(
            (path := tiny()),
            data=images(labels=False),
            teacher=[path],
            recipe="teach",
            set={"classifier": "probe"},
            out=tmp_path / "t",
        )
    assert not (tmp_path / "t.safetensors").exists()
