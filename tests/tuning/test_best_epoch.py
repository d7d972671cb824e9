"""Which epoch and which rate are kept, when training ends, and which random numbers have a seed of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fitted_heads import outputs_of
from PIL import Image
from safetensors.torch import load_file
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torchvision.transforms import RandAugment

import hydrasurgeon as hs
from hydrasurgeon.data.pictures import InTimm
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.transforms import train_transform
from hydrasurgeon.tuning.recipes import Recipe, load_recipe
from hydrasurgeon.tuning.training_state import TrainingPosition

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
LEARNS = {
    "label_smoothing": "0.1",
    "batch_size": "8",
    "lr": "3e-3",
    "warmup": "0",
    "schedule": "constant",
    "dropout": "0.1",
}
"""No step depends on how many there are, so that a training of fewer epochs is the beginning of a longer one."""


def least(path: Path, data: str) -> float:
    """The NLL at the temperature that fits these labels best."""
    _, logits, labels = outputs_of(path, data)

    def nll(log_temperature: float) -> float:
        logs = log_softmax(logits / np.exp(log_temperature), axis=-1)
        return -float(np.mean(logs[np.arange(len(labels)), labels]))

    return float(minimize_scalar(nll, bounds=(-3, 3), method="bounded").fun)


@pytest.mark.slow
def test_the_best_epoch_is_what_a_training_that_ended_there_writes(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    path, data = tiny(), images()
    options = {"data": data, "val": images("val.npz", seed=9, rows=20), "recipe": "demo"}
    settings = LEARNS | {"augment.hflip": "1"}
    whole = hs.finetune(
        path,
        set=settings | {"epochs": "12", "patience": "2"},
        out=tmp_path / "whole.safetensors",
        **options,
    )
    measured = [entry["val_calibrated_nll"] for entry in whole.trained.log]
    best = measured.index(min(measured))
    assert whole.trained.kept_epoch == best > 0
    assert whole.trained.stopped_early
    assert len(measured) == best + 3  # the start is epoch 0
    short = settings | {"epochs": str(best), "keep": "last"}
    until = hs.finetune(path, set=short, out=tmp_path / "until.safetensors", **options)
    assert until.trained.kept_epoch is None
    assert not until.trained.stopped_early
    assert until.manifest.weights_sha256 == whole.manifest.weights_sha256
    # What was measured is what was written.
    nll = hs.evaluate([whole.path], data=str(options["val"])).report.results[0].id.nll
    assert nll == pytest.approx(whole.trained.log[best]["val_nll"], abs=1e-5)
    assert least(whole.path, str(options["val"])) == pytest.approx(min(measured), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_start_may_be_kept(tiny: MAKE, images: SPEC, tmp_path: Path, keep: str) -> None:
    """A rate that ruins the model: what is written is no worse than what was given."""
    val, path = images("val.npz", seed=9, rows=20), tmp_path / "learnt.safetensors"
    learns = LEARNS | {"epochs": "6", "keep": "last"}
    hs.finetune(tiny(), data=images(), recipe="demo", set=learns, out=path)
    ruin = {"lr": "10", "optimizer": "sgd", "clip": "null", "epochs": "2", "keep": keep}
    out = tmp_path / "t.safetensors"
    tuned = hs.finetune(path, data=images(), val=val, recipe="demo", set=ruin, out=out)
    start, *epochs = tuned.trained.log
    given = hs.evaluate([path], data=val).report.results[0].id
    assert start == {
        "epoch": 0.0,
        "val_accuracy": pytest.approx(given.accuracy),
        "val_nll": pytest.approx(given.nll, abs=1e-5),
        "val_calibrated_nll": pytest.approx(least(path, val), abs=1e-4),
    }
    kept_by = "val_calibrated_nll"
    assert all(epoch[kept_by] > start[kept_by] for epoch in epochs if kept_by in epoch)
    before, after = load_file(path), load_file(out)
    unchanged = all(torch.equal(before[name], after[name]) for name in before)
    assert unchanged == (keep == "best")
    assert tuned.trained.kept_epoch == (0 if keep == "best" else None)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [23, 33])
def test_an_interrupted_run_chooses_the_same(
    tiny: MAKE, images: SPEC, tmp_path: Path, cut: int
) -> None:
    """Before and after the best epoch, which is kept in the state."""
    path = tiny()
    val = images("val.npz", seed=9, rows=20)
    options = {"data": images(), "val": val, "recipe": "demo"}
    options |= {"set": LEARNS | {"epochs": "12", "patience": "4"}}
    whole = hs.finetune(path, out=tmp_path / "whole.safetensors", **options)

    class Killed(Exception):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if done == cut:
            raise Killed

    with pytest.raises(Killed):
        hs.finetune(path, out=tmp_path / "cut.safetensors", save_every=3, progress=kill, **options)
    best = 5 * int(whole.trained.kept_epoch or 0)
    assert 23 < best < 33 < whole.trained.steps < 60
    resumed = hs.finetune(path, out=tmp_path / "cut.safetensors", resume=True, **options)
    assert resumed.path.read_bytes() == whole.path.read_bytes()
    assert resumed.trained == whole.trained


PAPER = Path(__file__).parents[2] / "examples" / "paper"
PLAIN = {"optimizer": "sgd", "lr": 0.1, "steps": 1}


def position(accuracies: list[float], nlls: list[float]) -> TrainingPosition:
    log = [
        {"epoch": float(i), "val_accuracy": accuracy, "val_calibrated_nll": nll}
        for i, (accuracy, nll) in enumerate(zip(accuracies, nlls, strict=True))
    ]
    return TrainingPosition(log=log)


def test_the_best_epoch_by_each_figure() -> None:
    standing = position([0.5, 0.7, 0.7004, 0.69, 0.69], [1.0, 0.9, 0.8, 0.85, 0.9])
    by_nll = Recipe(**PLAIN)
    by_accuracy = Recipe(**PLAIN, select="accuracy")
    paper = Recipe(**PLAIN, select="accuracy", min_delta=5e-4, patience=3)
    assert standing.best_epoch(by_nll) == 2
    assert standing.best_epoch(by_accuracy) == 2
    assert standing.best_epoch(paper) == 1  # .7004 is no better by more than 5e-4
    assert standing.waited(paper)
    assert not standing.waited(paper.model_copy(update={"patience": 4}))
    assert not standing.waited(by_nll)  # without patience
    assert TrainingPosition().best_epoch(by_nll) is None


def test_the_papers_recipes() -> None:
    """D.2 freezes embeddings and draws two operations of magnitude 12 of 30; C.2 selects by accuracy."""
    imagenet = load_recipe(PAPER / "imagenet.toml", {})
    assert imagenet.freeze == ("embeddings",)
    sst2 = load_recipe(PAPER / "sst2.toml", {})
    assert sst2.freeze == ("embeddings",)
    assert (sst2.select, sst2.patience, sst2.min_delta) == ("accuracy", 2, 5e-4)
    preprocess = {
        "input_size": [3, 32, 32],
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": [0.5, 0.25, 0.0],
        "std": [1.0, 1.0, 1.0],
    }
    transform = train_transform(InTimm(preprocess), imagenet.augment.model_dump())
    (drawn,) = [step for step in transform.transforms if isinstance(step, RandAugment)]
    assert drawn.fill == [128, 64, 0]
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    picture, of_paper = Image.fromarray(pixels), RandAugment(2, 12, fill=[128, 64, 0])
    of_paper.interpolation = drawn.interpolation
    for seed in range(8):
        torch.manual_seed(seed)
        ours = np.asarray(drawn(picture))
        torch.manual_seed(seed)
        assert np.array_equal(ours, np.asarray(of_paper(picture)))


@pytest.mark.slow
def test_the_rate_that_is_best_on_validation_data(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """Each rate as in a training of its own; what is written is the best one's, bit for bit."""
    path, data, val = tiny(), images(), images("val.npz", seed=9, rows=20)
    settings = {"epochs": "3", "batch_size": "8", "dropout": "0"}
    about = {"data": data, "val": val, "recipe": "demo"}
    alone = {
        rate: hs.finetune(
            path, set=settings | {"lr": rate}, out=tmp_path / f"{rate}.safetensors", **about
        )
        for rate in ("1e-5", "3e-3", "1e-4")
    }
    grid = hs.finetune(
        path, set=settings | {"lr": ",".join(alone)}, out=tmp_path / "grid.safetensors", **about
    )
    least = {
        rate: min(entry["val_calibrated_nll"] for entry in done.trained.log)
        for rate, done in alone.items()
    }
    best = min(least, key=lambda rate: least[rate])
    assert grid.manifest.weights_sha256 == alone[best].manifest.weights_sha256
    assert any(f"lr {float(best):g} is the best" in note for note in grid.notes)
    some = hs.finetune(
        path,
        set={"lr": "1e30,1e-4", "optimizer": "sgd", "clip": "null", **settings, "keep": "last"},
        out=tmp_path / "some.safetensors",
        **about,
    )
    assert any("1e+30: diverged" in note for note in some.notes)
    with pytest.raises(UsageError, match="--val is required"):
        hs.finetune(path, data=data, set={"lr": "1,2"}, recipe="demo", out=tmp_path / "x")


