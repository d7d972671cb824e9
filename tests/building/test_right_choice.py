"""build chooses what its own table calls best, from models whose answers are known: what is expected is worked out here
in plain numpy from logits, and nothing is replaced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edited import edited
from fitted_heads import Array, outputs_of, solved, with_head
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES
from tiny_task import images

import hydrasurgeon as hs
from hydrasurgeon.building import members
from hydrasurgeon.checkpoints.checkpoint import open_single
from hydrasurgeon.errors import UsageError

ROWS = 120
TEMPERATURES = np.exp(np.linspace(np.log(0.05), np.log(20), 4001))


def nll(probs: Array, labels: Array) -> float:
    return float(-np.log(probs[np.arange(len(labels)), labels.astype(int)]).mean())


def mean_probs(logits: Sequence[Array]) -> Array:
    each = [np.exp(rows - rows.max(axis=1, keepdims=True)) for rows in logits]
    return np.mean([rows / rows.sum(axis=1, keepdims=True) for rows in each], axis=0)


def tempered(probs: Array, temperature: float) -> Array:
    powers = probs ** (1 / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


def figures(logits: Sequence[Array], labels: Array) -> dict[str, float]:
    """Accuracy and NLL of the members together: each half is calibrated by what the other half fits."""
    order = np.random.default_rng(0).permutation(len(labels))
    z, labels = np.stack(logits).astype(np.float64)[:, order], labels[order]
    halves = [slice(0, len(labels) // 2), slice(len(labels) // 2, None)]
    losses, right = [], []
    for fitting, judging in (halves, halves[::-1]):
        calibrated = by_temperature(z[:, fitting], labels[fitting], z[:, judging])
        losses.append(nll(calibrated, labels[judging]))
        right.append(float((calibrated.argmax(axis=1) == labels[judging]).mean()))
    return {"nll": float(np.mean(losses)), "accuracy": float(np.mean(right))}


def by_temperature(fitting: Array, labels: Array, judging: Array) -> Array:
    probs = mean_probs([*fitting])
    best = min(TEMPERATURES, key=lambda t: nll(tempered(probs, t), labels))
    return tempered(mean_probs([*judging]), best)


class World:
    """Data in which 15 % of the labels are wrong, a random body, and the classifier that tells the classes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.train, self.val = (self.noisy(name, seed) for name, seed in (("train", 1), ("val", 2)))
        self.wrong = self.turned()
        FAMILIES["timm ViT"].write(folder / "source")
        self.body = hs.score(folder / "source", method="random", out=folder / "body").path
        self.head = solved(self.body, self.val)
        """It knows VAL: no probe that is fitted to TRAIN is as good."""

    def noisy(self, name: str, seed: int) -> str:
        spec = images(self.folder, name, seed, ROWS)
        file = dict(np.load(spec))
        rng = np.random.default_rng(seed)
        noise = rng.permutation(ROWS)[: ROWS * 15 // 100]
        file["labels"][noise] = (file["labels"][noise] + 1) % 3
        np.savez(spec, **file)
        return spec

    def turned(self) -> str:
        """TRAIN with its labels turned round: a probe that is fitted to them is no rival."""
        file = dict(np.load(self.train))
        file["labels"] = (file["labels"] + 1) % 3
        np.savez(self.folder / "wrong.npz", **file)
        return str(self.folder / "wrong.npz")

    def probe(self, data: str) -> Array:
        """What a probe of the body that is fitted to these data answers."""
        options: dict[str, Any] = {"data": data, "val": self.val, "device": "cpu"}
        out = self.folder / f"probe-{Path(data).stem}"
        hs.finetune(self.body, recipe="probe", out=out, force=True, **options)
        return self.logits(out)

    def model(self, name: str, head: Array, body: Path | None = None) -> Path:
        return with_head(body or self.body, self.folder / f"{name}.safetensors", head)

    def build(self, models: Sequence[Path], out: Path | str, **more: Any) -> Any:
        settings: dict[str, Any] = {"data": self.train, "val": self.val, "objective": "nll"}
        return hs.build(models, out=out, device="cpu", **settings | more)

    def front(self, models: Sequence[Path], **more: Any) -> dict[str, Any]:
        """The record of the front, and whether its figures are those of plain numpy."""
        out = self.folder / "front"
        self.notes = self.build(models, f"{out}/", **{"budget": "macs=1,2"} | more).notes
        record: dict[str, Any] = json.loads((out / "front.json").read_text())
        return record

    def logits(self, path: Path) -> Array:
        return outputs_of(path, self.val)[1]

    @property
    def labels(self) -> Array:
        return outputs_of(self.body, self.val)[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def check_rivals(record: dict[str, Any], expected: dict[str, dict[str, float]]) -> None:
    """The references have the figures that numpy has, and no rung is worse than one that its budget could pay."""
    references = {each["name"]: each for each in record["references"]}
    assert references.keys() == expected.keys()
    for name, numbers in expected.items():
        for measure, value in numbers.items():
            assert references[name][measure] == pytest.approx(value, abs=1e-4), (name, measure)
    for rung in record["rungs"]:
        for reference in references.values():
            if reference["macs"] <= rung["budget"]:
                assert rung["nll"] <= reference["nll"] + 1e-4


@pytest.mark.slow
def test_a_probe_that_is_better_is_the_rung(world: World) -> None:
    """The model has a poor classifier on a body that knows more: fitted anew it is worth the most."""
    noise = np.random.default_rng(6).normal(size=world.head.shape) * np.abs(world.head).mean()
    model = world.model("noisy", world.head + noise)
    expected = {
        "single model, calibrated": figures([world.logits(model)], world.labels),
        "probe": figures([world.probe(world.train)], world.labels),
    }
    losses = [numbers["nll"] for numbers in expected.values()]
    assert losses[1] < losses[0] - 0.1
    cache = world.folder / "probed"
    record = world.front([model], cache=cache, data=world.train, force=True)
    check_rivals(record, expected)
    assert record["rungs"][0]["made_of"] == ["the probe"]
    assert record["rungs"][0]["nll"] == pytest.approx(losses[1], abs=1e-4)
    path = world.folder / "front" / record["rungs"][0]["path"]
    assert [step.command for step in open_single(path).manifest.history][-2:] == [
        "finetune",
        "calibrate",
    ]
    np.testing.assert_allclose(world.logits(path), world.probe(world.train), atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("labels_need_not_fit")
def test_models_that_know_different_classes_make_an_ensemble(world: World) -> None:
    """One tells class 0 from the rest, the other class 2: together they know all. Of different bodies there is no
    mean."""
    rng = np.random.default_rng(3)

    def redrawn(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 2:
            return tensor
        return torch.from_numpy(rng.normal(size=tensor.shape) * float(tensor.std())).float()

    other = edited(world.body, world.folder / "other.safetensors", redrawn)
    first, second = world.head.copy(), solved(other, world.train)
    first[[1, 2]] = first[[1, 2]].mean(axis=0)
    second[[0, 1]] = second[[0, 1]].mean(axis=0)
    models = [world.model("zero", first), world.model("two", second, other)]
    logits = [world.logits(path) for path in models]
    expected = {
        "single model, calibrated": figures(logits[:1], world.labels),
        "probe": figures([world.probe(world.wrong)], world.labels),
        "ensemble of 2": figures(logits, world.labels),
    }
    gain = expected["single model, calibrated"]["nll"] - expected["ensemble of 2"]["nll"]
    assert gain > 0.05
    settings = {"data": world.wrong, "cache": world.folder / "different"}
    record = world.front(models, force=True, **settings)
    check_rivals(record, expected)
    labels = [label.split(",")[0] for label in record["rungs"][1]["made_of"]]
    assert labels == ["model 1", "model 2"]
    assert [note for note in world.notes if "share no start" in note] == [
        "the models share no start, so they have no mean"
    ]


def body_of(folder: Path) -> Path:
    """A body without a classifier."""
    FAMILIES["timm ViT"].write(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_classes": 0}))
    weights = load_file(folder / "model.safetensors")
    rest = {name: weight for name, weight in weights.items() if not name.startswith("head.")}
    save_file(rest, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.slow
def test_from_a_body_to_a_front(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe first, models that are tuned (here whether or not that helps), their mean; VAL decides."""
    tune = members.finetuned
    monkeypatch.setattr(
        members, "finetuned", lambda *about, **words: tune(*about, **words | {"val": None})
    )
    bare, work = body_of(world.folder / "bare"), world.folder / "body"
    record = world.front([bare], seeds=2, data=world.train, cache=work, force=True)
    files = [work / "seed-1.safetensors", work / "seed-2.safetensors"]
    logits = [world.logits(path) for path in files]
    expected = {
        "single model, calibrated": figures(logits[:1], world.labels),
        "probe": figures([world.logits(work / "probe.safetensors")], world.labels),
        "mean of 2": figures([world.logits(work / "mean.safetensors")], world.labels),
        "ensemble of 2": figures(logits, world.labels),
    }
    check_rivals(record, expected)
    for number, path in enumerate(files, 1):
        first, *_ = open_single(path).manifest.history
        assert (first.command, first.seed) == ("finetune", number)
    with pytest.raises(UsageError, match="--seeds requires one model without a classifier"):
        world.front(files, seeds=2, cache=work, force=True)
