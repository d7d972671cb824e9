"""build of one table: rows held out by their content, and models of folds where rows are few."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_files import write_lines
from torch import nn
from word_tables import WORD, Row, texts, write, write_body

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.data.folds import FOLDS, NO_FOLD, folds_of
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.tasks import SINGLE
from hydrasurgeon.tuning import probe
from hydrasurgeon.tuning.losses import losses_of


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_body(tmp_path_factory.mktemp("tiny") / "body")


def build(body: Path, table: Path, **more: Any) -> Any:
    settings: dict[str, Any] = {"data": str(table), "device": "cpu", "out": table.parent / "chosen"}
    return hs.build(body, **settings | more)


def many_classes(count: int, rows: int) -> list[Row]:
    """Return texts of which the first four words tell the class."""
    starts = [" ".join(words) for words in itertools.product(WORD, repeat=4)][:count]
    return [
        {"text": f"{start} {start} {WORD[row]}", "label": f"c{at:03d}"}
        for row in range(rows)
        for at, start in enumerate(starts)
    ]


def contents(spec: str) -> list[str]:
    samples = open_data(spec)
    return sorted(str(samples.read(row)) for row in range(len(samples)))


def test_the_same_rows_are_held_out_in_any_order_of_the_table(tmp_path: Path) -> None:
    rows = texts(200, 4)
    rows += [*rows[:30], {"text": "alone", "label": "rare"}]
    first = write(tmp_path / "first.csv", rows)
    second = write(tmp_path / "second.csv", rows[::-1])
    held_out = contents(f"{first}#split,80-100")
    assert held_out == contents(f"{second}#split,80-100")
    kept = contents(f"{first}#split,0-80")
    assert sorted(held_out + kept) == sorted(row["text"] for row in rows)
    assert not {*held_out} & {*kept}
    label_of = {row["text"]: row["label"] for row in rows}
    totals = Counter(row["label"] for row in rows)
    counts = Counter(label_of[text] for text in held_out)
    assert counts.pop("rare", 0) == 0
    # The class of a copy may have one more or less: units of two rows stay together.
    assert all(abs(counts[name] - totals[name] / 5) <= 2 for name in counts)
    assert len(counts) == 4


def test_rows_of_one_group_are_on_one_side(tmp_path: Path) -> None:
    rows = [{**row, "group": f"g{at // 5}"} for at, row in enumerate(texts(200, 4))]
    rows.append({**rows[0], "group": "g39"})  # a copy ties two groups together
    table = write(tmp_path / "all.csv", rows)
    sides = [open_data(f"{table}#group,group#split,{part}").groups for part in ("0-80", "80-100")]
    kept, held_out = ({*groups} for groups in sides if groups is not None)
    assert held_out
    assert not kept & held_out
    assert ("g0" in kept) == ("g39" in kept)


def test_a_part_of_a_part_is_disjoint_from_the_rest(tmp_path: Path) -> None:
    table = write(tmp_path / "all.csv", texts(100, 4))
    outer = contents(f"{table}#part,50-100")
    inner = [contents(f"{table}#part,50-100+{part}") for part in ("0-33", "33-100")]
    assert sorted(inner[0] + inner[1]) == outer
    assert [len(part) for part in inner] == [16, 34]


def test_folds_judge_each_row_once_but_a_class_of_one(tmp_path: Path) -> None:
    rows = [*texts(50, 5), {"text": "alone", "label": "rare"}]
    folds = folds_of(open_data(str(write(tmp_path / "all.csv", rows))))
    assert folds[-1] == NO_FOLD
    for label in range(5):
        assert Counter(folds[label:50:5].tolist()) == dict.fromkeys(range(FOLDS), 2)


def test_logits_out_of_fold_do_not_depend_on_labels_of_the_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "PENALTIES", ())
    random = torch.Generator().manual_seed(0)
    features = torch.randn(60, 4, generator=random, dtype=torch.float64)
    labels = torch.arange(60) % 3
    folds, layer = np.arange(60) // 12, nn.Linear(4, 3)
    losses = losses_of(SINGLE).losses
    _, before = probe.out_of_fold(features, labels, folds, layer, losses)
    changed = labels.clone()
    changed[folds == 2] = 0
    _, after = probe.out_of_fold(features, changed, folds, layer, losses)
    assert torch.equal(before[folds == 2], after[folds == 2])
    assert not torch.allclose(before[folds == 1], after[folds == 1], atol=1e-3)
    weight, bias = probe.logistic(features[folds != 1], labels[folds != 1], layer, losses)
    assert torch.allclose(before[folds == 1], features[folds == 1] @ weight.T + bias)


def test_the_fits_of_a_cross_fitting_share_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many classes would take hours: each fit gets fewer steps, and no fewer than the least."""
    random = torch.Generator().manual_seed(0)
    features = torch.randn(100, 8, generator=random, dtype=torch.float64)
    labels = torch.randint(5, (100,), generator=random)
    folds, layer = np.arange(100) // 20, nn.Linear(8, 5)
    counted: list[int] = []

    def losses(logits: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        counted.append(len(logits))
        return losses_of(SINGLE).losses(logits, truth)

    def evaluations() -> int:
        counted.clear()
        probe.out_of_fold(features, labels, folds, layer, losses)
        return sum(count == 80 for count in counted)  # a fit sees four folds

    converged = evaluations()
    monkeypatch.setattr(probe, "FEWEST_STEPS", 2)
    monkeypatch.setattr(probe, "WORK_TOGETHER", 1.0)
    fits = FOLDS * (1 + len(probe.PENALTIES))
    assert fits <= evaluations() <= 4 * fits < converged


@pytest.mark.slow
def test_few_rows_without_a_signal_show_none(body: Path, tmp_path: Path) -> None:
    """What the model was fitted to would look right on every row."""
    random = np.random.default_rng(1)
    rows = [{**row, "label": f"c{random.integers(4)}"} for row in texts(120, 4)]
    built = build(body, write(tmp_path / "all.csv", rows))
    worth = built.front[0].worth
    assert worth["accuracy"] < 0.4
    assert worth["nll"] > 0.95 * math.log(4)
    assert any("no better than by chance" in note for note in built.notes)


@pytest.mark.slow
def test_estimates_hold_on_fresh_rows(body: Path, tmp_path: Path) -> None:
    built = build(body, write(tmp_path / "all.csv", texts(150, 3)))
    fresh = write(tmp_path / "fresh.csv", texts(600, 3, seed=9))
    (result,) = hs.evaluate([built.path], data=str(fresh), device="cpu").report.results
    worth = built.front[0].worth
    assert result.id.accuracy == pytest.approx(worth["accuracy"], abs=0.1)
    assert result.id.nll == pytest.approx(worth["nll"], abs=0.2)
    decision = open_checkpoint(built.path).manifest.decision
    assert decision is not None
    assert decision.estimated
    assert decision.abstain is None
    assert any("estimates of five folds" in note for note in built.notes)


@pytest.mark.slow
def test_a_fraction_builds_what_the_two_specs_build(body: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "all.csv", texts(150, 3))
    one = build(body, table, val="0.2", seeds=1, out=tmp_path / "one.safetensors")
    specs = {"data": f"{table}#split,0-80", "val": f"{table}#split,80-100"}
    two = build(body, table, seeds=1, out=tmp_path / "two.safetensors", **specs)
    assert one.path.read_bytes() == two.path.read_bytes()


REFUSED = {
    "a promise of rows that train": ({"val": "cross", "risk": 0.1}, UsageError, "--val 0.2"),
    "no fraction": ({"val": "1.5"}, UsageError, "--val 0.2"),
    "too few for a promise": ({"risk": 0.1}, DataError, ""),
}


@pytest.mark.parametrize(("options", "error", "hint"), REFUSED.values(), ids=REFUSED)
def test_refused(
    body: Path, tmp_path: Path, options: Row, error: type[Exception], hint: str
) -> None:
    with pytest.raises(error) as refused:
        build(body, write(tmp_path / "all.csv", texts(60, 3)), **options)
    assert hint in str(refused.value.hint)
    assert not (tmp_path / "chosen.build").exists()


@pytest.mark.slow
def test_only_a_probe_of_these_rows_is_cross_fitted(body: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "all.csv", texts(60, 3))
    settings: Row = {"device": "cpu", "data": str(table)}
    made = hs.finetune(body, recipe="probe", out=tmp_path / "probe.safetensors", **settings).path
    hs.calibrate(made, cross=True, out=tmp_path / "sure.safetensors", **settings)
    other = {**settings, "data": str(write(tmp_path / "other.csv", texts(60, 3, seed=5)))}
    with pytest.raises(UsageError, match="is not what `finetune --recipe probe` made"):
        hs.calibrate(made, cross=True, out=tmp_path / "wrong.safetensors", **other)
    with pytest.raises(DataError) as refused:
        hs.calibrate(made, out=tmp_path / "wrong.safetensors", **settings)
    assert f"finetune --data '{table.name}#split,0-80'" in str(refused.value.hint)
    with pytest.raises(UsageError, match="chooses the penalty of a probe"):
        hs.finetune(body, recipe="text", val="cross", out=tmp_path / "t.safetensors", **settings)


TABLES: dict[str, tuple[Callable[[], list[Row]], str]] = {
    "eight rows of two classes": (lambda: texts(16, 2), "promises nothing"),
    "thirty rows": (lambda: texts(30, 3), ""),
    "three hundred classes": (lambda: many_classes(300, 3), ""),
    "a class with one row": (
        lambda: [*texts(40, 2), {"text": "alone", "label": "rare"}],
        "all.csv: rare has too few rows to be judged and is learnt all the same",
    ),
    "classes with one row": (
        lambda: [*texts(40, 2), *({"text": f"alone {at}", "label": f"r{at}"} for at in range(4))],
        "all.csv: 4 classes (r0, r1, r2, …) have too few rows to be judged",
    ),
    "three of five rows in one class": (
        lambda: [*texts(24, 2), *({**row, "label": "c0"} for row in texts(36, 1, seed=3))],
        "",
    ),
    "numbers": (lambda: [{**row, "label": int(row["label"][1:]) + 5} for row in texts(40, 2)], ""),
    "booleans": (lambda: [{**row, "label": row["label"] == "c0"} for row in texts(40, 2)], ""),
    "contradicting copies": (
        lambda: [*texts(40, 2), *({**row, "label": "c1"} for row in texts(4, 2))],
        "2 texts have two labels: 'film the not not plot plot film' (c0 in row 0, c1 in row 40); "
        "'film not not the a not not' (c0 in row 2, c1 in row 42)",
    ),
    "short and long texts": (
        lambda: [
            *texts(40, 2),
            {"text": "x", "label": "c0"},
            {"text": "the " * 5000, "label": "c1"},
        ],
        "",
    ),
    "two languages": (
        lambda: [
            *texts(30, 2),
            *({"text": f"größe {at} ist 東京", "label": "c1"} for at in range(9)),
        ],
        "",
    ),
    "an id that looks like a label": (
        lambda: [{"category": at, **row} for at, row in enumerate(texts(40, 2))],
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "note"), TABLES.values(), ids=TABLES)
def test_any_table(
    body: Path,
    tmp_path: Path,
    rows: Callable[[], list[Row]],
    note: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "PENALTIES", ())  # a sixth of the fits
    table = write(tmp_path / "all.csv", rows())
    built = build(body, table)
    assert note in " ".join(built.notes)
    answers = hs.predict(built.path, data=str(table), device="cpu", out=tmp_path / "said.jsonl")
    assert answers.rows == len(rows())


BAD = {
    "four rows of two classes": (lambda: texts(8, 2), "8 rows are too few"),
    "ids": (
        lambda: [{**row, "label": f"id{at}"} for at, row in enumerate(texts(40, 2))],
        "each of its 40 rows has a class of its own",
    ),
    "one class": (lambda: texts(40, 1), "one class"),
    "an empty label": (
        lambda: [*texts(40, 2), {"text": "alone", "label": ""}],
        "row 40 has no label",
    ),
}


@pytest.mark.parametrize(("rows", "says"), BAD.values(), ids=BAD)
def test_bad_tables(
    body: Path,
    tmp_path: Path,
    rows: Callable[[], list[Row]],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = write(tmp_path / "all.csv", rows())
    assert run(["build", str(body), "--data", str(table), "-o", str(tmp_path / "chosen")]) == 5
    assert says in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"all.csv"}


def test_a_small_part_of_one_table(
    body: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write(tmp_path / "all.csv", texts(40, 2))
    words = ["--data", str(table), "--val", "0.2", "-o", str(tmp_path / "chosen")]
    assert run(["build", str(body), *words]) == 5
    assert "--val cross takes five folds" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_class_with_one_row_where_rows_are_held_out(body: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "all.csv", [*texts(150, 3), {"text": "alone", "label": "rare"}])
    built = build(body, table, val="0.2", seeds=1)
    assert any("rare has too few rows to be judged" in note for note in built.notes)
    manifest = open_checkpoint(built.path).manifest
    assert manifest.model.labels == ("c0", "c1", "c2", "rare")


@pytest.mark.slow
def test_labels_that_are_booleans(body: Path, tmp_path: Path) -> None:
    """JSON has them, and a CSV file of pandas has their names."""
    rows = [{**row, "label": row["label"] == "c0"} for row in texts(40, 2)]
    table = tmp_path / "all.jsonl"
    write_lines(table, rows)
    built = build(body, table)
    assert open_checkpoint(built.path).manifest.model.labels == ("False", "True")
    same = write(tmp_path / "all.csv", rows)
    settings: Row = {"data": str(same), "device": "cpu"}
    (result,) = hs.evaluate([built.path], **settings).report.results
    assert result.id.accuracy > 0.6


@pytest.mark.slow
def test_semicolons_and_a_byte_order_mark(body: Path, tmp_path: Path) -> None:
    rows = texts(40, 2)
    table = write(tmp_path / "all.csv", rows, delimiter=";", encoding="utf-8-sig")
    assert build(body, table).path.exists()
