"""predict: rows that follow from the state, in order, the same however they are cut, and gone on with after a kill."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from row_files import read_lines, write_lines, write_rows
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import DataError, OutputError, UsageError
from hydrasurgeon.runtime.classifier import Classifier

VIT, BERT = FAMILIES["timm ViT"], FAMILIES["BERT"]


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A calibrated model and its data."""
    VIT.write(tmp_path / "source")
    VIT.data(tmp_path, rows=90)
    hs.calibrate(
        tmp_path / "source",
        data=str(tmp_path / "data.npz"),
        out=tmp_path / "c.safetensors",
        ood_score="mds",
        risk=0.9,
        coverage=0.6,
    )
    return tmp_path


def test_shards_joined_are_one_run(ready: Path) -> None:
    data = str(ready / "data.npz")
    hs.predict(ready / "c", data=data, out=ready / "all.jsonl", batch_size=16)
    for shards in (1, 2, 4, 7):
        parts = b""
        for i in range(1, shards + 1):
            out = ready / f"{i}of{shards}.jsonl"
            hs.predict(ready / "c", data=data, out=out, batch_size=16, shard=f"{i}/{shards}")
            parts += out.read_bytes()
        assert parts == (ready / "all.jsonl").read_bytes()


PREDICT = "hydrasurgeon.stages.predict"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces, and tables at once, of eight rows for batches of four."""
    for name, rows in (("AHEAD", 2), ("PIECE", 1), ("AT_ONCE", 1)):
        monkeypatch.setattr(f"{PREDICT}.{name}", rows)


class Asked:
    """Counts batches that a model answers, of which one may be interrupted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: Any = Classifier) -> None:
        self.batches, self.last, plain = 0, 1 << 30, engine.ask

        def ask(model: Any, inputs: Any, **how: Any) -> Any:
            if self.batches == self.last:
                raise KeyboardInterrupt
            self.batches += 1
            return plain(model, inputs, **how)

        monkeypatch.setattr(engine, "ask", ask)

    def interrupted(self, after: int, source: Path, **options: Any) -> None:
        """Predict, and be interrupted after so many batches."""
        self.batches, self.last = 0, after
        with pytest.raises(KeyboardInterrupt):
            hs.predict(source, **options)
        self.batches, self.last = 0, 1 << 30


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", ""])
@pytest.mark.parametrize("data", ["data.npz", "t.csv", "t.parquet"])
@pytest.mark.usefixtures("small_pieces")
def test_a_repeated_run_goes_on_to_the_same_bytes(
    ready: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, data: str, kind: str, killed: bool
) -> None:
    """Interrupted twice: what was answered is not answered again, and nothing is left of it."""
    source = ready / "c" if data == "data.npz" else texts / "bert"
    batches = 23 if data == "data.npz" else 8
    names = [f"{name}.{kind}" if kind else f"{name}/" for name in ("a", "fresh")]
    options = {"data": str(ready / data), "batch_size": 4, "device": "cpu", "skip_bad": True}
    asked = Asked(monkeypatch)
    out = f"{ready}/{names[0]}"
    with monkeypatch.context() as patched:
        if killed:  # a killed process does not clean up
            patched.setattr("hydrasurgeon.files.atomic.remove", lambda path: None)
        asked.interrupted(3, source, out=out, **options)
        asked.interrupted(3, source, out=out, **options)
    assert not Path(out).exists()
    done = hs.predict(source, out=out, **options)
    assert asked.batches == batches - 4
    assert f"{16} rows were answered before, by an interrupted command" in done.notes
    assert not [*ready.glob(".*")]
    asked.batches = 0
    fresh = hs.predict(source, out=f"{ready}/{names[1]}", **options)
    assert asked.batches == batches
    assert (done.rows, done.answers) == (fresh.rows, fresh.answers)
    assert contents(Path(out)) == contents(Path(f"{ready}/{names[1]}"))


def contents(path: Path) -> list[bytes]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file.read_bytes() for file in files]


def _other_data(place: Path) -> dict[str, Any]:
    lines = (place / "t.csv").read_text().splitlines()
    (place / "t.csv").write_text("\n".join([lines[0], *lines[:0:-1]]))
    return {}


def _other_kept_column(place: Path) -> dict[str, Any]:
    text = (place / "t.csv").read_text()
    (place / "t.csv").write_text(text.replace(",0\n", ",100\n"))
    return {}


