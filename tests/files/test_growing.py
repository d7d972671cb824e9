"""A file of lines that grows: what an interrupted run leaves is gone on with, at whichever byte it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydrasurgeon.errors import CheckpointError, OutputError, UsageError
from hydrasurgeon.files.growing import Growing, write_lines

WHO = {"weights": "abc"}
LINES = [f"line {i}" for i in range(6)]


def grow(place: Path, *, force: bool = False) -> int:
    """One run over all lines, in steps of two; how many were there already."""
    growing = Growing(place, WHO, step=2, force=force)
    done = growing.done
    growing.add(LINES[done:])
    growing.finish(write_lines)
    return done


def test_it_goes_on_wherever_it_was_cut(tmp_path: Path) -> None:
    place = tmp_path / "rows.jsonl"
    growing = Growing(place, WHO, step=2, force=False)
    growing.add(LINES)
    growing.close()
    content = growing.partial.read_bytes()
    head = content.index(b"\n") + 1
    for cut in range(head, len(content) + 1):
        growing.partial.write_bytes(content[:cut])
        whole = content[head:cut].count(b"\n")
        assert grow(place, force=False) == whole - whole % 2
        assert place.read_text().splitlines() == LINES
        assert not growing.partial.exists()
        place.unlink()


@pytest.mark.parametrize("other", ["x", "{}\n", "\n", '{"weights": "abc"}\n'])
def test_what_is_no_state_is_left_alone(tmp_path: Path, other: str) -> None:
    partial = tmp_path / "rows.jsonl.partial"
    partial.write_text(other)
    with pytest.raises(CheckpointError, match="the state of an interrupted prediction is damaged"):
        grow(tmp_path / "rows.jsonl")
    assert partial.read_text() == other
    assert grow(tmp_path / "rows.jsonl", force=True) == 0


def test_lines_of_another_run_are_left_alone(tmp_path: Path) -> None:
    Growing(tmp_path / "rows.jsonl", {"weights": "abd"}, step=2, force=False).close()
    with pytest.raises(
        UsageError, match=r"an interrupted prediction with another weights \(abd, now abc\)"
    ):
        grow(tmp_path / "rows.jsonl")


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(
            OutputError, match=r"rows\.jsonl\.partial: cannot be written \(the disk is full\)"
        ):
            grow(tmp_path / "rows.jsonl")
    growing = Growing(tmp_path / "rows.jsonl", WHO, step=2, force=False)
    growing.close()
    monkeypatch.setattr(growing, "_file", Full())
    with pytest.raises(OutputError, match="the disk is full") as refused:
        growing.add(LINES)
    assert refused.value.hint == "Lines so far stay in rows.jsonl.partial: repeat the command."
    growing.close()
    monkeypatch.undo()
    assert grow(tmp_path / "rows.jsonl") == 0


class Full:
    """A file on a full disk."""

    def write(self, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise OSError(28, "No space left on device")
