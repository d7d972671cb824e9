"""Tables at every width: each number is there whole, beside its row's name and under its column's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hydrasurgeon.render.measured import best_of, cells
from hydrasurgeon.render.tables import Column, Row, Table, table_lines
from hydrasurgeon.visible import visible

METRICS = ("AUROC", "FPR95", "AUPR")
TABLE = Table(
    "out of distribution",
    tuple(Column(metric, group) for group in ("near", "far", "all") for metric in METRICS),
    (
        Row("single", tuple(f"0.1{at}3" for at in range(9))),
        Row("hydra", tuple((f"0.2{at}7", "bold") for at in range(9))),
    ),
)


def at(width: int | None, table: Table = TABLE) -> str:
    return "\n".join(line.plain.rstrip() for line in table_lines(table, width))


def test_wide_enough() -> None:
    assert (
        at(None)
        == at(100)
        == at(69)
        == """\
out of distribution
                near                 far                  all
        AUROC  FPR95   AUPR  AUROC  FPR95   AUPR  AUROC  FPR95   AUPR
single  0.103  0.113  0.123  0.133  0.143  0.153  0.163  0.173  0.183
hydra   0.207  0.217  0.227  0.237  0.247  0.257  0.267  0.277  0.287"""
    )


def test_folded_between_groups() -> None:
    assert (
        at(50)
        == at(48)
        == """\
out of distribution
                near                 far
        AUROC  FPR95   AUPR  AUROC  FPR95   AUPR
single  0.103  0.113  0.123  0.133  0.143  0.153
hydra   0.207  0.217  0.227  0.237  0.247  0.257
                all
        AUROC  FPR95   AUPR
single  0.163  0.173  0.183
hydra   0.267  0.277  0.287"""
    )


def test_a_block_for_each_row() -> None:
    assert (
        at(26)
        == """\
out of distribution
single
  near:  AUROC 0.103
    FPR95 0.113
    AUPR 0.123
  far:  AUROC 0.133
    FPR95 0.143
    AUPR 0.153
  all:  AUROC 0.163
    FPR95 0.173
    AUPR 0.183
hydra
  near:  AUROC 0.207
    FPR95 0.217
    AUPR 0.227
  far:  AUROC 0.237
    FPR95 0.247
    AUPR 0.257
  all:  AUROC 0.267
    FPR95 0.277
    AUPR 0.287"""
    )


def test_columns_that_come_again_where_a_group_is_parted() -> None:
    names = ("dtype", "batch", "milliseconds", "samples/s", "peak MB")
    speed = tuple(Column(n, "speed", repeat=n in ("dtype", "batch")) for n in names)
    table = Table("", speed, (Row("m", ("f32", "1", "2.5", "400", "7")), Row("", ("f32", "4", "5", "800", "8"))))
    folded = at(40, table)
    assert folded.count("dtype") == folded.count("batch") == 2
    assert [line.split() for line in folded.splitlines() if line.startswith("m")] == [
        ["m", "f32", "1", "2.5", "400"],
        ["m", "f32", "1", "7"],
    ]


def test_a_part_without_anything_in_a_row_leaves_it_out() -> None:
    columns = (*(Column(n, "size") for n in "abc"), *(Column(n, "speed") for n in "xyz"))
    rows = (Row("m", tuple("123456")), Row("", ("", "", "", "7", "8", "9")))
    folded = at(12, Table("", columns, rows))
    assert folded.count("m") == 2
    assert [line.split() for line in folded.splitlines()][2:3] == [["m", "1", "2", "3"]]
    assert folded.splitlines()[-1].split() == ["7", "8", "9"]


names = st.text(st.sampled_from("ab 模型[/]\x1b\n"), min_size=1, max_size=12)
numbers = st.floats(0, 99).map(lambda value: f"{value:.3f}")


@given(st.data(), st.integers(1, 120))
def test_no_number_is_ever_cut(data: st.DataObject, width: int) -> None:
    columns = tuple(
        Column(data.draw(names), data.draw(st.sampled_from(["", "near", "far"])))
        for _ in range(data.draw(st.integers(1, 6)))
    )
    rows = tuple(
        Row(data.draw(names), tuple(data.draw(numbers) for _ in columns)) for _ in range(data.draw(st.integers(1, 4)))
    )
    table = Table("t", columns, rows)
    lines = [line.plain for line in table_lines(table, width)]
    words = " ".join(lines).split()
    for row in rows:
        for number in row.cells:
            assert number in words
    assert all(line.isprintable() for line in lines)
    # A line is longer than the terminal only where a single piece of it is.
    pieces = [cell_len(f"  near:  {visible(column.name)} 00.000") for column in columns]
    assert max(map(cell_len, lines)) <= max(width, table.keys(), *pieces)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.2684, 0.43412, 0.91523, None], ["0.268", "0.434", "0.915", "–"]),
        ([5.06, 11.99, 15.2], ["5.06", "11.99", "15.20"]),
        ([86.6, 304.25], ["86.6", "304.2"]),
        ([1234.5, 0.0], ["1234", "0"]),
        ([None], ["–"]),
    ],
)
def test_costs_have_as_many_decimals_in_each_row(values: list[float | None], shown: list[str]) -> None:
    assert cells("MACs M", values) == shown


def test_the_best_is_of_numbers() -> None:
    assert best_of("Acc", ["0.9", "–", "0.8"]) == "0.9"
    assert best_of("ECE", ["0.9", "–", "0.8"]) == "0.8"
    assert best_of("ECE", ["0.9", "–"]) is None
