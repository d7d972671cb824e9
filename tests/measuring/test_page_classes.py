"""The report's classes: accuracy, balance, held against loops."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import hydrasurgeon as hs
from hydrasurgeon.measuring.predictions import Predictions, write_predictions
from hydrasurgeon.problems.base import Outputs
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
    write_predictions(Predictions(name, "hydra", Outputs(logits, None, labels)), path)
    return path


def answers(path: Path) -> list[tuple[int, int]]:
    """(class, answer) of each sample, one by one."""
    from hydrasurgeon.measuring.predictions import read_predictions

    read = read_predictions(path).outputs
    mean = softmax(read.logits).mean(axis=1)
    return [
        (int(label), max(range(len(p)), key=p.tolist().__getitem__))
        for label, p in zip(read.truth, mean, strict=True)
    ]


def table(text: str, title: str) -> list[list[str]]:
    """The rows of a table of a page."""
    body = text.partition(f"<caption>{title}")[2]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', body.partition("</table>")[0])
    return [[name, *re.findall(r"<td[^>]*>(?:<u>)?([^<]*)", cells)] for name, cells in rows]


def test_classes_are_those_of_a_loop(tmp_path: Path) -> None:
    paths = [predictions(tmp_path / f"{n}.safetensors", noise=n, name=f"m{n}") for n in (1.0, 2.0)]
    hs.evaluate([], predictions_in=paths, html=tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    both = [answers(path) for path in paths]
    assert [pair[0] for pair in both[0]] == [pair[0] for pair in both[1]]
    rows = table(text, "Accuracy by class")
    accuracies = []
    for name, count, fraction, *by_model in rows:
        of_class = [[taken for true, taken in each if true == int(name)] for each in both]
        assert int(count) == len(of_class[0])
        assert float(fraction) == pytest.approx(100 * len(of_class[0]) / 203, abs=0.051)
        for value, each in zip(by_model, of_class, strict=True):
            assert float(value) == pytest.approx(each.count(int(name)) / len(each), abs=6e-4)
        accuracies.append(float(by_model[0]))
    assert {int(row[0]) for row in rows} == {true for true, _ in both[0]} == {0, 2, 3, 4}
    assert accuracies == sorted(accuracies)
