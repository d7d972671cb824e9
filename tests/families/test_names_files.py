"""Files of class names and templates: a list of texts, or a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.prompts import read_labels, read_templates
from hydrasurgeon.options.shared import ClassNames


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("n.json", b"[" * 100_000),
        ("n.json", b"{}"),
        ("n.json", b"[1, 2]"),
        ("n.json", b"[NaN]"),
        ("n.json", b""),
        ("n.json", b'["\\ud800", "a"]'),
        ("n.txt", b"\xff\xfe"),
        ("n.txt", b"x\n" * (9 << 20)),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for read in (read_labels, lambda text: read_templates([text])):
        with pytest.raises(UsageError) as refused:
            read(str(path))
        assert len(refused.value.message) < 300 + len(str(tmp_path))


def test_a_list_may_be_longer_than_any_file_name() -> None:
    """What the system refuses as a name is a list of class names, or a template, all the same."""
    names = tuple(f"class {number}" for number in range(100))
    assert read_labels(",".join(names)) == names
    assert ClassNames(classes=",".join(names)).recorded() == {"classes": ",".join(names)}
    template = "a photo of a {label}, " * 20
    assert read_templates([template]) == (template,)
