"""Large tables: parts chosen by content, weights learnt in passes, fewer rows held out; and the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from hydrasurgeon.building.one_table import with_val
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.data.folds import FEWEST_OF_CLASS, some_of
from hydrasurgeon.data.labels import LabelColumn
from hydrasurgeon.data.samples import Rows
from hydrasurgeon.decision.bag_of_words_fit import passes, path
from hydrasurgeon.errors import DataError
from hydrasurgeon.memo import sharing
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.run import bag_of_words as run_words

CLASSES = 4


def table(count: int) -> Rows:
    """One class in a hundred is rare."""
    samples = Rows("all.csv", [f"text {row}" for row in range(count)], "text")
    labels = np.array([row % 3 if row % 100 else 3 for row in range(count)])
    samples.written = LabelColumn(labels, ("a", "b", "c", "d"))
    return samples


def test_a_part_follows_the_content_and_keeps_rare_classes() -> None:
    samples = table(1000)
    rows = some_of(samples, 90)
    assert 90 <= len(rows) <= 90 + FEWEST_OF_CLASS
    assert samples.labels is not None
    counts = np.bincount(samples.labels[rows])
    assert counts[3] == FEWEST_OF_CLASS
    assert counts[:3].max() - counts[:3].min() <= 1
    order = np.random.default_rng(0).permutation(1000)
    shuffled = samples.at(order)
    assert {*order[some_of(shuffled, 90)]} == {*rows}
    assert {*some_of(samples, 90)} <= {*some_of(samples, 300)}
    assert some_of(samples, 1000).tolist() == list(range(1000))


def bags(seed: int, count: int = 3000) -> tuple[list[np.ndarray], np.ndarray]:
    """Texts of eight ids, of which two tell the class in most cases."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count)
    ids = random.integers(10, 60, (count, 8))
    told = random.random(count) < 0.9
    ids[told, :2] = 2 * labels[told, None] + random.integers(0, 2, (told.sum(), 2))
    ids[:, 7] = 100 + np.arange(count)  # so that no two are alike
    return [row.astype(np.int64) for row in ids], labels


@pytest.mark.slow
def test_passes_come_near_the_least_loss_whatever_the_order() -> None:
    texts, labels = bags(0)
    targets, (new, truth) = np.eye(CLASSES)[labels], bags(1)

    def nll(outputs: np.ndarray) -> float:
        return float(-log_softmax(outputs, axis=1)[np.arange(len(truth)), truth].mean())

    last = passes(texts, targets, "softmax")
    exact = path(texts, targets, "softmax", np.unique(np.concatenate(texts)), (3.0,))[3.0]
    assert nll(last.outputs(new)) < 1.3 * nll(exact.outputs(new)) < 0.3
    order = np.random.default_rng(0).permutation(len(texts))
    other = passes([texts[row] for row in order], targets[order], "softmax")
    assert len({zlib.crc32(text.tobytes()) for text in texts}) == len(texts)
    assert other.outputs(new) == pytest.approx(last.outputs(new), abs=1e-5)


def test_texts_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = bags(0, 300)
    reader = path(texts, np.eye(CLASSES)[labels], "softmax", np.arange(400), (3.0,))[3.0]
    at_once = reader.read(texts)
    monkeypatch.setattr(run_words, "AT_ONCE", 50)
    assert np.array_equal(reader.read(texts), at_once)


@pytest.mark.parametrize(("count", "percent"), [(5000, 20), (100_000, 2), (1_000_000, 1)])
def test_a_large_table_holds_a_smaller_part_out(count: int, percent: int) -> None:
    rows = Rows("all.csv", range(count), "text")
    rows.written = LabelColumn(np.arange(count) % 5, ("a", "b", "c", "d", "e"))
    options = BuildOptions.model_construct(data="all.csv", val=None, risk=None, coverage=None)
    split, _ = with_val(options, lambda: rows, body=True)
    assert split.data == f"all.csv#split,0-{100 - percent}"
    assert split.val == f"all.csv#split,{100 - percent}-100"


def test_certifying_rows_come_on_top_of_those_that_choose() -> None:
    rows = Rows("all.csv", range(100_000), "text")
    rows.written = LabelColumn(np.arange(100_000) % 5, ("a", "b", "c", "d", "e"))
    options = BuildOptions.model_construct(data="all.csv", val=None, risk=0.05, coverage=None)
    split, _ = with_val(options, lambda: rows, body=True)
    assert split.val == "all.csv#split,94-100"


def test_parts_of_a_table_come_from_one_reading(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    lines = [f"text {row},{'abc'[row % 3]}" for row in range(60)]
    path.write_text("\n".join(["text,label", *lines]))
    alone = [open_data(f"{path}#split,{part}") for part in ("0-80", "80-100")]
    with sharing():
        shared = [open_data(f"{path}#split,{part}") for part in ("0-80", "80-100")]
        for one, other in zip(alone, shared, strict=True):
            assert other.fingerprint() == one.fingerprint()
            assert other.spec == one.spec
        path.unlink()
        assert open_data(f"{path}#split,0-80") is shared[0]
    with pytest.raises(DataError):
        open_data(f"{path}#split,0-80")


@pytest.mark.slow
def test_build_draws_what_it_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["build", "demo:backbone", "--data", "demo:train", "--val", "demo:val"]
    words += ["--budget", "macs=0.7,1", "--limit", "300", "-o", "front"]
    assert run(words) == 0
    out, err = capsys.readouterr()
    picture = (tmp_path / "front" / "front.svg").read_bytes()
    tree = ET.fromstring(picture)
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "multiply-adds, relative to the unpruned model" in texts
    assert "NLL (nats)" in texts
    marked = [
        circle.find("{http://www.w3.org/2000/svg}title").text  # type: ignore[union-attr]
        for circle in tree.iter("{http://www.w3.org/2000/svg}circle")
        if circle.get("r") == "7"
    ]
    assert all(title is not None and title.startswith("macs=") for title in marked)
    assert marked
    # A log has one line for each stage, and the table and the advice fit a terminal.
    stages = [line for line in err.splitlines() if line.startswith("stage ")]
    assert len(stages) == len({line.split(";")[0] for line in stages}) == 2
    shown = out.split("Compared with")[0]
    assert "recommended: front/macs-" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert run([*words, "--force"]) == 0
    assert (tmp_path / "front" / "front.svg").read_bytes() == picture