def _other_weights(place: Path) -> dict[str, Any]:
    weights = load_file(place / "bert" / "model.safetensors")
    name = next(name for name in weights if name.startswith("classifier") and "weight" in name)
    weights[name] = -weights[name]
    save_file(weights, place / "bert" / "model.safetensors", metadata={"format": "pt"})
    return {}


@pytest.mark.parametrize(
    "change",
    [
        _other_data,
        _other_kept_column,
        _other_weights,
        lambda _: {"top": 2},
        lambda _: {"dtype": "float64"},
        lambda _: {"id_column": "more"},
        lambda _: {"batch_size": 2},
    ],
)
@pytest.mark.usefixtures("small_pieces")
def test_answers_of_other_work_are_not_taken(
    texts: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], dict[str, Any]]
) -> None:
    asked = Asked(monkeypatch)
    options = {"data": str(texts / "t.csv"), "batch_size": 4, "device": "cpu"}
    options |= {"keep_columns": "more"}
    asked.interrupted(3, texts / "bert", out=texts / "a.jsonl", **options)
    assert (texts / ".a.jsonl.unfinished").is_dir()
    options |= change(texts)
    done = hs.predict(texts / "bert", out=texts / "a.jsonl", **options)
    assert not any("were answered before" in note for note in done.notes)
    hs.predict(texts / "bert", out=texts / "fresh.jsonl", **options)
    assert (texts / "a.jsonl").read_bytes() == (texts / "fresh.jsonl").read_bytes()
    assert not (texts / ".a.jsonl.unfinished").exists()


