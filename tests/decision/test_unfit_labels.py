"""calibrate refuses labels that its model's answers say nothing about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import DataError
from hydrasurgeon.tasks import TASKS, unfit
from hydrasurgeon.tasks.base import Calibration, Outputs


def predictions(folder: Path, labels: np.ndarray, logits: np.ndarray, name: str = "val") -> Path:
    path = folder / f"{name}.safetensors"
    save_file({"logits": logits.astype(np.float32), "labels": labels}, path)
    return path


def answers(rows: int = 600, classes: int = 4, scale: float = 6.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and logits that point to nine tenths of them."""
    random = np.random.default_rng(0)
    labels = np.arange(rows) % classes
    logits = random.normal(size=(rows, classes)) * scale / 6
    said = np.where(random.random(rows) < 0.9, labels, random.integers(classes, size=rows))
    logits[np.arange(rows), said] += scale
    return labels, logits


@pytest.mark.parametrize(
    "misfit",
    [
        lambda labels, logits: ((labels + 1) % 4, logits),
        lambda labels, logits: (labels[::-1].copy() // 2, logits),
        lambda labels, logits: (labels * 0, logits),
        lambda labels, logits: (labels, logits * 0),
        lambda labels, logits: (labels, logits * 0 + [0.0, 1.0, 2.0, 3.0]),
    ],
    ids=["rolled", "others'", "one class", "zero weights", "equal texts"],
)
def test_labels_that_do_not_fit_write_nothing(
    misfit: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = predictions(tmp_path, *misfit(*answers()))  # type: ignore[operator]
    out = tmp_path / "d.safetensors"
    assert run(["calibrate", "--predictions", str(path), "-o", str(out)]) == 5
    said = " ".join(capsys.readouterr().err.split())
    for word in ("do not fit", "accuracy 0.", "order"):
        assert word in said
    assert not out.exists()


def test_classes_in_another_order_though_the_labels_tell_something(tmp_path: Path) -> None:
    """Neighbours are alike, so that the NLL of rolled labels is below that of guessing; of ten
    classes two are swapped.
    """
    random = np.random.default_rng(0)
    labels = np.arange(1500) % 10
    distance = (np.arange(10) - labels[:, None]) % 10
    logits = random.normal(size=(1500, 10)) - 2.0 * np.minimum(distance, 10 - distance)
    for name, other in {
        "rolled": (labels + 1) % 10,
        "swapped": np.where(labels < 2, 1 - labels, labels),
    }.items():
        with pytest.raises(DataError, match=r"accuracy 0\.\d+, and 0\.[78]\d+ with the classes"):
            hs.calibrate(predictions=predictions(tmp_path, other, logits, name), out=tmp_path / "o")
    # A weak model of few samples is better in another order by chance.
    weak = random.normal(size=(400, 10)) + 0.9 * np.eye(10)[labels[:400]]
    done = hs.calibrate(predictions=predictions(tmp_path, labels[:400], weak), out=tmp_path / "w")
    assert done.decision.accuracy < 0.4


def test_classes_apart_may_have_the_lowest_temperature(tmp_path: Path) -> None:
    """Where every answer is right no temperature is low enough; else the logits are too small."""
    labels = np.arange(200) % 3
    apart = np.eye(3)[labels] * 0.01
    done = hs.calibrate(predictions=predictions(tmp_path, labels, apart), out=tmp_path / "d")
    assert done.decision.temperature == pytest.approx(0.05, rel=1e-4)
    assert done.decision.accuracy == 1
    few_wrong = np.where(np.arange(200) % 20 == 0, (labels + 1) % 3, labels)
    with pytest.raises(DataError, match="too large or too small"):
        hs.calibrate(predictions=predictions(tmp_path, few_wrong, apart, "w"), out=tmp_path / "e")


@pytest.mark.parametrize("kind", ["three", "one logit", "many labels"])
def test_answers_that_are_all_right_are_not_too_sure(kind: str) -> None:
    """They keep the model's own probabilities, and the NLL stays what it is; Platt's bias moves."""
    outputs = few(kind, 200, 0)
    truth = outputs.truth.reshape(200, 1, -1)
    sure = TASKS[KINDS[kind]].read(20 * truth.astype(np.float64) - 10)
    if kind == "three":
        sure = 20.0 * np.eye(3)[outputs.truth][:, None]
    found = calibrated(kind, replace(outputs, logits=sure.astype(np.float32)))
    assert found.losses["temperature"] <= found.losses["before"] + 0.01
    if kind != "many labels":
        assert found.constants["temperature"] == pytest.approx(1, rel=1e-3)


def test_few_ood_samples_choose_nothing(tmp_path: Path) -> None:
    """Two OOD samples whose entropy tells them apart, and whose largest probability does not."""
    labels, logits = answers()
    val = predictions(tmp_path, labels, logits)

    def calibrated(rows: int) -> hs.Calibrated:  # type: ignore[name-defined]
        odd = predictions(tmp_path, labels[:rows], logits[:rows] * 0.3, f"ood{rows}")
        return hs.calibrate(
            predictions=val, ood_predictions=[odd], out=tmp_path / f"d{rows}.safetensors"
        )

    few, enough = calibrated(19), calibrated(20)
    assert few.decision.ood.chosen_by == "default"
    assert few.decision.ood.auroc == {}
    assert any("19 OOD samples are too few" in note for note in few.notes)
    assert enough.decision.ood.chosen_by == "ood"
    assert set(enough.decision.ood.auroc) >= {"msp", "entropy"}


SEEDS = range(20)


def few(kind: str, count: int, seed: int) -> Outputs:
    """A model that tells something, on few samples: what it answers, and the labels."""
    random = torch.Generator().manual_seed(1000 * seed + count)
    classes = {"three": 3, "rare": 2, "one logit": 2, "many labels": 8}[kind]
    noise = torch.randn(count, classes, generator=random).numpy()
    if kind == "many labels":
        labels = (torch.rand(count, classes, generator=random).numpy() < 0.15).astype(np.float32)
        logits = 3 * labels - 2 + noise
        return TASKS["multi_label"].outputs(Outputs(logits[:, None], None, labels))
    shares = [1 / 3] * 3 if kind == "three" else [0.95, 0.05]
    drawn = torch.multinomial(
        torch.tensor(shares), count, replacement=True, generator=random
    ).numpy()
    drawn[:2] = classes - 1
    labels = drawn[torch.randperm(count, generator=random).numpy()]
    logits = noise + 3 * np.eye(classes, dtype=np.float32)[labels]
    if kind == "three":
        return Outputs(logits[:, None], None, labels)
    logits[:, 0] += 1
    if kind == "rare":
        return Outputs(logits[:, None], None, labels)
    odds = logits[:, 1:] - logits[:, :1]
    return TASKS["binary"].outputs(Outputs(odds[:, None], None, labels.astype(np.float64)))


KINDS = {
    "three": "single_label",
    "rare": "single_label",
    "one logit": "binary",
    "many labels": "multi_label",
}


def calibrated(kind: str, outputs: Outputs) -> Calibration:
    cut = len(outputs.logits) // 2
    task = TASKS[KINDS[kind]]
    halves = outputs.at(slice(cut)), outputs.at(slice(cut, None))
    fit = task.calibrated(*halves)
    task.check_labels(*halves, fit)
    return fit


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [40, 60, 120])
def test_few_samples_of_a_model_that_tells_something_are_enough(kind: str, count: int) -> None:
    """Also where one half has no rare class, or is answered rightly throughout: no probability is
    then so sure that the other half costs far more than it would uncalibrated.
    """
    for seed in SEEDS:
        losses = calibrated(kind, few(kind, count, seed)).losses
        assert losses["temperature"] < losses["before"] + 0.5, seed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [40, 120])
