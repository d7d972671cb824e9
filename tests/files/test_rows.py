"""Rows as files: whole or not there, read back as they were, and a full disk said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hydrasurgeon.errors import DataError, OutputError
from hydrasurgeon.files.rows import GROUP, Appended, harmless, line, read_rows, writing

COLUMNS = {"id": "text", "total": "number", "unfamiliar": "flag", "set": "json"}
ROWS: list[dict[str, Any]] = [
    {"id": f"r{i}", "total": i / 7, "unfamiliar": i % 2 == 0, "set": [i]} for i in range(9)
]


def write(place: Path, rows: list[dict[str, Any]] = ROWS) -> None:
    with writing(place, COLUMNS, lambda row: row) as keep:
        keep(rows[:4])
        keep(rows[4:])


def test_lines_and_parquet_are_read_back_as_they_were(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    assert [row for _, row in read_rows(tmp_path / "a.jsonl")] == ROWS
    write(tmp_path / "a.parquet")
    read = [row for _, row in read_rows(tmp_path / "a.parquet")]
    assert read == [{**row, "set": str(row["set"])} for row in ROWS]
    write(tmp_path / "a.csv")
    cells = [row for _, row in read_rows(tmp_path / "a.csv")]
    assert [float(row["total"]) for row in cells] == [row["total"] for row in ROWS]
    assert [row["unfamiliar"] for row in cells] == ["true", "false"] * 4 + ["true"]


def test_a_line_shows_what_a_terminal_would_obey() -> None:
    """C1 controls, bidirectional marks, DEL and what lies above U+FFFF: the same text to a parser."""
    text = (
        "é 漢 👍 \x1b[31m \x9b31m \x90 \u202eabc\u2069 \x7f \u200b \ufeff \U000e0041 \u2028 \ud800"
    )
    shown = line({"id": text, text: [text]})
    assert shown.isprintable()
    assert json.loads(shown) == {"id": text, text: [text]}
    assert shown.startswith(
        '{"id": "é 漢 👍 \\u001b[31m \\u009b31m \\u0090 \\u202eabc\\u2069 \\u007f'
    )
    assert r"\udb40\udc41" in shown
    assert line({"id": "é 漢 👍"}) == '{"id": "é 漢 👍"}'


def test_parquet_in_groups(tmp_path: Path) -> None:
    rows = [{"id": str(i), "total": 0.5, "unfamiliar": False, "set": []} for i in range(GROUP + 5)]
    write(tmp_path / "a.parquet", rows)
    assert [row["id"] for _, row in read_rows(tmp_path / "a.parquet")] == [r["id"] for r in rows]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_what_fails_leaves_what_was_there(tmp_path: Path, kind: str) -> None:
    place = tmp_path / f"a.{kind}"
    place.write_text("before")

    def interrupted() -> None:
        with writing(place, COLUMNS, lambda row: row) as keep:
            keep(ROWS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert place.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match=r"a\.jsonl: cannot be written \(the disk is full\)"):
        write(tmp_path / "a.jsonl")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("=1+1", "'=1+1"),
        (" @SUM(1)", "' @SUM(1)"),
        ("\t=1", "'\t=1"),
        ("-5", "-5"),
        ("+4.5e3", "+4.5e3"),
        ("-", "'-"),
        ("two\nlines", "two\nlines"),
        ("\x1b[31mred\x9b", r"\x1b[31mred\x9b"),
        ("\r=1", r"\r=1"),
    ],
)
def test_harmless_texts(text: str, shown: str) -> None:
    assert harmless(text) == shown


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"id": 1}\n{', "line 2: is not JSON"),
        ("a.csv", b"id\n\xff\n", "is not CSV in UTF-8"),
        ("a.parquet", b"PAR1", "is not parquet"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        list(read_rows(tmp_path / name))


class Full:
    """A file on a disk that has room for so many bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = self.file.write(content[: self.room])
        self.room -= taken
        return int(taken)


def test_what_is_appended_stays_whole_on_a_full_disk(tmp_path: Path) -> None:
    place = tmp_path / "a.jsonl"
    place.write_text('{"id": "before"}\n{"id": "ha')
    kept = Appended(place)
    assert place.read_text() == '{"id": "before"}\n'
    kept._file = Full(kept._file, 25)  # type: ignore[assignment]
    rows = [{"id": f"row {i}"} for i in range(3)]
    assert kept.add(rows) == 2
    assert kept.add(rows) == 3
    kept._file.room = 1000  # type: ignore[attr-defined]
    assert kept.add(rows[1:]) == 0
    kept.close()
    ids = [row["id"] for _, row in read_rows(place)]
    assert ids == ["before", "row 0", "row 1", "row 2"]


APPENDING = """
import sys
from pathlib import Path
from hydrasurgeon.files.rows import Appended

kept = Appended(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for at in range(300):
    assert kept.add([{"id": f"{sys.argv[2]}-{at}-{row}", "x": "x" * 300} for row in range(40)]) == 0
"""


def test_what_several_processes_append_stays_whole(tmp_path: Path) -> None:
    """Whatever one of them writes while another looks for half a line."""
    place = tmp_path / "a.jsonl"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDING, str(place), str(number)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    ids = [row["id"] for _, row in read_rows(place)]
    assert sorted(ids) == sorted(
        f"{p}-{at}-{row}" for p in range(3) for at in range(300) for row in range(40)
    )


def test_half_a_line_alone_is_cut_off(tmp_path: Path) -> None:
    place = tmp_path / "a.jsonl"
    place.write_text('{"id": "ha')
    kept = Appended(place)
    assert kept.add([{"id": 1}]) == 0
    kept.close()
    assert place.read_text() == '{"id": 1}\n'
