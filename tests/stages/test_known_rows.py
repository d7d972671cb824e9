"""Validation data that are none: copies, and rows that anything was fitted on."""

from __future__ import annotations

import base64
import csv
import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_families import FAMILIES, WORDS

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.errors import DataError
from hydrasurgeon.measuring import known


def texts(count: int, seed: int) -> list[tuple[str, int]]:
    """The first of them are the same, however many."""
    draw = random.Random(seed)
    labels = [draw.randrange(3) for _ in range(count)]
    return [(f"{WORDS[label]} film s{seed}r{row}", label) for row, label in enumerate(labels)]


def written(path: Path, rows: list[tuple[str, int]]) -> str:
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("text", "label"))
        lines.writerows(rows)
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of 60 texts, whose epoch 30 others chose."""
    folder = tmp_path_factory.mktemp("known")
    FAMILIES["BERT"].write(folder / "body")
    hs.finetune(
        folder / "body",
        data=written(folder / "train.csv", texts(60, 1)),
        val=written(folder / "chose.csv", texts(30, 2)),
        recipe="text",
        set={"epochs": "8", "lr": "1e-3", "batch_size": "8"},
        out=folder / "trained.safetensors",
        device="cpu",
    )
    return folder / "trained.safetensors"


def calibrated(model: Path, tmp_path: Path, rows: list[tuple[str, int]], **more: Any) -> Any:
    return hs.calibrate(
        model,
        data=written(tmp_path / "val.csv", rows),
        ood_score="msp",
        out=tmp_path / "c.safetensors",
        device="cpu",
        force=True,
        **more,
    )


@pytest.mark.usefixtures("labels_need_not_fit")
def test_copies_promise_no_more_than_what_they_are_of(trained: Path, tmp_path: Path) -> None:
    once = texts(24, 5)
    for rows in (once, once * 4):
        with pytest.raises(DataError, match="too few for --id-flagged") as refused:
            calibrated(trained, tmp_path, rows)
        assert refused.value.message.startswith("16 rows")
    # A third of the texts fits, and of the copies, but for copies of texts that certify.
    done = calibrated(trained, tmp_path, texts(60, 5) + texts(20, 5))
    assert 20 <= done.decision.fitted <= 26
    assert done.decision.certified == 54
    told = "20 of these 80 rows are copies of others; the promises hold with and without them"
    assert any(note.startswith(told) for note in done.notes)


def test_what_it_was_trained_on_certifies_nothing(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="100 % of these rows were used to train the model"):
        calibrated(trained, tmp_path, texts(60, 1))
    done = calibrated(trained, tmp_path, texts(6, 1) + texts(94, 7))
    assert done.decision.fitted + done.decision.certified == 94
    assert any("6 of its 100 rows were used to train the model" in note for note in done.notes)
    done = calibrated(trained, tmp_path, texts(30, 2) + texts(60, 8))
    assert any("30 of its 90 rows were used to choose" in note for note in done.notes)


def test_surgery_keeps_what_was_seen_and_eval_says_it(trained: Path, tmp_path: Path) -> None:
    parts = [
        hs.prune(trained, method="random", keep=keep, out=tmp_path / f"m{keep}.safetensors").path
        for keep in (1, 2)
    ]
    hydra = hs.fuse(parts, out=tmp_path / "hydra.safetensors").path
    with pytest.raises(DataError, match="100 % of these rows were used to train the model"):
        calibrated(hydra, tmp_path, texts(60, 1))
    data = written(tmp_path / "some.csv", texts(5, 1) + texts(15, 9))
    notes = hs.evaluate(hydra, data=data, device="cpu").notes
    assert any("trained on 5 of these 20 rows" in note for note in notes)


@pytest.mark.usefixtures("labels_need_not_fit")
def test_scores_and_repairs_record_their_rows(tmp_path: Path) -> None:
    FAMILIES["BERT"].write(tmp_path / "source")
    data = written(tmp_path / "d.csv", texts(60, 1))
    out = tmp_path / "s.safetensors"
    scored = hs.score(tmp_path / "source", method="taylor", data=data, out=out, device="cpu").path
    done = calibrated(scored, tmp_path, texts(60, 1) + texts(30, 3))
    assert any(
        "60 of its 90 rows were used to choose the model's heads" in note for note in done.notes
    )
    plain = hs.prune(scored, method="taylor", keep=2, out=tmp_path / "plain.safetensors").path
    again = calibrated(plain, tmp_path, texts(60, 1) + texts(30, 3))
    assert any(
        "60 of its 90 rows were used to choose the model's heads" in note for note in again.notes
    )
    fitted = {"data": data, "device": "cpu", "out": tmp_path / "refitted.safetensors"}
    refitted = hs.prune(scored, method="taylor", keep=2, **fitted).path
    with pytest.raises(
        DataError, match="67 % of these rows were used by `prune --data` to refit the model"
    ):
        calibrated(refitted, tmp_path, texts(60, 1) + texts(30, 3))


@pytest.mark.usefixtures("labels_need_not_fit")
def test_what_fitted_a_decision_state_is_said_while_it_decides(
    trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "fitted.safetensors"
    fitted = {"fit_data": written(tmp_path / "f.csv", texts(90, 4)), "ood_score": "mds"}
    val = written(tmp_path / "v.csv", texts(90, 7))
    done = hs.calibrate(trained, data=val, out=out, device="cpu", **fitted)
    data = written(tmp_path / "some.csv", texts(5, 4) + texts(15, 9))
    notes = hs.evaluate(done.path, data=data, device="cpu").notes
    assert any("trained on 5 of these 20 rows" in note for note in notes)
    # Words that stay have learnt from them; a state without is made anew.
    with pytest.raises(DataError, match="100 % of these rows were used to train the model"):
        calibrated(done.path, tmp_path, texts(90, 4))
    again = calibrated(done.path, tmp_path, texts(90, 4), words="off")
    assert not any("trained" in note for note in again.notes)
    assert not any("trained" in n for n in hs.evaluate(again.path, data=data, device="cpu").notes)


@pytest.mark.usefixtures("labels_need_not_fit")
def test_promises_are_too_good_only_where_such_rows_certify(trained: Path, tmp_path: Path) -> None:
    """The rows that chose the epoch may fit, where others certify."""
    alone = calibrated(trained, tmp_path, texts(30, 2) + texts(70, 7))
    assert any(note.endswith("give rows that chose nothing") for note in alone.notes)
    fresh = written(tmp_path / "fresh.csv", texts(100, 7))
    apart = calibrated(trained, tmp_path, texts(30, 2) + texts(70, 9), certify=fresh)
    (note,) = [note for note in apart.notes if "were used to choose the model" in note]
    assert note.endswith("results on them are slightly too good")


def shared_files(folder: Path, count: int) -> tuple[str, str]:
    """VAL of 100 rows and TRAIN of 100, which has so many of VAL's."""
    val = written(folder / "v.csv", texts(100, 7))
    return val, written(folder / "f.csv", texts(count, 7) + texts(100 - count, 12))


