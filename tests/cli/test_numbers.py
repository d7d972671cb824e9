"""Numbers that are typed: plain digits, and none that no manifest could hold."""

from __future__ import annotations

import pytest

from hydrasurgeon.cli.app import run
from hydrasurgeon.lookup import LARGEST, whole_number


def test_a_whole_number() -> None:
    numbers = {"0": 0, "007": 7, "16": 16, str(LARGEST): LARGEST}
    assert {text: whole_number(text) for text in numbers} == numbers
    no_numbers = ("", "²", "١", "-1", "+1", "1.0", "1_000", " 1", str(LARGEST + 1), "9" * 5000)
    assert {text: whole_number(text) for text in no_numbers} == dict.fromkeys(no_numbers)


@pytest.mark.parametrize("typed", ["-1", "many", str(LARGEST + 1), "9" * 5000])
@pytest.mark.parametrize("option", ["--seed", "--limit"])
def test_a_number_of_samples_or_a_seed(
    option: str, typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "vit", "--data", "data.npz", f"{option}={typed}"]) == 2
    assert f"error: {option} {typed[:100]}" in capsys.readouterr().err
