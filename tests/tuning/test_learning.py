"""Learning from teachers: the loss by hand, inputs perturbed alike, and the whole command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES
from torch import Tensor, nn

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_single
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import Batch
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tuning.learning import Learning, Perturbation

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
EXACT = {
    "epochs": "1",
    "batch_size": "8",
    "mixup": "0",
    "augment.hflip": "0",
    "augment.random_resized_crop": "null",
}


class Teacher(nn.Module):
    """Two members of fixed weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(seed))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,mic->bmc", x, self.weight)


def test_the_loss_by_hand() -> None:
    student, x = nn.Linear(4, 3), torch.randn(6, 4)
    labels = torch.tensor([0, 2, -1, 1, -1, 0])
    teachers: Any = [Teacher(1), Teacher(2)]
    learning = Learning(0.0, Perturbation(), teachers, alpha=0.7, temperature=2.0)
    loss = learning._loss(student, Batch(x, labels, torch.arange(6)), torch.device("cpu"))
    logits, expected = student(x).detach().double(), 0.0
    for i in range(6):
        probs = logits[i].softmax(-1)
        if labels[i] >= 0:
            expected += 0.3 * -probs[labels[i]].log() / 4
        taught = torch.stack(
            [t(x)[i, m].double().div(2).softmax(-1) for t in teachers for m in (0, 1)]
        ).mean(dim=0)
        soft = (logits[i] / 2).softmax(-1)
        expected += 0.7 * 4 * (taught * (taught.log() - soft.log())).sum() / 6
    assert loss.item() == pytest.approx(float(expected), abs=1e-5)


def test_a_step_on_many_labels_by_hand() -> None:
    """Labels and teachers count as alpha says, however many labels there are."""
    torch.manual_seed(0)
    student, x = nn.Linear(4, 3), torch.randn(6, 4)
    labels = (torch.rand(6, 3) < 0.5).float()
    teacher = Teacher(1)
    learning = Learning(
        teachers=[teacher],  # type: ignore[list-item]
        alpha=0.5,
        temperature=2.0,
        task=TASKS["multi_label"],
    )
    learning._loss(student, Batch(x, labels, torch.arange(6)), torch.device("cpu")).backward()
    # The slope of both losses by a logit is a difference of probabilities; each is a mean over
    # samples and labels.
    logits = student(x).detach()
    taught = (teacher(x) / 2).sigmoid().mean(dim=1)
    slope = 0.5 * (logits.sigmoid() - labels) + 0.5 * 2 * ((logits / 2).sigmoid() - taught)
    torch.testing.assert_close(student.weight.grad, (slope / 18).T @ x, rtol=0, atol=1e-6)


def test_two_images_are_mixed_with_their_labels() -> None:
    x, labels = torch.randn(8, 3, 4, 4), torch.arange(8)
    torch.manual_seed(0)
    mixed, ((first, part), (second, rest)) = Perturbation(mixup=1.0)(x, labels)
    assert part + rest == 1
    assert 0 < part < 1
    torch.testing.assert_close(mixed, part * x[first] + rest * x[second])
    assert sorted(second.tolist()) == labels.tolist() == first.tolist()


def test_masked_tokens_spare_the_special_ones() -> None:
    ids = torch.tensor([[0, 5, 6, 7, 2, 1, 1]] * 2000)
    inputs = {"input_ids": ids, "attention_mask": (ids != 1).long()}
    made, labels = Perturbation(mask_tokens=0.25, mask=3, special=(0, 1, 2))(
        inputs, torch.zeros(2000)
    )
    masked = made["input_ids"] == 3
    assert not masked[:, [0, 4, 5, 6]].any()
    assert masked[:, 1:4].float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert labels[0][1] == 1.0
    assert torch.equal(made["attention_mask"], inputs["attention_mask"])


