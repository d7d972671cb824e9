"""Manifests written by released versions stay readable, and are written the same way again."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from hydrasurgeon.files.manifest import json_schema, parse_manifest

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.heads.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_golden_manifest(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    manifest = parse_manifest(text, path.name)
    written = json.loads(manifest.to_json())
    if manifest.record_sha256 is None:  # before there was such a hash
        del written["record_sha256"]
        assert written == json.loads(text)
    else:
        assert manifest.to_json() == text
    jsonschema.validate(json.loads(text), json.loads(json_schema()))


def test_the_golden_files_are_there() -> None:
    assert [path.name for path in GOLDEN] == ["hydra.heads.json", "member.heads.json"]
