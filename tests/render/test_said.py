"""What commands say: three notes at most, tables without their columns, and names below a table that it has no room for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import DataError
from hydrasurgeon.render.console import failed, notes
from hydrasurgeon.render.made import built
from hydrasurgeon.statistics.abstain import Graded


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("val.csv#text,one#text_pair,a%2Eb#label,ist gut: no rows", "val.csv gut: no rows"),
        ("val.csv#text,one#label,two#part,0-33: no rows", "val.csv#part,0-33: no rows"),
        ("the model's val.csv#labels,names, too", "the model's val.csv, too"),
        ("type --data 'a.csv#text,one#part,0-33'", "type --data 'a.csv#text,one#part,0-33'"),
        ("issue #text is a title", "issue #text is a title"),
    ],
)
def test_a_message_names_a_table_without_its_columns(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failed(DataError(text, hint="--data a.csv#text,one"))
    assert capsys.readouterr().err == f"error: {shown}\n       --data a.csv#text,one\n"
    notes([text])
    assert capsys.readouterr().err == f"note: {shown}\n"


def test_three_notes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    notes("abcba")
    assert capsys.readouterr().err == "note: a\nnote: b\nnote: c\n"
    notes("defghi")
    *first, last = capsys.readouterr().err.splitlines()
    assert first == ["note: d", "note: e", "note: f"]
    assert last == "3 more notes: --json lists all"


def _row(name: str) -> Any:
    worth = dict.fromkeys(("accuracy", "nll", "ece", "auroc", "fpr95"), 0.5)
    return SimpleNamespace(
        name=name, members=1, worth=worth, cost=dict.fromkeys(("macs", "params", "time"), 1.0)
    )


def test_long_names_stand_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    name = "macs=1: probe, bag of words first, --engine int8"
    result = SimpleNamespace(
        path="chosen", rows=[_row("probe"), _row(name)], front=[], notes=[], summary="the end"
    )
    result.recommendation = "recommended: chosen"
    built(result, json=False, quiet=False)  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "chosen: written"
    assert f"(1) {name}" in lines
    assert [line.split()[:2] for line in lines if line.startswith(("probe", "(1)  "))] == [
        ["probe", "1"],
        ["(1)", "1"],
    ]


def test_wrong_answers_by_the_share_that_is_answered() -> None:
    confidence = np.array([0.9, 0.5, 0.8, 0.7, 0.6, 0.4, 0.3, 0.95, 0.2, 0.1])
    right = np.array([True, False, True, False, True, False, False, True, False, True])
    # In order: right, right, right, wrong, right, wrong, wrong, wrong, wrong, right.
    expected = (1 / 5, 3 / 7, 5 / 9, 5 / 10)
    assert Graded(confidence, right).wrong_at((0.5, 0.7, 0.9, 1.0)) == pytest.approx(expected)


def test_calibrate_shows_what_answering_less_is_worth(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo:backbone", "--data", "demo:val", "--ood-score", "msp", "--limit", "300"]
    assert run(["calibrate", *words, "-o", str(tmp_path / "sure"), "-q", "--seed", "1"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["calibrate", *words, "-o", str(tmp_path / "sure2"), "--seed", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (answered,) = (line for line in lines if line.startswith("if it answered"))
    (wrong,) = (line for line in lines if line.startswith("these would be wrong"))
    done = hs.calibrate(
        "demo:backbone", data="demo:val", ood_score="msp", limit=300, seed=1, out=tmp_path / "api"
    )
    assert [float(cell) for cell in answered.split()[6::2]] == [50, 70, 80, 90, 100]
    figures = [f"{100 * fraction:.1f}" for _, fraction in done.wrong_at]
    assert wrong.split()[4::2] == figures
    assert 0 < done.wrong_at[0][1] + done.wrong_at[-1][1] <= 1
    assert done.wrong_at[0][1] <= done.wrong_at[-1][1]
    assert lines[-1].endswith("of cases.")
