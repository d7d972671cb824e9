"""A hydra's members, tuned at once: each as if it had been tuned alone behind the frozen trunk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import Batch
from hydrasurgeon.errors import UsageError
from hydrasurgeon.runtime.classifier import members_of
from hydrasurgeon.tuning.branches import Apart, each_taught, seed_of
from hydrasurgeon.tuning.learning import Learning

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
PLAIN = {
    "dropout": "0",
    "augment.pad_crop": "null",
    "augment.hflip": "0",
    "batch_size": "8",
    "epochs": "2",
}
EXACT = PLAIN | {"optimizer": "sgd", "lr": "0.1", "clip": "0.5", "weight_decay": "0.1"}
"""Steps are linear in the gradient: rounding stays rounding."""
SHORT = {"batch_size": "8", "epochs": "3", "lr": "3e-3"}


def members(folder: Path, source: Path, *, layers: str | None = "1-2") -> list[Path]:
    """Three, which keep other heads of some layers of one backbone."""
    limits: dict[str, Any] = {} if layers is None else {"layers": layers}
    return [
        hs.prune(source, method="random", keep=2, seed=seed, out=folder / f"m{seed}", **limits).path
        for seed in (1, 2, 3)
    ]


def tensors_of(hydra: Path) -> list[dict[str, torch.Tensor]]:
    opened = open_checkpoint(hydra)
    assert opened.manifest.kind == "hydra"
    return [module.state_dict() for module in members_of(opened, opened.manifest)]


@pytest.mark.parametrize(("mlp", "trunk"), [("average", 1), ("separate", 0)])
def test_each_member_learns_as_it_would_alone(
    tiny: MAKE, images: SPEC, tmp_path: Path, mlp: str, trunk: int
) -> None:
    """Behind a trunk of one of three layers, or without; gradients are clipped, and inputs flipped, for each alone."""
    files, data = members(tmp_path, tiny(), layers="1-2" if trunk else None), images()
    hydra = hs.fuse(files, mlp=mlp, out=tmp_path / "h")
    assert hydra.manifest.fusion.trunk == trunk
    options = {"data": data, "recipe": "demo", "device": "cpu"}
    flipped = EXACT | {"augment.hflip": "0.5"}
    tuned = hs.finetune(hydra.path, set=flipped, seed=5, out=tmp_path / "t", **options)
    assert tuned.manifest.kind == "hydra"
    assert (tuned.manifest.fusion.mlp, tuned.manifest.fusion.trunk) == ("separate", trunk)
    for i, (file, together) in enumerate(zip(files, tensors_of(tuned.path), strict=True)):
        alone = flipped | ({"last_blocks": "2"} if trunk else {})
        one = hs.finetune(file, set=alone, seed=seed_of(5, i), out=tmp_path / f"t{i}", **options)
        for name, tensor in load_file(one.path).items():
            torch.testing.assert_close(together[name], tensor, rtol=0, atol=2e-6)
        assert not torch.equal(together["head.weight"], load_file(file)["head.weight"])


def test_an_interrupted_run_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of many lengths, of which the trunk's outputs are kept."""
    family = FAMILIES["RoBERTa"]
    family.write(tmp_path / "whole")
    data = family.data(tmp_path)
    monkeypatch.chdir(tmp_path)
    hydra = hs.fuse(members(tmp_path, tmp_path / "whole"), out="h").path
    options = {
        "data": data,
        "val": data,
        "recipe": "text",
        "set": SHORT | {"ema": "0.9"},
        "device": "cpu",
    }
    whole = hs.finetune(hydra, out="t", **options)
    assert whole.trained.log[-1]["loss"] < whole.trained.log[1]["loss"]

    class Killed(Exception):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if done == 5:
            raise Killed

    with pytest.raises(Killed):
        hs.finetune(hydra, out="cut", save_every=2, progress=kill, **options)
    with pytest.raises(UsageError, match="another trunk_cache"):
        hs.finetune(hydra, out="cut", resume=True, trunk_cache="off", **options)
    resumed = hs.finetune(hydra, out="cut", resume=True, **options)
    assert resumed.path.read_bytes() == whole.path.read_bytes()
    assert resumed.trained == whole.trained
    nll = hs.evaluate([whole.path], data=data, device="cpu").report.results[0].id.nll
    assert nll == pytest.approx(min(entry["val_nll"] for entry in whole.trained.log), abs=1e-5)
    exact = hs.finetune(hydra, out="exact", trunk_cache="off", **options)
    assert exact.manifest.history[-1].args["trunk_cache"] == "off"
    assert exact.manifest.weights_sha256 != whole.manifest.weights_sha256
    for kept, one in zip(whole.trained.log[1:], exact.trained.log[1:], strict=True):
        assert kept["loss"] == pytest.approx(one["loss"], abs=0.02)


def test_a_trunk_that_learns_more_slowly(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """After one step of plain descent each of its weights has moved by that much less."""
    files, data = members(tmp_path, tiny()), images()
    hydra = hs.fuse(files, out=tmp_path / "h")
    step = EXACT | {
        "epochs": "1e-9",
        "clip": "null",
        "momentum": "0",
        "warmup": "0",
        "schedule": "constant",
    }
    before, name, moved = load_file(hydra.path), "blocks.0.mlp.fc1.weight", {}
    for rate in ("1", "0.1"):
        settings = step | {"trunk_lr": rate}
        path = hs.finetune(
            hydra.path, data=data, recipe="demo", set=settings, out=tmp_path / rate, device="cpu"
        ).path
        moved[rate] = load_file(path)[name] - before[name]
        own = load_file(path)["members.0.head.weight"] - before["head.weight"]
        torch.testing.assert_close(own, moved.setdefault("head", own))
    assert moved["1"].abs().max() > 1e-5
    torch.testing.assert_close(0.1 * moved["1"], moved["0.1"], rtol=1e-2, atol=1e-6)


def test_each_member_has_a_teacher_of_its_own() -> None:
    """As many as members; otherwise all learn from the mean of all."""
    x, y = torch.randn(2, 6, 4), torch.randint(0, 3, (2, 6))
    teachers: Any = [lambda x, w=torch.randn(4, 3): (x @ w)[:, None] for _ in range(3)]
    student = nn.Linear(4, 3)
    for count in (2, 3):
        learning = Learning(teachers=teachers[:count], alpha=0.5)
        together = Apart(members=each_taught(learning, 2))
        batches = [Batch(x[i], y[i], torch.arange(6)) for i in (0, 1)]
        model: Any = lambda inputs: [student(one) for one in inputs]  # noqa: E731
        loss = together._loss(model, batches, torch.device("cpu"))
        own = [
            Learning(teachers=teachers[:count] if count == 3 else [teachers[i]], alpha=0.5)
            for i in (0, 1)
        ]
        expected = [
            one._loss(student, batch, torch.device("cpu"))
            for one, batch in zip(own, batches, strict=True)
        ]
        torch.testing.assert_close(loss, expected[0] + expected[1])


@pytest.mark.parametrize("field", ["classifier=zero", "lora_rank=2"])
def test_what_a_hydra_cannot_be_tuned_with(
    tiny: MAKE, images: SPEC, tmp_path: Path, field: str
) -> None:
    hydra = hs.fuse(members(tmp_path, tiny()), out=tmp_path / "h").path
    settings = dict([field.split("=")])
    with pytest.raises(UsageError, match="a hydra is tuned with the classifiers that it has"):
        hs.finetune(hydra, data=images(), recipe="demo", set=settings, out=tmp_path / "t")
    assert not (tmp_path / "t.safetensors").exists()
