"""A classifier that is fitted before the first step: the minimum of a convex loss, on the features it reads."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from row_files import write_lines
from safetensors.torch import load_file
from tiny_families import FAMILIES, TEXT, WORDS, tokenizer, transformers_model
from torch import nn
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import first_batch, open_data
from hydrasurgeon.runtime.features import WithFeatures
from hydrasurgeon.tuning.probe import PENALTIES, PENALTY, logistic

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.mark.parametrize("intercept", [True, False])
def test_the_slope_is_zero_at_the_minimum(intercept: bool) -> None:
    torch.manual_seed(0)
    features = torch.randn(50, 6, dtype=torch.float64) * torch.tensor([1.0, 10, 0.01, 3, 0, 1]) + 4
    labels = torch.randint(0, 3, (50,))
    layer = nn.Linear(6, 3, bias=intercept)
    weight, bias = (t.requires_grad_() for t in logistic(features, labels, layer))
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
    weight, bias = logistic(features, torch.as_tensor(samples.labels), nn.Linear(32, 3))
    stored = load_file(tuned.path)
    torch.testing.assert_close(stored["head.weight"].double(), weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(stored["head.bias"].double(), bias, rtol=1e-3, atol=1e-3)


def nll_of(spec: str, features: torch.Tensor, fit: tuple[torch.Tensor, torch.Tensor]) -> float:
    labels = torch.as_tensor(open_data(spec).labels)
    return float(cross_entropy(features @ fit[0].T + fit[1], labels))


def test_the_recipe_takes_no_step_and_val_chooses_the_penalty(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    start, data, val = tiny(), images(), images("val.npz", seed=9, rows=60)
    options = {"data": data, "val": val, "device": "cpu"}
    made = hs.finetune(start, recipe="probe", out=tmp_path / "p.safetensors", **options)
    before, after = load_file(start), load_file(made.path)
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "head.weight",
        "head.bias",
    }
    model = hs.load(made.path, device="cpu")

    def read(spec: str) -> torch.Tensor:
        samples = open_data(spec)
        with torch.inference_mode():
            inputs = first_batch(samples, model.transform, len(samples))
            return WithFeatures(model)(inputs)[1][:, 0].double()

    features, labels = read(data), torch.as_tensor(open_data(data).labels)
    fits = {
        penalty: logistic(features, labels, nn.Linear(32, 5), penalty=penalty)
        for penalty in (PENALTY, *PENALTIES)
    }
    judged = {penalty: nll_of(val, read(val), fit) for penalty, fit in fits.items()}
    best = min(judged, key=judged.__getitem__)
    assert best != PENALTY
    torch.testing.assert_close(after["head.weight"].double(), fits[best][0], rtol=1e-3, atol=1e-3)
    assert (made.trained.steps, made.trained.loss, made.trained.kept_epoch) == (0, None, 0)
    assert made.trained.log[0]["val_nll"] == pytest.approx(judged[best], abs=1e-4)
    # Training is measured from there, and goes on from the usual penalty.
    still = {"classifier": "probe", "steps": "1", "lr": "1e-12", "keep": "last"}
    tuned = hs.finetune(start, recipe="demo", set=still, out=tmp_path / "t.safetensors", **options)
    weight = load_file(tuned.path)["head.weight"].double()
    torch.testing.assert_close(weight, fits[PENALTY][0], rtol=1e-3, atol=1e-3)
    assert tuned.trained.log[0] == made.trained.log[0]
    assert tuned.trained.log[1]["val_nll"] == pytest.approx(judged[PENALTY], abs=1e-4)


def test_the_classifier_learns_as_if_its_features_had_one_length(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    """A step of Adam changes every weight by its rate."""
    start, data = tiny(), images(rows=40)
    one = {"steps": "1", "lr": "1e-3", "warmup": "0", "weight_decay": "0", "schedule": "constant"}
    changed = {}
    for rate in ("1", "10"):
        made = hs.finetune(
            start,
            data=data,
            recipe="demo",
            set=one | {"classifier_lr": rate},
            out=tmp_path / rate,
            device="cpu",
        )
        before, after = load_file(start), load_file(made.path)
        changed[rate] = {name: (after[name] - before[name]).abs().max().item() for name in before}
    model, samples = hs.load(start, device="cpu"), open_data(data)
    with torch.inference_mode():
        _, features = WithFeatures(model)(first_batch(samples, model.transform, 40))
    length = features.norm(dim=-1).mean().item()
    for name, paced in (("head.weight", 10 * 10 / length), ("head.bias", 10), ("norm.bias", 1)):
        assert changed["1"][name] == pytest.approx(1e-3, rel=1e-2)
        assert changed["10"][name] == pytest.approx(1e-3 * paced, rel=1e-2)


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


def test_a_number_is_fitted_and_shown_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task without an accuracy."""
    transformers_model("BertModel", TEXT).save_pretrained(tmp_path / "bert")
    tokenizer(tmp_path / "bert")
    rows = [{"text": f"film {word}", "label": at + 0.5} for at, word in enumerate(WORDS[:6] * 4)]
    write_lines(tmp_path / "n.jsonl", rows)
    words = ["finetune", str(tmp_path / "bert"), "--data", str(tmp_path / "n.jsonl")]
    words += ["--val", str(tmp_path / "n.jsonl"), "--recipe", "probe", "--set", "task=regression"]
    assert run([*words, "--device", "cpu", "-o", str(tmp_path / "p")]) == 0
    assert re.search(r"the probe alone +\d+\.\d{3}\n", capsys.readouterr().out)


def test_what_cannot_be_read_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    FAMILIES["BERT"].write(tmp_path / "source")
    table = [f"{'good' if i % 2 else 'bad'} film,{i % 2}" for i in range(30)]
    table[7] = " ,1"
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *table]) + "\n")
    command = ["finetune", str(tmp_path / "source"), "--recipe", "probe", "--skip-bad"]
    command += ["--data", str(tmp_path / "train.csv"), "-o", str(tmp_path / "probe")]
    assert run(command) == 0
    told = capfd.readouterr()
    assert "skipped: 1 sample\n  train.csv, line 9 has no text ('1')\n" in told.err
    assert "probe.safetensors: a probe with 2 outputs" in told.out
