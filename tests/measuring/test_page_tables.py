"""The report's tables as CSV, and in parts."""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path

import pytest
import torch

import hydrasurgeon as hs
from hydrasurgeon.measuring.predictions import Predictions, write_predictions
from hydrasurgeon.report.columns import Cell, Column, Metric, Table, csv_of, tables


def predictions(
    path: Path, *, classes: int = 5, rows: int = 203, noise: float = 1.0, name: str = "model"
) -> Path:
    """Answers of which some are wrong, for classes of different sizes; class 1 has no sample."""
    random = torch.Generator().manual_seed(classes)
    labels = (torch.rand(rows, generator=random) ** 2 * classes).long()
    labels[labels == 1] = 0
    logits = noise * torch.randn(rows, 2, classes, generator=random)
    logits[torch.arange(rows), :, labels] += 2.0
    write_predictions(Predictions(name, "hydra", logits, labels), path)
    return path


def csvs(text: str) -> dict[str, list[list[str]]]:
    """What the buttons of a page copy, by the title of the table."""
    buttons = re.findall(r'data-csv="([^"]*)" aria-label="Copy ([^"]*) as CSV"', text)
    return {
        html.unescape(title): list(csv.reader(io.StringIO(html.unescape(body))))
        for body, title in buttons
    }


def test_every_table_can_be_copied(tmp_path: Path) -> None:
    evaluation = hs.evaluate(
        [],
        predictions_in=[predictions(tmp_path / "p.safetensors")],
        html=tmp_path / "r.html",
        ci=0.9,
    )
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert text.count("<table>") == text.count("data-csv=") > 1
    head, row = csvs(text)["In distribution"]
    values = dict(zip(head, row, strict=True))
    result = evaluation.report.results[0].id
    assert values["model"] == "model"
    assert float(values["accuracy"]) == pytest.approx(result.accuracy, rel=1e-5)
    assert result.ci is not None
    assert [float(values[f"NLL {end}"]) for end in ("low", "high")] == pytest.approx(
        list(result.ci["nll"]), rel=1e-5
    )
    # A table that is as wide as the window holds all columns, in parts.
    parts = tables(evaluation.report.results)[0].parts(650)
    assert [each.title for each in parts[:2]] == ["In distribution", "In distribution, part 2"]
    assert [c for part in parts for c in part.columns] == list(
        tables(evaluation.report.results)[0].columns
    )
    assert all(sum(c.width for c in part.columns) <= 500 for part in parts)


def test_a_group_of_columns_stays_together() -> None:
    wide = tuple(Column(Metric("m", "m"), group, (Cell("0.123456789"),)) for group in "aaabbb")
    assert [len(part.columns) for part in Table("t", ("n",), wide).parts(550)] == [3, 3]
    assert [len(part.columns) for part in Table("t", ("n",), wide).parts(400)] == [
        2,
        2,
        2,
    ]  # unless it is too wide


def test_a_name_is_no_formula() -> None:
    rows = [["=1+1", "+a", "@x", "-x"], ["-0.5", "a,b", 'q"', "two\nlines"]]
    assert csv_of(rows) == '\'=1+1,\'+a,\'@x,\'-x\n-0.5,"a,b","q""",two\\nlines\n'
