"""Predictions that share rows with what is fitted on: what certifies must not be among it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.decision import bag_of_words_fit
from hydrasurgeon.errors import DataError
from hydrasurgeon.measuring.predictions import read_outputs
from hydrasurgeon.run import bag_of_words

VAL, TRAIN, TEST = 400, 200, 4000
RISK, COVERAGE = 0.3, 0.9
DRAWS = 60


def drawn(random: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """What a weak model says of texts of 12 tokens, some of which depend on one of three classes."""
    labels = random.integers(0, 3, rows)
    tokens = random.integers(0, 300, (rows, 12))
    tokens = np.where(random.random((rows, 12)) < 0.06, 300 + labels[:, None], tokens)
    logits = np.eye(3)[labels] + random.normal(0, 0.8, (rows, 3))
    return {"logits": logits, "tokens": tokens, "labels": labels}


def joined(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([values, other[name]]) for name, values in one.items()}


def files(folder: Path, random: np.random.Generator, share: float) -> dict[str, Path]:
    """VAL, and TRAIN that holds a share of VAL's rows."""
    val = drawn(random, VAL)
    some = {name: values[: int(share * VAL)] for name, values in val.items()}
    sets = {"val": val, "train": joined(some, drawn(random, TRAIN))}
    paths = {name: folder / f"{name}.npz" for name in sets}
    for name, arrays in sets.items():
        np.savez(paths[name], **arrays)
    return paths


@pytest.mark.slow
def test_promises_hold_where_a_twentieth_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bag_of_words_fit, bag_of_words):
        monkeypatch.setattr(module, "BUCKETS", 64)  # pairs take most of the time
    broken, covered, answered = 0, [], []
    for seed in range(DRAWS):
        random = np.random.default_rng(seed)
        paths = files(tmp_path, random, 0.05)
        done = hs.calibrate(
            predictions=paths["val"],
            fit_predictions=paths["train"],
            words="blend",
            risk=RISK,
            coverage=COVERAGE,
            ood_score="msp",
            out=tmp_path / "d.safetensors",
            force=True,
        )
        assert done.decision.fitted + done.decision.certified == 0.95 * VAL
        test = drawn(random, TEST)
        decision = hs.Decision.load(done.path).decide(test["logits"], None, test["tokens"])
        given = np.array([each not in ("abstain", "unfamiliar") for each in decision.answer])
        wrong = decision.labels[given] != test["labels"][given]
        broken += int(wrong.mean() > RISK)
        answered.append(given.mean())
        covered.append(decision.sets[np.arange(TEST), test["labels"]].mean())
    assert broken <= 7  # of 60 at 5 %: more have a probability of 0.7 %
    assert np.mean(covered) == pytest.approx(COVERAGE, abs=0.012)
    assert np.mean(answered) > 0.3


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_more_than_a_tenth_is_refused(
    share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = files(tmp_path, np.random.default_rng(0), share)
    command = ["calibrate", "--predictions", str(paths["val"])]
    command += ["--fit-predictions", str(paths["train"]), "-o", str(tmp_path / "d.safetensors")]
    assert run(command) == 5
    said = " ".join(capsys.readouterr().err.split())
    assert f"{100 * share:.0f} % of these rows are in --fit-predictions train.npz too" in said
    assert not (tmp_path / "d.safetensors").exists()


def featured(random: np.random.Generator, rows: int, width: int) -> dict[str, np.ndarray]:
    labels = np.arange(rows) % 3
    features = 2 * np.eye(3, width)[labels] + random.normal(size=(rows, width))
    return {"logits": features @ np.eye(width, 3), "features": features, "labels": labels}


@pytest.mark.parametrize(("shared", "noise"), [(6, 0.0), (6, 2e-6), (60, 2e-6), (0, 0.0)])
def test_features_tell_rows(shared: int, noise: float, tmp_path: Path) -> None:
    """Up to what batches of other sizes change, and whatever the unit of a column is."""
    random = np.random.default_rng(1)
    val, train = featured(random, 120, 5), featured(random, 300, 5)
    again = {name: values[:shared] * (1 + noise) for name, values in val.items()}
    again["labels"] = val["labels"][:shared]
    train = joined(train, again)
    for arrays in (val, train):
        arrays["features"] = arrays["features"] * [1, 1e4, 1, 1, 1] + [0, 5e4, 0, 0, 0]
    for name, arrays in {"val": val, "train": train}.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    about: Any = {
        "predictions": tmp_path / "val.npz",
        "fit_predictions": tmp_path / "train.npz",
        "ood_score": "mds",
        "out": tmp_path / "d.safetensors",
    }
    if shared == 60:
        with pytest.raises(DataError, match=r"val\.npz: 50 % of these rows are in --fit-pred"):
            hs.calibrate(**about)
        return
    done = hs.calibrate(**about)
    assert done.decision.fitted + done.decision.certified == 120 - shared
    note = "val.npz: 6 of its 120 rows are in --fit-predictions train.npz too, and are left out"
    assert (note in done.notes) == (shared > 0)
    kept = read_outputs(tmp_path / "val.npz", labelled=True)
    assert len(kept) == 120
