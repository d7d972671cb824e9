"""What models make of each class, held against loops, and of each type of entity, counted by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import hydrasurgeon as hs
from hydrasurgeon.measuring.measure import Answered
from hydrasurgeon.measuring.predictions import Predictions, write_predictions
from hydrasurgeon.report.classes import class_tables
from hydrasurgeon.statistics.probabilities import softmax
from hydrasurgeon.tasks.base import Outputs
from hydrasurgeon.tasks.entity_answers import JudgedTokens


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
    rows = table(text, "By class")
    accuracies = []
    for name, count, *by_model in rows:
        of_class = [[taken for true, taken in each if true == int(name)] for each in both]
        assert int(count) == len(of_class[0])
        for value, each in zip(by_model, of_class, strict=True):
            assert float(value) == pytest.approx(each.count(int(name)) / len(each), abs=6e-4)
        accuracies.append(float(by_model[0]))
    assert {int(row[0]) for row in rows} == {true for true, _ in both[0]} == {0, 2, 3, 4}
    assert accuracies == sorted(accuracies)


NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
LABELS = [[1, 2, 0, 3], [1, 2, 0, 0], [3, 0, 1, 2], [0, 1, -1, -1]]
TAGS = [[1, 2, 0, 3], [1, 0, 0, 3], [1, 0, 3, 0], [0, 0, -1, -1]]
CHANCES = [[0.99, 0, 0, 0.3], [0.6, 0, 0, 0.9], [0.8, 0, 0.7, 0], [0, 0, 0, 0]]


def judged(tags: list[list[int]]) -> JudgedTokens:
    nothing = np.zeros((4, 4))
    return JudgedTokens(
        labels=np.array(LABELS),
        tags=np.array(tags),
        right=np.array(tags) == np.array(LABELS),
        chances=np.array(CHANCES),
        confidence=nothing,
        nll=nothing,
        mutual_information=nothing,
        disagreement=nothing,
    )


def test_types_of_entities_are_counted_by_hand() -> None:
    rows = [(0, "one", Answered(judged(TAGS))), (1, "right", Answered(judged(LABELS)))]
    (types,) = class_tables(rows, 0, NAMES)
    found = dict(zip(types.names, types.rows, strict=True))
    assert list(found) == ["PER", "LOC"]  # the worst first
    assert [float(cell.text) for cell in found["PER"]] == pytest.approx(
        [4, 1 / 3, 1 / 4, 2 / 7, 1, 1, 1], abs=6e-4
    )
    assert [float(cell.text) for cell in found["LOC"]] == pytest.approx(
        [2, 1 / 3, 1 / 2, 2 / 5, 1, 1, 1], abs=6e-4
    )
    sure, right = judged(TAGS).sure()
    assert sure.tolist() == pytest.approx([0.99, 0.3, 0.6, 0.9, 0.8, 0.7])
    assert right.tolist() == [True, True, False, False, False, False]
