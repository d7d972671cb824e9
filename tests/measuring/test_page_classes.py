"""The report's classes: accuracy, balance, confused pairs, held against loops; and its tables as CSV."""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import hydrasurgeon as hs
from hydrasurgeon.measuring.predictions import Predictions, write_predictions
from hydrasurgeon.report.columns import csv_of
from hydrasurgeon.statistics.probabilities import softmax


def predictions(
    path: Path, *, classes: int = 5, rows: int = 203, noise: float = 1.0, name: str = "model"
) -> Path:
    """Answers of which some are wrong, for classes of different sizes; class 1 has no sample."""
    random = torch.Generator().manual_seed(classes)
    labels = (torch.rand(rows, generator=random).numpy() ** 2 * classes).astype(np.int64)
    labels[labels == 1] = 0
    logits = noise * torch.randn(rows, 2, classes, generator=random).numpy()
    logits[np.arange(rows), :, labels] += 2.0
    write_predictions(Predictions(name, "hydra", logits, labels), path)
    return path


def answers(path: Path) -> list[tuple[int, int]]:
    """(class, answer) of each sample, one by one."""
    from hydrasurgeon.measuring.predictions import read_predictions

    read = read_predictions(path)
    mean = softmax(read.logits).mean(axis=1)
    return [
        (int(label), max(range(len(p)), key=p.tolist().__getitem__))
        for label, p in zip(read.labels, mean, strict=True)
    ]


def csvs(text: str) -> dict[str, list[list[str]]]:
    """What the buttons of a page copy, by the title of the table."""
    buttons = re.findall(r'data-csv="([^"]*)" aria-label="Copy ([^"]*) as CSV"', text)
    return {
        html.unescape(title): list(csv.reader(io.StringIO(html.unescape(body))))
        for body, title in buttons
    }


def test_classes_are_those_of_a_loop(tmp_path: Path) -> None:
    paths = [predictions(tmp_path / f"{n}.safetensors", noise=n, name=f"m{n}") for n in (1.0, 2.0)]
    hs.evaluate([], predictions_in=paths, html=tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    both = [answers(path) for path in paths]
    assert [pair[0] for pair in both[0]] == [pair[0] for pair in both[1]]
    head, *rows = csvs(text)["Accuracy by class"]
    assert head == ["class", "samples", "of all, %", "accuracy ↑ m1.0", "accuracy ↑ m2.0"]
    accuracies = []
    for name, count, fraction, *by_model in rows:
        of_class = [[taken for true, taken in each if true == int(name)] for each in both]
        assert int(count) == len(of_class[0])
        assert float(fraction) == pytest.approx(100 * len(of_class[0]) / 203, rel=1e-5)
        for value, each in zip(by_model, of_class, strict=True):
            assert float(value) == pytest.approx(each.count(int(name)) / len(each), rel=1e-5)
        accuracies.append(float(by_model[0]))
    assert {int(row[0]) for row in rows} == {true for true, _ in both[0]} == {0, 2, 3, 4}
    assert accuracies == sorted(accuracies)


def test_a_name_is_no_formula() -> None:
    rows = [["=1+1", "+a", "@x", "-x"], ["-0.5", "a,b", 'q"', "two\nlines"]]
    assert csv_of(rows) == '\'=1+1,\'+a,\'@x,\'-x\n-0.5,"a,b","q""",two\\nlines\n'
