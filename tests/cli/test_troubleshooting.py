"""docs/guide/troubleshooting.md: each of its messages is what a command says to a user who meets it."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants
from own_models import embedder_folder, text_folder

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "troubleshooting.md"
COMMANDS = {
    "odd.csv: needs a column": "build embedder --data odd.csv --val val.csv -o out",
    "pairs.csv: columns": "eval reviews --data pairs.csv",
    "nolabel.csv: row 41": "build embedder --data nolabel.csv --val val.csv -o out",
    "notext.csv: row 31": "build embedder --data notext.csv --val val.csv -o out",
    "case.csv: the labels": "build embedder --data case.csv --val val.csv -o out",
    "test.csv: holds texts": "predict backbone --data test.csv",
    "test.csv: has 3 classes": "eval embedder --data test.csv",
    "other.csv: row 0": "calibrate reviews --data other.csv -o out",
    "--val train.csv: 100 %": "build embedder --data train.csv --val train.csv -o out",
    "--val few.csv": "build embedder --data train.csv --val few.csv -o out",
    "--risk 0.001": "calibrate reviews --data val.csv --risk 0.001 -o out",
    "the labels do not fit": "calibrate reviews --data turned.csv -o out",
    "--against reviews": "monitor answers.jsonl --against reviews",
    "backbone.safetensors: has no taylor": "prune --method taylor --keep 5 backbone",
    "--keep requires": "prune backbone --keep 5",
    "cannot be fused": "fuse --mean reviews backbone -o out",
    "differ in the heads": "fuse --mean m1 m2 -o out",
    "train.csv: already exists": "predict reviews --data test.csv -o train.csv",
    "bert-base-uncased is not in the cache": "predict hf:bert-base-uncased --text hi",
    "1 of 1 assertions": "eval backbone --data demo:test --limit 50 --assert id.accuracy>=1.1",
}
"""How each message of the page begins → a command that ends with it."""


def table(path: Path, header: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and tables, most of the tables with one fault."""
    place = tmp_path_factory.mktemp("mistakes")
    text_folder(place)
    embedder_folder(place)
    shipped = Path(hs.__file__).with_name("demo") / "backbone.safetensors"
    shutil.copy(shipped, place)
    for seed in (1, 2):
        hs.prune(shipped, method="random", keep=6, seed=seed, out=place / f"m{seed}.safetensors")
    (place / "answers.jsonl").write_text("{}\n")
    header, *train = csv.reader((place / "train.csv").read_text().splitlines())
    val = list(csv.reader((place / "val.csv").read_text().splitlines()))[1:]
    table(place / "odd.csv", ["utterance", "intent"], train)
    table(place / "pairs.csv", ["premise", "hypothesis", "label"], [[t, t, y] for t, y in train])
    table(place / "few.csv", header, val[:12])
    faults = {"nolabel": (41, 1, ""), "notext": (31, 0, ""), "case": (5, 1, "Praise")}
    for name, (row, column, value) in faults.items():
        rows = [list(cells) for cells in train]
        rows[row][column] = value
        table(place / f"{name}.csv", header, rows)
    other = {"praise": "good", "blame": "bad", "shrug": "meh"}
    turned = {"praise": "blame", "blame": "shrug", "shrug": "praise"}
    table(place / "other.csv", header, [[text, other[label]] for text, label in train])
    table(place / "turned.csv", header, [[text, turned[label]] for text, label in val])
    return place


def messages() -> list[str]:
    """Return the first cell of each row of the page's tables."""
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)


def test_every_message_of_the_page_has_a_command() -> None:
    assert len(messages()) == len(COMMANDS) == 20
    assert all(sum(m.startswith(beginning) for m in messages()) == 1 for beginning in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("beginning", COMMANDS)
def test_a_command_ends_with_the_message(
    beginning: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (message,) = (m for m in messages() if m.startswith(beginning))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert run([*shlex.split(COMMANDS[beginning]), "--quiet"]) != 0
    assert message in capsys.readouterr().err
