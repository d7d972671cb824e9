"""Tables at every width: each number is there whole, beside its row's name and under its column's."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hydrasurgeon.measuring.results import COST
from hydrasurgeon.render.console import show_wrapped
from hydrasurgeon.render.terminal_tables import bounded, show_table
from hydrasurgeon.report.columns import columns


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]):
    def shown(*table: object) -> str:
        capsys.readouterr()
        show_table(*table)
        return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())

    return shown


names = st.text(st.sampled_from("ab 模型[/]\x1b\n"), min_size=1, max_size=12)
numbers = st.floats(0, 99).map(lambda value: f"{value:.3f}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_number_is_ever_cut(terminal, data: st.DataObject) -> None:
    groups = st.sampled_from(["", "near", "far"])
    heads = [(data.draw(groups), data.draw(names)) for _ in range(data.draw(st.integers(1, 6)))]
    rows = [
        [data.draw(names), *(data.draw(numbers) for _ in heads)]
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    shown = terminal("t", heads, rows)
    for _, *cells in rows:
        for number in cells:
            assert number in shown.split()
    assert all(line.isprintable() for line in shown.splitlines())


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.2684e6, 0.43412e6, 0.91523e6, None], ["0.268", "0.434", "0.915", "–"]),
        ([5.06e6, 11.99e6, 15.2e6], ["5.06", "11.99", "15.20"]),
        ([1234.5e6, 0.0], ["1234", "0"]),
    ],
)
def test_costs_have_as_many_decimals_in_each_row(
    values: list[float | None], shown: list[str]
) -> None:
    (column,) = columns(COST[1:2], [type("Cost", (), {"macs": value}) for value in values])
    assert [cell.text for cell in column.cells] == shown


@pytest.mark.parametrize(
    ("difference", "printed"),
    [
        (0.0, "0"),
        (1.7e-6, "less than 0.00001"),
        (0.00057, "less than 0.001"),
        (0.0044, "0.0044"),
        (0.33, "0.33"),
        (float("nan"), "nan"),
    ],
)
def test_small_differences_are_bounds_without_exponents(difference: float, printed: str) -> None:
    assert bounded(difference) == printed


def test_sentences_wrap_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_wrapped("a sentence of many words " * 10)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()) == ("a sentence of many words " * 10).strip()