@pytest.mark.usefixtures("labels_need_not_fit")
@pytest.mark.parametrize("words", ["off", "blend", "auto"])
def test_rows_of_fit_data_certify_nothing(trained: Path, tmp_path: Path, words: str) -> None:
    """What the reader of words and the OOD score are fitted on now counts like what trained before."""
    out, about = tmp_path / "c.safetensors", {"device": "cpu", "words": words, "force": True}
    val, fit = shared_files(tmp_path, 5)
    done = hs.calibrate(trained, data=val, fit_data=fit, out=out, **about)
    assert done.decision.fitted + done.decision.certified == 95
    assert f"--data {val}: 5 of its 100 rows are in --fit-data {fit} too, and are left out" in (
        note.replace("v.csv", val).replace("f.csv", fit) for note in done.notes
    )
    for count in (30, 80):
        val, fit = shared_files(tmp_path, count)
        with pytest.raises(DataError, match=f"{count} % of these rows are in --fit-data"):
            hs.calibrate(trained, data=val, fit_data=fit, out=out, **about)


def test_more_than_a_tenth_by_the_command_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    val, fit = shared_files(tmp_path, 11)
    files = ["--data", val, "--fit-data", fit, "-o", str(tmp_path / "c.safetensors")]
    assert run(["calibrate", str(trained), *files]) == 5
    said = " ".join(capsys.readouterr().err.split())
    assert "11 % of these rows are in --fit-data" in said
    assert not (tmp_path / "c.safetensors").exists()