def test_few_samples_whose_labels_are_others_are_refused(kind: str, count: int) -> None:
    for seed in SEEDS:
        outputs = few(kind, count, seed)
        if kind == "many labels":
            other = replace(outputs, labels=np.roll(outputs.truth, 1, axis=1))
        elif kind == "three":
            other = replace(outputs, labels=(outputs.truth + 1) % 3)
        else:
            shares = None if outputs.original_labels is None else 1 - outputs.original_labels
            other = replace(outputs, labels=1 - outputs.truth, original_labels=shares)
        with pytest.raises(DataError, match="do not fit"):
            calibrated(kind, other)


@pytest.mark.parametrize("kind", KINDS)
def test_shuffled_labels_are_refused_but_for_chance(kind: str) -> None:
    passed = 0
    for seed in SEEDS:
        outputs = few(kind, 120, seed)
        order = torch.randperm(120, generator=torch.Generator().manual_seed(seed)).numpy()
        shares = None if outputs.original_labels is None else outputs.original_labels[order]
        try:
            calibrated(kind, replace(outputs, labels=outputs.truth[order], original_labels=shares))
            passed += 1
        except DataError:
            pass
    assert passed <= 2


def test_two_of_many_labels_in_each_others_place() -> None:
    """Eight labels that know nothing of each other: most fit, and two are swapped."""
    for seed in SEEDS:
        outputs = few("many labels", 400, seed)
        swapped = outputs.truth[:, [1, 0, *range(2, 8)]]
        with pytest.raises(DataError, match=r"2 of them are correlated with them by -?0\.\d"):
            calibrated("many labels", replace(outputs, labels=swapped))


def test_labels_that_go_together_in_another_order() -> None:
    """Where labels are alike, those of another column tell something too."""
    for seed in SEEDS:
        random = torch.Generator().manual_seed(seed)
        common = torch.randn(400, 1, generator=random).numpy()
        own = torch.randn(400, 5, generator=random).numpy()
        labels = (common + own > 1).astype(np.float32)
        logits = 2 * (common + own) - 2 + torch.randn(400, 5, generator=random).numpy()
        outputs = TASKS["multi_label"].outputs(Outputs(logits[:, None], None, labels))
        calibrated("many labels", outputs)
        with pytest.raises(DataError, match="in another order"):
            calibrated("many labels", replace(outputs, labels=np.roll(labels, 1, axis=1)))


def test_logits_beyond_the_highest_temperature(tmp_path: Path) -> None:
    """Of another scale: it is not the labels that do not fit."""
    random = np.random.default_rng(0)
    labels = np.arange(200) % 3
    logits = random.normal(size=(200, 3)) + 1.5 * np.eye(3)[labels]
    path = predictions(tmp_path, labels, logits * 100)
    with pytest.raises(DataError, match="too large or too small to be calibrated"):
        hs.calibrate(predictions=path, out=tmp_path / "d")


@pytest.mark.parametrize("classes", [2, 7, 30])
def test_agreement_needs_no_column_for_each_class(classes: int) -> None:
    """As of one-hot labels, with a class that answers always alike."""
    draw = torch.Generator().manual_seed(classes)
    answers = torch.randn(60, classes, generator=draw, dtype=torch.float64).numpy()
    truth = torch.randint(0, classes, (60,), generator=draw).numpy()
    answers[np.arange(60), truth] += 0.5
    answers[:, 0] = -1.0
    columns = np.eye(classes)[truth]
    held = unfit.agreement(answers, columns)
    assert abs(held) > 0.5
    assert unfit.agreement_with_classes(answers, truth) == pytest.approx(held, rel=1e-9)
