"""Files of class names and templates: a list of texts, or a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.prompts import read_labels, read_templates


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("n.json", b"[" * 100_000), ("n.json", b"{}"), ("n.json", b"[1, 2]"), ("n.json", b"[NaN]"), ("n.json", b""), ("n.json", b'["\\ud800", "a"]'),
        ("n.txt", b"\xff\xfe"), ("n.txt", b"x\n" * (9 << 20)),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for read in (read_labels, lambda text: read_templates([text])):
        with pytest.raises(UsageError) as refused:
            read(str(path))
        assert len(refused.value.message) < 300 + len(str(tmp_path))


def test_a_long_template_is_not_repeated_whole(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("x" * 5000)
    with pytest.raises(UsageError, match="label") as refused:
        read_templates([str(tmp_path / "t.txt")])
    assert len(refused.value.message) < 200
