"""Shifts: corruptions made on the way are what a corrupted set would be; averages by severity by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import hydrasurgeon as hs
from hydrasurgeon.data import open_data
from hydrasurgeon.data.corruptions import Corrupted, Corruption
from hydrasurgeon.errors import UsageError
from hydrasurgeon.measuring.answers import Reading
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.measuring.results import ShiftResult
from hydrasurgeon.measuring.rows import Row, averaged, row_of, with_mce

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


def one(*accuracies: tuple[str, int | None, float], name: str = "m") -> Row:
    shift = tuple(
        ShiftResult(name=n, severity=s, accuracy=a, brier=1 - a) for n, s, a in accuracies
    )
    plain = row_of(Predictions(name, "hydra", torch.eye(2)[:, None], torch.arange(2)), Reading())
    return plain.but(shift=shift, shift_average=averaged(shift))


def test_averages_by_hand() -> None:
    row = one(("fog", 2, 0.6), ("fog", 1, 0.8), ("snow", 1, 0.5), ("sketch", None, 0.1))
    average = row.result.shift_average
    assert average is not None
    assert list(average.severities) == [1, 2]
    assert average.severities[1].model_dump() == pytest.approx(
        {"accuracy": 0.65, "brier": 0.35, "sets": 2}
    )
    assert average.severities[2].accuracy == 0.6
    assert average.accuracy == pytest.approx((0.65 + 0.6) / 2)
    assert average.mce is None
    assert averaged([ShiftResult(name="s", severity=None, accuracy=1, brier=0)]) is None


def test_corruption_errors_beside_the_first_row() -> None:
    first = one(("fog", 1, 0.8), ("fog", 2, 0.6), ("snow", 1, 0.5))
    second = one(("fog", 1, 0.9), ("fog", 2, 0.8), ("snow", 1, 0.25))
    rows = with_mce([first, second])
    assert [row.result.shift_average.mce for row in rows] == pytest.approx(
        [1.0, (0.3 / 0.6 + 0.75 / 0.5) / 2]
    )
    others = with_mce([first, one(("fog", 1, 0.8)), one()])
    assert others[1].result.shift_average.mce is None
    assert others[2].result.shift_average is None
    flawless = one(("fog", 1, 1.0))
    assert with_mce([flawless, one(("fog", 1, 0.5))])[1].result.shift_average.mce is None
    assert with_mce([]) == []


def test_what_rounding_leaves_is_no_error() -> None:
    """Accuracies of pieces are summed: ten tenths of all are less than all."""
    rows = with_mce([one(("fog", 1, sum([0.1] * 10))), one(("fog", 1, 0.5))])
    assert rows[1].result.shift_average.mce is None


def test_corruptions_are_the_sets_they_would_be(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """A corrupted set that is stored and given as a shift has the same results, and the same logits."""
    model, spec = tiny(), images()
    parent = open_data(spec)
    samples = Corrupted(parent, Corruption("fog", 3))
    stored = np.stack([np.asarray(samples.read(i)) for i in range(len(samples))])
    np.savez(tmp_path / "fog.npz", images=stored, labels=parent.labels)
    out = tmp_path / "p.safetensors"
    made = hs.evaluate(
        [model], data=spec, corrupt=["fog:3", "contrast"], predictions=out, batch_size=7
    )
    given = hs.evaluate([model], data=spec, shift=[f"fog:3={tmp_path / 'fog.npz'}"]).report
    row, other = made.report.results[0], given.results[0]
    assert [(s.name, s.severity) for s in row.shift] == [
        ("fog", 3),
        *(("contrast", s) for s in range(1, 6)),
    ]
    assert row.shift[0].accuracy == other.shift[0].accuracy
    assert row.shift[0].brier == pytest.approx(other.shift[0].brier, abs=1e-6)
    assert made.report.settings["corrupt"] == ["fog:3", "contrast"]
    assert "corrupt" not in given.settings
    again = hs.evaluate([], predictions_in=[out]).report.results[0]
    assert again.shift == row.shift
    assert again.shift_average == row.shift_average
    assert row.shift_average.mce == pytest.approx(1)
    # Without a file, sets run one after another and are forgotten.
    alone = hs.evaluate([model], data=spec, corrupt=["fog:3", "contrast"]).report.results[0]
    assert alone.shift_average.accuracy == row.shift_average.accuracy
    assert [s.brier for s in alone.shift] == pytest.approx([s.brier for s in row.shift], abs=1e-6)


def test_texts(tmp_path: Path) -> None:
    from tiny_families import FAMILIES

    family = FAMILIES["BERT"]
    family.write(tmp_path / "bert")
    row = hs.evaluate(
        [tmp_path / "bert"], data=family.data(tmp_path), corrupt=["all:2"]
    ).report.results[0]
    assert [(s.name, s.severity) for s in row.shift] == [("typos", 2), ("word_dropout", 2)]
    with pytest.raises(UsageError, match="--corrupt fog: no such corruption of texts"):
        hs.evaluate([tmp_path / "bert"], data=family.data(tmp_path), corrupt=["fog"])
