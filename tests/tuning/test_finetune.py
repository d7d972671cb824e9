"""Training: schedules by hand, what is frozen stays, and a killed run ends with the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES
from two_processes import in_two_processes

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import DataError, SurgeryError, UsageError
from hydrasurgeon.tuning.loop import epoch_order, learning_rate
from hydrasurgeon.tuning.recipes import load_recipe

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
# Nothing is drawn, and steps are linear in the gradient: what is split up must add up.
EXACT = {
    "dropout": "0",
    "augment.pad_crop": "null",
    "augment.hflip": "0",
    "optimizer": "sgd",
    "lr": "0.1",
}
SHORT = {"epochs": "2", "batch_size": "8", "dropout": "0.1"}


def test_overrides() -> None:
    recipe = load_recipe("demo", {"lr": "1e-2", "steps": "7", "clip": "null", "augment.hflip": "0"})
    assert (recipe.lr, recipe.steps, recipe.epochs, recipe.clip, recipe.augment.hflip) == (
        0.01,
        7,
        None,
        None,
        0.0,
    )
    with pytest.raises(UsageError, match="did you mean momentum") as caught:
        load_recipe("demo", {"momentun": "1"})
    assert "augment.hflip" in str(caught.value.hint)


def test_schedule_by_hand() -> None:
    recipe = load_recipe("demo", {"lr": "1", "warmup": "2", "schedule": "cosine", "floor": "0.1"})
    assert [learning_rate(recipe, s, 6) for s in (0, 1)] == [0.5, 1.0]
    assert learning_rate(recipe, 4, 6) == pytest.approx(0.1 + 0.9 * 0.5)
    assert learning_rate(recipe, 6, 6) == pytest.approx(0.1)
    linear = load_recipe("demo", {"lr": "1", "warmup": "0.5", "schedule": "linear"})
    assert [learning_rate(linear, s, 8) for s in (0, 3, 4, 6)] == [0.25, 1.0, 1.0, 0.5]


def test_epoch_orders_partition_the_data() -> None:
    whole = epoch_order(10, seed=1, epoch=3)
    assert sorted(whole) == list(range(10))
    assert not np.array_equal(whole, epoch_order(10, seed=1, epoch=4))
    parts = [epoch_order(10, seed=1, epoch=3, rank=r, world=3) for r in range(3)]
    assert [len(p) for p in parts] == [4, 4, 4]
    assert set(np.concatenate(parts)) == set(range(10))


def test_a_tuned_member_is_fused_next(
    tiny: MAKE, images: SPEC, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = hs.prune(tiny(), method="random", keep=2, out=tmp_path / "p.safetensors").path
    for source, command in ((member, "fuse"), (tiny(), "calibrate")):
        out = tmp_path / f"to-{command}.safetensors"
        line = [
            "finetune",
            source,
            "--data",
            images(rows=20),
            "--recipe",
            "demo",
            "--set",
            "steps=1",
        ]
        assert run([*map(str, line), "-o", str(out)]) == 0
        words = capsys.readouterr().err.partition("next: hydrasurgeon ")[2].split()
        assert words[:2] == [command, str(out)]
    assert hs.fuse([tmp_path / "to-fuse", member], out=tmp_path / "hydra").members == 2


def test_training_learns(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    out = tmp_path / "t.safetensors"
    hs.finetune(
        tiny(),
        data=images(rows=60),
        recipe="demo",
        set={"epochs": "12", "batch_size": "10", "lr": "3e-3", "augment.pad_crop": "null"},
        out=out,
    )
    report = hs.evaluate([out], data=images("test.npz", rows=50, seed=9)).report
    assert report.results[0].id.accuracy > 0.9


def test_an_interrupted_run_ends_with_the_same_bits(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    path, spec = tiny(), images()
    options = {"data": spec, "val": spec, "recipe": "demo", "set": SHORT, "seed": 3}
    hs.finetune(path, out=tmp_path / "whole.safetensors", **options)

    class Killed(Exception):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if done == 7:  # within the second epoch
            raise Killed

    cut = tmp_path / "cut.safetensors"
    with pytest.raises(Killed):
        hs.finetune(path, out=cut, save_every=3, progress=kill, **options)
    assert not cut.exists()
    assert (tmp_path / "cut.training.safetensors").exists()
    with pytest.raises(UsageError, match="another seed"):
        hs.finetune(path, out=cut, resume=True, **{**options, "seed": 4})
    # float32 first, bfloat16 then: the manifest would tell of one of them only.
    with pytest.raises(UsageError, match="another dtype"):
        hs.finetune(path, out=cut, resume=True, **options, dtype="bfloat16")
    with pytest.raises(UsageError, match="another skip_bad"):
        hs.finetune(path, out=cut, resume=True, **options, skip_bad=True)
    resumed = hs.finetune(path, out=cut, resume=True, **options)
    assert cut.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert not (tmp_path / "cut.training.safetensors").exists()
    assert [entry["epoch"] for entry in resumed.trained.log] == [0, 1, 2]


def test_accumulation_equals_a_larger_batch(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, spec = tiny(), images()
    quiet = EXACT | {"epochs": "1"}
    one = hs.finetune(
        path,
        data=spec,
        recipe="demo",
        set=quiet | {"batch_size": "8"},
        out=tmp_path / "a.safetensors",
    )
    two = hs.finetune(
        path,
        data=spec,
        recipe="demo",
        set=quiet | {"batch_size": "4", "accumulate": "2"},
        out=tmp_path / "b.safetensors",
    )
    assert one.trained.steps == two.trained.steps == 5
    for name, tensor in load_file(one.path).items():
        torch.testing.assert_close(tensor, load_file(two.path)[name], rtol=0, atol=1e-6)


def test_a_new_classifier_takes_the_datas_classes(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, spec = tiny(), images(classes=3)
    with pytest.raises(DataError, match="label 5"):
        hs.finetune(
            path, data=images("seven.npz", classes=7), recipe="demo", out=tmp_path / "x.safetensors"
        )
    tuned = hs.finetune(
        path,
        data=spec,
        recipe="demo",
        set={"classifier": "zero", "steps": "1"},
        out=tmp_path / "t.safetensors",
    )
    assert tuned.manifest.model.num_classes == 3
    assert load_file(tuned.path)["head.weight"].shape == (3, 32)
    # One step from zero weights: all logits were equal, so the first loss is ln 3 whatever the smoothing.
    assert tuned.trained.loss == pytest.approx(math.log(3), abs=1e-5)


def test_a_diverging_run_says_so(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the loss is"):
        hs.finetune(
            tiny(),
            data=images(),
            recipe="demo",
            set={"lr": "1e30", "clip": "null", "warmup": "0", "optimizer": "sgd", "epochs": "9"},
            out=tmp_path / "t.safetensors",
        )
    assert not (tmp_path / "t.safetensors").exists()


def test_fsdp_is_refused(
    tiny: MAKE, images: SPEC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UsageError, match="needs the whole model"):
        hs.finetune(tiny(), data=images(), recipe="demo", out=tmp_path / "t.safetensors")


@pytest.mark.slow
def test_two_processes_train_like_one(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """Two gloo processes with half the batch each follow one process with the whole batch."""
    path, spec = tiny(), images()
    plain = EXACT | {"epochs": "2"}
    options = {"data": spec, "val": spec, "teacher": [path], "recipe": "demo", "device": "cpu"}
    one = hs.finetune(
        path, set=plain | {"batch_size": "8"}, out=tmp_path / "one.safetensors", **options
    )
    sets = [
        part
        for key, value in (plain | {"batch_size": "4"}).items()
        for part in ("--set", f"{key}={value}")
    ]
    line = f"finetune {path} --data {spec} --val {spec} --teacher {path} --recipe demo --device cpu -o {tmp_path / 'two.safetensors'}"
    printed = in_two_processes(*line.split(), *sets)
    assert printed.count("two.safetensors: trained for 10 steps") == 1  # only one process speaks
    for name, tensor in load_file(one.path).items():
        torch.testing.assert_close(
            load_file(tmp_path / "two.safetensors")[name], tensor, rtol=0, atol=1e-6
        )


def test_the_usual_recipe_suits_what_the_model_reads(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    """It is named where the training is shown, in the end, and in the history."""
    bert = FAMILIES["BERT"]
    bert.write(tmp_path / "bert")
    for name, start, data in (
        ("text", tmp_path / "bert", bert.data(tmp_path)),
        ("image", tiny(), images("other.npz")),
    ):
        shown: set[str] = set()
        tuned = hs.finetune(
            start,
            data=data,
            set={"steps": "1", "batch_size": "4"},
            out=tmp_path / f"{name}.safetensors",
            device="cpu",
            progress=lambda what, done, total, shown=shown: shown.add(what),
        )
        assert tuned.manifest.history[-1].args["recipe"] == name
        assert f"trained by the recipe {name}, as no --recipe was given" in tuned.notes
        assert any(what.startswith(f"training by {name}, loss") for what in shown)


def test_training_that_cannot_learn_says_so(
    tiny: MAKE, images: SPEC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, data = tiny(), images("few.npz", rows=10)
    stuck = {"lr": "1e-9", "epochs": "2"}
    tuned = hs.finetune(
        source, data=data, val=data, recipe="demo", set=stuck, out=tmp_path / "a.safetensors"
    )
    assert any("before training and after each epoch" in note for note in tuned.notes)


def test_a_hydra_is_tuned_before_it_is_fused(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    members = [tiny(f"{seed}.safetensors", seed=seed) for seed in (0, 1)]
    hydra = tmp_path / "hydra.safetensors"
    assert run(["fuse", *map(str, members), "-o", str(hydra)]) == 0
    words = ["--data", images(), "--recipe", "demo", "-o", str(tmp_path / "tuned.safetensors")]
    assert run(["finetune", str(hydra), *words]) == 4
    with pytest.raises(SurgeryError) as caught:
        hs.finetune(hydra, data=images(), out=tmp_path / "tuned.safetensors")
    assert caught.value.hint == "Tune its members, then fuse them."
