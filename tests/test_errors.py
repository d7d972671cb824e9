"""Messages are of a length that fits a terminal, whatever was read from a file into them."""

from __future__ import annotations

from hydrasurgeon.errors import MAX_MESSAGE, DataError


def test_a_message_holds_no_whole_file() -> None:
    said = DataError(f"{'x' * 100_000}: is no name").message
    assert len(said) == MAX_MESSAGE + 3
    assert said.startswith("xxx")
    assert said.endswith("xxx: is no name")
    assert " … " in said
    assert DataError("x" * MAX_MESSAGE).message == "x" * MAX_MESSAGE
