"""Shifts: averages by severity and corruption errors, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hydrasurgeon.decision.state import State
from hydrasurgeon.measuring.measure import Row, averaged, row_of, with_mce
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.measuring.results import ShiftResult
from hydrasurgeon.report.columns import brief
from hydrasurgeon.tasks.base import Outputs


def one(*accuracies: tuple[str, int | None, float], name: str = "m") -> Row:
    shift = tuple(
        ShiftResult(name=n, severity=s, accuracy=a, brier=1 - a) for n, s, a in accuracies
    )
    outputs = Outputs(np.eye(2)[:, None], None, np.arange(2))
    plain = row_of(Predictions(name, "hydra", outputs), State.unfitted())
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


def test_the_terminal_shows_each_severity() -> None:
    rows = with_mce([one(("fog", 1, 0.8), ("fog", 2, 0.6)), one(("fog", 1, 0.7), ("fog", 2, 0.3))])
    (table,) = (t for t in brief([row.result for row in rows]) if "shift" in t.title)
    above, _, *cells = (line.split() for line in str(table).splitlines())
    assert above == ["1", "1", "2", "2", "mean", "mean", "mean"]
    assert [line[1:] for line in cells] == [
        ["0.800", "0.200", "0.600", "0.400", "0.700", "0.300", "1.000"],
        ["0.700", "0.300", "0.300", "0.700", "0.500", "0.500", "1.667"],
    ]


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