def test_a_member_learns_from_its_whole(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """Without a label it comes closer to what it was cut from; the teacher stands in the history."""
    path = tiny()
    with np.load(images(rows=64)) as data:
        np.savez(tmp_path / "plain.npz", images=data["images"])
    member = hs.prune(path, method="magnitude", keep=2, neurons=0.3, out=tmp_path / "m").path
    tuned = hs.finetune(
        member,
        data=str(tmp_path / "plain.npz"),
        teacher=[path],
        recipe="teach",
        set=EXACT | {"epochs": "8", "lr": "3e-3"},
        device="cpu",
        out=tmp_path / "t",
    )
    assert tuned.trained.log[-1]["loss"] < 0.5 * tuned.trained.log[0]["loss"]
    entry = tuned.manifest.history[-1]
    assert [each.sha256 for each in entry.teachers] == [
        open_single(path).record(open_single(path).digests()).sha256
    ]
    assert entry.args["alpha"] == 0.9


def test_an_interrupted_taught_run_ends_with_the_same_bits(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    """Images that are mixed, by numbers drawn anew in each step."""
    options = {
        "data": images(),
        "teacher": [path := tiny(), tiny("two", seed=4)],
        "recipe": "teach",
        "device": "cpu",
    }
    options |= {"set": {"epochs": "2", "batch_size": "8"}}
    whole = hs.finetune(path, out=tmp_path / "whole", **options)

    class Killed(Exception):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if done == 7:
            raise Killed

    with pytest.raises(Killed):
        hs.finetune(path, out=tmp_path / "cut", save_every=3, progress=kill, **options)
    with pytest.raises(UsageError, match="another teachers"):
        hs.finetune(path, out=tmp_path / "cut", resume=True, **{**options, "teacher": [path]})
    resumed = hs.finetune(path, out=tmp_path / "cut", resume=True, **options)
    assert resumed.path.read_bytes() == whole.path.read_bytes()


def test_answers_teach_as_who_gave_them(
    tiny: MAKE, images: SPEC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of `eval --predictions`, for the very data: inputs stay as they are, whatever the recipe says."""
    monkeypatch.chdir(tmp_path)
    path, teacher, data = tiny(), tiny("teacher.safetensors", seed=4), images()
    hs.evaluate([teacher], data=data, predictions="answers.safetensors", device="cpu")
    options = {"data": data, "recipe": "teach", "device": "cpu", "seed": 2}
    still = EXACT | {"optimizer": "sgd", "lr": "0.1"}
    live = hs.finetune(path, teacher=[teacher], set=still, out="live", **options)
    restless = still | {"mixup": "1", "augment.hflip": "0.5"}
    read = hs.finetune(path, teacher=["answers.safetensors"], set=restless, out="read", **options)
    assert read.trained.loss == pytest.approx(live.trained.loss, abs=1e-5)
    for name, tensor in load_file(live.path).items():
        torch.testing.assert_close(load_file(read.path)[name], tensor, rtol=0, atol=1e-6)
    with pytest.raises(DataError, match="answers for 40 other samples than the 30 of"):
        hs.finetune(
            path,
            teacher=["answers.safetensors"],
            out="x",
            **{**options, "data": images("o.npz", rows=30)},
        )
    with pytest.raises(DataError, match="answers for 40 other samples than the 40 of"):
        hs.finetune(
            path,
            teacher=["answers.safetensors"],
            out="x",
            **{**options, "data": images("o.npz", seed=3)},
        )


@pytest.mark.parametrize("what", ["classes", "inputs"])
def test_teachers_of_another_kind(what: str, tiny: MAKE, tmp_path: Path, images: SPEC) -> None:
    path, other = tiny(), tmp_path / "other.safetensors"
    opened = open_single(path)
    if what == "classes":
        FAMILIES["timm ViT"].write(tmp_path / "other")
        other = tmp_path / "other"
    else:
        from hydrasurgeon.checkpoints.checkpoint import rewritten
        from hydrasurgeon.checkpoints.writing import save

        model = opened.manifest.model
        model = model.model_copy(
            update={
                "preprocess": {**model.preprocess, "mean": [0.1] * len(model.preprocess["mean"])}
            }
        )
        save(
            other,
            opened.tensors.planned(),
            lambda sha: rewritten(opened.manifest, model=model, weights_sha256=sha),
        )
    words = [
        "finetune",
        str(path),
        "--data",
        images(),
        "--teacher",
        str(other),
        "--recipe",
        "teach",
    ]
    assert run([*words, "-o", str(tmp_path / "t")]) == 4
    assert not (tmp_path / "t.safetensors").exists()
