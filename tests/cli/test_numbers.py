"""Numbers: typed ones are plain digits that a manifest can hold, printed ones have no exponent from 1 on."""

from __future__ import annotations

import pytest

from hydrasurgeon.cli.app import run
from hydrasurgeon.lookup import LARGEST, format_number, whole_number


def test_a_whole_number() -> None:
    numbers = {"0": 0, "007": 7, "16": 16, str(LARGEST): LARGEST}
    assert {text: whole_number(text) for text in numbers} == numbers
    no_numbers = ("", "²", "١", "-1", "+1", "1.0", "1_000", " 1", str(LARGEST + 1), "9" * 5000)
    assert {text: whole_number(text) for text in no_numbers} == dict.fromkeys(no_numbers)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (270.3, 2, "270"),
        (15.0, 1, "15"),
        (16348465152, 6, "16348465152"),
        (-12345.6, 4, "-12346"),
        (999.6, 3, "1000"),
        (1.236, 3, "1.24"),
        (0.0, 3, "0"),
        (0.000271, 2, "0.00027"),
        (1.2e-7, 2, "1.2e-07"),
    ],
)
def test_a_number_as_people_write_it(value: float, digits: int, text: str) -> None:
    assert format_number(value, digits) == text


@pytest.mark.parametrize("typed", ["-1", "many", str(LARGEST + 1), "9" * 5000])
@pytest.mark.parametrize("option", ["--seed", "--limit"])
def test_a_number_of_samples_or_a_seed(
    option: str, typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "vit", "--data", "data.npz", f"{option}={typed}"]) == 2
    assert f"error: {option} {typed[:100]}" in capsys.readouterr().err