@pytest.mark.usefixtures("small_pieces")
def test_a_damaged_piece_is_answered_again(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    options = {"data": str(texts / "t.jsonl"), "batch_size": 4, "device": "cpu"}
    asked.interrupted(7, texts / "bert", out=texts / "a.jsonl", **options)
    pieces = sorted((texts / ".a.jsonl.unfinished").iterdir(), key=lambda path: path.read_bytes())
    assert len(pieces) == 3
    for path, content in zip(pieces, (b"", b"x" * 70, None), strict=True):
        path.write_bytes(path.read_bytes()[:-5] if content is None else content)
    done = hs.predict(texts / "bert", out=texts / "a.jsonl", **options)
    assert (asked.batches, done.rows) == (8, 30)


@pytest.mark.usefixtures("small_pieces")
def test_rows_that_could_not_be_read_are_kept_for_who_leaves_them_out(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows before a bad one need not be answered again with `skip_bad`; without it, it is named."""
    lines = (texts / "t.jsonl").read_text().splitlines()
    lines[19] = '{"text": "", "more": 19}'
    (texts / "t.jsonl").write_text("\n".join(lines))
    asked = Asked(monkeypatch)
    options = {"data": str(texts / "t.jsonl"), "batch_size": 4, "device": "cpu"}
    options |= {"out": texts / "a.jsonl"}
    for _ in range(2):
        with pytest.raises(DataError, match="from row 16 on: row 3 has no text"):
            hs.predict(texts / "bert", **options)
    assert asked.batches == 4
    asked.interrupted(3, texts / "bert", skip_bad=True, **options)
    with pytest.raises(DataError, match="row 3 has no text"):
        hs.predict(texts / "bert", **options)
    done = hs.predict(texts / "bert", skip_bad=True, **options)
    assert [i for i, row in enumerate(read_lines(texts / "a.jsonl")) if "error" in row] == [19]
    assert done.answers["error"] == 1
    assert "24 rows were answered before, by an interrupted command" in done.notes


def test_a_few_rows_leave_nothing_beside_the_output(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, before = Asked(monkeypatch), {*texts.iterdir()}
    options = {"data": str(texts / "t.jsonl"), "batch_size": 4, "device": "cpu"}
    asked.interrupted(7, texts / "bert", out=texts / "a.jsonl", **options)
    assert {*texts.iterdir()} == before


def test_a_table_is_harmless_in_a_spreadsheet_and_on_a_terminal(tmp_path: Path) -> None:
    """Class names and ids come from others; numbers stay numbers, and `monitor` reads the table."""
    from hydrasurgeon.checkpoints.checkpoint import rewritten
    from hydrasurgeon.checkpoints.writing import save
    from hydrasurgeon.stages.monitor import monitor

    VIT.write(tmp_path / "source")
    data = VIT.data(tmp_path, rows=90)
    hs.calibrate(tmp_path / "source", data=data, out=tmp_path / "c.safetensors", ood_score="msp")
    opened = open_checkpoint(tmp_path / "c")
    names = ('=HYPERLINK("http://evil","x")', "@SUM(1)|cmd' /C calc'!A0", "-3.5")
    named = opened.manifest.model.model_copy(update={"labels": names})
    save(
        tmp_path / "n.safetensors",
        list(opened.tensors.planned()),
        lambda sha256: rewritten(opened.manifest, model=named.model_dump(), weights_sha256=sha256),
    )
    place = folder(tmp_path / "pictures")
    for old, new in (("00.png", "+1 (0).png"), ("01.png", "\x1b[31m0.png"), ("02.png", "-1e3")):
        (place / old).rename(place / new)
    (place / "-1e3").rename(place / "=1.png")
    for kind in ("csv", "jsonl", "parquet"):
        hs.predict(tmp_path / "n", data=str(place), out=tmp_path / f"a.{kind}", device="cpu")
    with (tmp_path / "a.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    plain = read_lines(tmp_path / "a.jsonl")
    shown = dict(zip(names, (f"'{names[0]}", f"'{names[1]}", "-3.5"), strict=True))
    assert [cell["label"] for cell in cells] == [shown[row["label"]] for row in plain]
    assert {cell["id"] for cell in cells} >= {"'+1 (0).png", r"\x1b[31m0.png", "'=1.png"}
    texts = [value for cell in cells for value in cell.values() if value]
    dangerous = [text for text in texts if text[0] in "=+@-" and not _is_number(text)]
    assert dangerous == []
    assert all(
        float(cell["total"]) == float(f"{row['total']:.6g}")
        for cell, row in zip(cells, plain, strict=True)
    )
    counts = [
        monitor(tmp_path / f"a.{kind}", against=tmp_path / "n").drift.answers
        for kind in ("csv", "jsonl", "parquet")
    ]
    assert counts[0].predicted == counts[1].predicted == counts[2].predicted
    assert counts[0].unfamiliar == counts[1].unfamiliar


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def folder(place: Path, broken: tuple[int, ...] = ()) -> Path:
    place.mkdir()
    for i in range(20):
        Image.fromarray(np.full((28, 28, 3), 12 * i, np.uint8)).save(place / f"{i:02}.png")
    for i in broken:
        (place / f"{i:02}.png").write_bytes(b"no image")
    return place


@pytest.mark.parametrize(
    "broken", [(3,), (0, 1, 2, 3), (4, 5, 6, 7, 8), (19,), (16, 17, 18, 19), tuple(range(20))]
)
def test_what_cannot_be_read_becomes_a_row(ready: Path, broken: tuple[int, ...]) -> None:
    place = folder(ready / "pictures", broken)
    with pytest.raises(DataError, match=f"{broken[0]:02}.png"):
        hs.predict(ready / "c", data=str(place), out=ready / "a.jsonl", batch_size=4)
    done = hs.predict(
        ready / "c", data=str(place), out=ready / "a.jsonl", batch_size=4, skip_bad=True
    )
    found = read_lines(ready / "a.jsonl")
    assert [row["id"] for row in found] == [f"{i:02}.png" for i in range(20)]
    assert [i for i, row in enumerate(found) if "error" in row] == list(broken)
    assert all(f"{i:02}.png" in found[i]["error"] for i in broken)
    assert done.answers.get("error", 0) == len(broken)
    table = ready / "a.csv"
    hs.predict(ready / "c", data=str(place), out=table, batch_size=4, skip_bad=True)
    with table.open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [i for i, cell in enumerate(cells) if cell["error"]] == list(broken)


def test_lines_of_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    BERT.write(tmp_path / "source")
    data = BERT.data(tmp_path, rows=90)
    hs.calibrate(
        tmp_path / "source", data=data, out=tmp_path / "c.safetensors", ood_score="entropy"
    )
    texts = [json.loads(line)["text"] for line in Path(data).read_text().splitlines()]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{text}\n" for text in texts)))
    capfd.readouterr()
    assert run(["predict", str(tmp_path / "c"), "--data", "-", "--batch-size", "2", "--quiet"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    hs.predict(tmp_path / "c", data=data, out=tmp_path / "a.jsonl", batch_size=2)
    assert found == read_lines(tmp_path / "a.jsonl")
    assert len(found) == 90


def test_a_line_that_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python reads bytes that are none as lone surrogates."""
    BERT.write(tmp_path / "source")
    command = ["predict", str(tmp_path / "source"), "--data", "-", "--quiet"]
    for more, code in (([], 5), (["--skip-bad"], 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO("good film\nabc\udcff\n"))
        assert run([*command, *more]) == code
        told = capfd.readouterr()
        assert "stdin: row 1 holds str, not text in UTF-8" in (told.err if code else told.out)


def test_texts_of_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A row for each; of pairs too."""
    BERT.write(tmp_path / "source")
    texts, seconds = ["good film", "bad plot"], ["dull", "very fine"]
    for pair in ([], seconds):
        words = [word for text in texts for word in ("--text", text)]
        words += [word for text in pair for word in ("--text-pair", text)]
        assert run(["predict", str(tmp_path / "source"), *words, "--quiet"]) == 0
        found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        model = hs.load(tmp_path / "source", device="cpu")
        inputs = [*zip(texts, pair, strict=True)] if pair else texts
        expected = model.predict(model.transform.collate(inputs)).max(dim=1)
        assert [row["id"] for row in found] == [0, 1]
        assert [row["label"] for row in found] == expected.indices.tolist()
        np.testing.assert_allclose(
            [row["probability"] for row in found], expected.values.numpy(), rtol=0, atol=1e-5
        )
    words = ["--text", "good", "--text", "bad", "--text-pair", "dull"]
    assert run(["predict", str(tmp_path / "source"), *words]) == 5
    assert "the inputs: row 1 has no second text" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_columns_of_the_data_come_along(tmp_path: Path, kind: str) -> None:
    """`id` is kept whatever it is, twice the same too; other columns where they are asked for, and none that is not."""
    BERT.write(tmp_path / "source")
    texts = [
        json.loads(line)["text"]
        for line in Path(BERT.data(tmp_path, rows=12)).read_text().splitlines()
    ]
    ids = [f"t-{i // 2}" for i in range(12)]
    table = [
        {"id": name, "label": 0, "text": text, "weight": 1.23456789}
        for name, text in zip(ids, texts, strict=True)
    ]
    data = write_rows(tmp_path / f"d.{kind}", table)
    source = tmp_path / "source"
    hs.predict(source, data=data, out=tmp_path / "plain.jsonl")
    assert [row["id"] for row in read_lines(tmp_path / "plain.jsonl")] == ids
    keep = "label,weight"
    hs.predict(
        source,
        data=data,
        out=tmp_path / "kept.jsonl",
        keep_columns=keep,
        id_column="text",
        limit=7,
        seed=1,
    )
    kept = read_lines(tmp_path / "kept.jsonl")
    assert [row["id"] for row in kept] == [
        text for text in texts if text in {row["id"] for row in kept}
    ]
    assert len(kept) == 7
    assert {str(row["data_label"]) for row in kept} == {"0"}
    assert {float(row["weight"]) for row in kept} == {1.23456789}
    hs.predict(source, data=data, out=tmp_path / "kept.csv", keep_columns=keep)
    with (tmp_path / "kept.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [each["id"] for each in cells] == ids
    assert {each["weight"] for each in cells} == {"1.23456789"}
    for option in ("id_column", "keep_columns"):
        with pytest.raises(DataError, match="no such column") as error:
            hs.predict(source, data=data, **{option: "absent"})
        assert error.value.exit_code == 5
    with pytest.raises(UsageError, match="conflicts with --keep-columns"):
        hs.predict(source, data="-", keep_columns="weight")


def test_without_a_state(ready: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = {"data": str(ready / "data.npz"), "out": ready / "a.jsonl"}
    done = hs.predict(ready / "source", **data, top=2)
    assert [len(row["top"]) for row in read_lines(ready / "a.jsonl")] == [2] * 90
    done = hs.predict(ready / "source", **data, force=True)
    assert any("no decision state" in note for note in done.notes)
    assert done.rows == sum(done.answers.values()) == 90
    model = hs.load(ready / "source", device="cpu")
    (batch,) = Batches(
        open_data(str(ready / "data.npz")), model.transform, batch_size=90, workers=0
    )
    p = model.predict(batch.inputs)
    for i, row in enumerate(read_lines(ready / "a.jsonl")):
        assert row["probability"] == pytest.approx(float(p[i].max()), rel=1e-5)
        assert (row["set"], row["ood_score"], row["unfamiliar"]) == (None, None, None)
        assert row["answer"] == row["label"] == int(p[i].argmax())
    assert run(["predict", str(ready / "source"), "--data", str(ready / "data.npz")]) == 0
    shown = capfd.readouterr()
    assert [json.loads(line) for line in shown.out.splitlines()] == read_lines(ready / "a.jsonl")
    assert "no decision state" in " ".join(shown.err.split())


def test_answers_that_are_not_finite_are_refused(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON has no word for them; a table would say `inf`."""
    from hydrasurgeon.runtime import answering

    plain = answering.decide

    def decided(*of: Any) -> Any:
        answers = plain(*of)
        return replace(answers, ood_score=answers.ood_score + np.inf)

    monkeypatch.setattr(answering, "decide", decided)
    for kind in ("jsonl", "csv"):
        out, data = ready / f"a.{kind}", str(ready / "data.npz")
        capsys.readouterr()
        command = ["predict", str(ready / "c"), "--data", data, "-o", str(out), "--device", "cpu"]
        assert run(command) == 3
        assert (
            "c.safetensors: its answers hold NaN or infinity (ood_score)" in capsys.readouterr().err
        )
        assert not out.exists()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A model of texts, and the same 30 of them in every kind of table."""
    BERT.write(tmp_path / "bert")
    table = pa.table(
        {"text": [f"{'words ' * (i % 4)}end {i}" for i in range(30)], "more": [*range(30)]}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=9)
    records = table.to_pylist()
    write_lines(tmp_path / "t.jsonl", records)
    lines = ["text,more", *(f"{each['text']},{each['more']}" for each in records)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (tmp_path / "t.json").write_text(json.dumps(records))
    return tmp_path


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "json"])
def test_a_table_in_pieces_gives_the_rows_of_the_whole(
    texts: Path, ending: str, request: pytest.FixtureRequest
) -> None:
    options = {"batch_size": 4, "device": "cpu", "keep_columns": "more"}
    whole = hs.predict(texts / "bert", data=str(texts / f"t.{ending}"), **options)
    request.getfixturevalue("small_pieces")
    pieces = hs.predict(texts / "bert", data=str(texts / f"t.{ending}"), **options)
    assert [*pieces] == [*whole]
    assert [row["id"] for row in pieces] == [*range(30)]
    assert [int(row["more"]) for row in pieces] == [*range(30)]


@pytest.mark.usefixtures("small_pieces")
def test_a_folder_of_parquet_holds_the_rows_of_one_file(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrasurgeon.files.rows.PART", 8)
    options = {"data": str(texts / "t.parquet"), "batch_size": 4, "device": "cpu"}
    hs.predict(texts / "bert", out=texts / "one.parquet", **options)
    done = hs.predict(texts / "bert", out=f"{texts / 'parts'}/", **options)
    assert done.rows == 30
    parts = sorted((texts / "parts").iterdir())
    assert [path.name for path in parts] == [f"part-{number:05}.parquet" for number in range(4)]
    assert pq.read_table(texts / "parts").equals(pq.read_table(texts / "one.parquet"))
    with pytest.raises(OutputError, match="already exists"):
        hs.predict(texts / "bert", out=f"{texts / 'parts'}/", **options)
    monkeypatch.setattr("hydrasurgeon.files.rows.PART", 1 << 18)
    hs.predict(texts / "bert", out=f"{texts / 'parts'}/", force=True, **options)
    assert [path.name for path in (texts / "parts").iterdir()] == ["part-00000.parquet"]


@pytest.mark.usefixtures("small_pieces")
def test_a_folder_that_could_not_be_finished_is_not_there(texts: Path) -> None:
    """What was answered is: who mends the data goes on."""
    lines = (texts / "t.jsonl").read_text().splitlines()
    (texts / "t.jsonl").write_text("\n".join([*lines, "no json"]))
    before, options = {*texts.iterdir()}, {"device": "cpu", "batch_size": 4}
    with pytest.raises(DataError, match="line 31"):
        hs.predict(texts / "bert", data=str(texts / "t.jsonl"), out=f"{texts}/parts/", **options)
    assert {*texts.iterdir()} == {*before, texts / ".parts.unfinished"}
    (texts / "t.jsonl").write_text("\n".join(lines))
    done = hs.predict(texts / "bert", data=str(texts / "t.jsonl"), out=f"{texts}/parts/", **options)
    assert done.rows == 30
    assert {*texts.iterdir()} == {*before, texts / "parts"}