@pytest.mark.slow
def test_the_order_of_samples_has_a_seed_of_its_own(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    path, data = tiny(), images()

    def weights(seed: int, **fields: str) -> str:
        still = {"epochs": "1", "batch_size": "8", "dropout": "0", "augment": "{}"}
        out = tmp_path / "t.safetensors"
        tuned = hs.finetune(
            path, data=data, recipe="demo", set=still | fields, seed=seed, out=out, force=True
        )
        return tuned.manifest.weights_sha256

    assert weights(1, order_seed="5") == weights(2, order_seed="5")  # nothing else is random here
    assert weights(1, order_seed="5") != weights(1, order_seed="6")
    assert weights(1) == weights(2, order_seed="1")
    dropping = {"order_seed": "5", "dropout": "0.1"}
    assert weights(1, **dropping) != weights(2, **dropping)


def test_selection_by_accuracy_needs_labels(tmp_path: Path) -> None:
    """A regressor is measured by its loss."""
    from tiny_families import FAMILIES

    family = FAMILIES["BERT"]
    family.write(tmp_path / "s")
    rows = "".join(f'{{"text": "a film {i}", "label": {i / 7}}}\n' for i in range(24))
    (tmp_path / "d.jsonl").write_text(rows)
    with pytest.raises(UsageError, match="--select accuracy is not possible"):
        hs.finetune(
            tmp_path / "s",
            data=str(tmp_path / "d.jsonl"),
            val=str(tmp_path / "d.jsonl"),
            set={"epochs": "1", "classifier": "fresh", "task": "regression"},
            select="accuracy",
            out=tmp_path / "o.safetensors",
            device="cpu",
        )