@pytest.mark.usefixtures("labels_need_not_fit")
def test_a_tenth_is_of_all_that_was_fitted_on(trained: Path, tmp_path: Path) -> None:
    """By the history and by --fit-data together, each row once."""
    fit = written(tmp_path / "f.csv", texts(6, 1) + texts(8, 7) + texts(60, 12))
    done = calibrated(trained, tmp_path, texts(4, 1) + texts(5, 7) + texts(91, 8), fit_data=fit)
    assert done.decision.fitted + done.decision.certified == 91
    with pytest.raises(
        DataError, match="14 % of these rows were used to train the model or are in"
    ):
        calibrated(trained, tmp_path, texts(6, 1) + texts(8, 7) + texts(86, 8), fit_data=fit)


@pytest.mark.usefixtures("labels_need_not_fit")
def test_unlabelled_rows_of_val_are_not_learnt_from(trained: Path, tmp_path: Path) -> None:
    """They tell no labels; but what learnt them answers otherwise on them than on new ones."""
    fit = {"fit_data": written(tmp_path / "f.csv", texts(60, 12)), "words": "blend"}
    rows = texts(100, 7)
    for more, count in ((texts(30, 13), 100), (texts(30, 13) + rows, 100)):
        pool = written(tmp_path / "u.csv", more)
        done = calibrated(trained, tmp_path, rows, unlabelled=pool, **fit)
        assert done.decision.fitted + done.decision.certified == count
        record = done.manifest.history[-1].data[-1]
        assert record.rows == 30
    assert any("100 of its 130 rows are in --data" in note for note in done.notes)
    with pytest.raises(DataError, match="all of its 100 rows are in --data"):
        calibrated(trained, tmp_path, rows, unlabelled=written(tmp_path / "u.csv", rows), **fit)
    place = tmp_path / "again"
    place.mkdir()
    again = calibrated(done.path, place, texts(20, 13) + texts(60, 14))
    assert any(
        "20 of its 80 rows were used, without labels, to fit the bag-of-words" in n
        for n in again.notes
    )
    assert again.decision.fitted + again.decision.certified == 80


def test_hashes_are_those_of_the_texts(trained: Path) -> None:
    data = open_checkpoint(trained).manifest.history[0].data[0]
    assert data.seen is not None
    stored = np.frombuffer(base64.b64decode(data.seen), dtype="<u4").tolist()
    samples = open_data(str(trained.with_name("train.csv")))
    own = [hashlib.sha256(samples.content(i)).digest()[:4] for i in range(60)]
    assert stored == sorted(int.from_bytes(each, "little") for each in own)


def test_of_more_rows_than_are_kept_a_part_stands_for_all(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "MOST_SEEN", 20)
    record = known.record(open_data(str(trained.with_name("train.csv"))))
    assert record.seen is not None
    rows, told = known.is_seen(open_data(str(trained.with_name("train.csv"))), record.seen)
    assert rows.sum() == told.sum() == 20
    other = open_data(written(tmp_path / "o.csv", texts(500, 11)))
    rows, told = known.is_seen(other, record.seen)
    assert rows.sum() == 0
    assert 100 < told.sum() < 250
