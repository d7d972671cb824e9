"""examples/clinc_pairs.py and debian_tags.py: pairs, groups and labels are as they say, and files are apart."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hydrasurgeon.data import open_data

INDEX = """Package: agrep
Source: glimpse (4.18)
Description: finds text
 more of it
Section: non-free/text
Tag: interface::commandline, role::program,
 use::searching

Package: bare
Description: nobody tagged it
Section: text

Package: glimpse
Description: finds more text
Section: text
Tag: use::searching

Package: chess
Description: a game
Section: games
Tag: use::gameplaying
"""


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_queries_meet_their_class_and_others(tmp_path: Path) -> None:
    classes = {}
    for name in ("train", "val", "test"):
        texts = [{"text": f"{name} {i}", "label": i % 8} for i in range(32)]
        classes |= {row["text"]: row["label"] for row in texts}
        (tmp_path / f"clinc-{name}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in texts)
        )
    (tmp_path / "clinc-far.jsonl").write_text('{"text": "far"}\n')
    clinc = importlib.import_module("clinc_pairs")
    said = clinc.main(tmp_path, tmp_path / "a")
    assert said[1] == "pairs-test.jsonl: 256 pairs of 32 queries"
    for name in ("train", "val", "test"):
        made = rows(tmp_path / "a" / f"pairs-{name}.jsonl")
        assert all(
            row["label"] == (classes[row["text"]] == classes[row["text_pair"]]) for row in made
        )
        assert all(
            row["text"] != row["text_pair"] and row["text_pair"].startswith(name) for row in made
        )
        assert Counter(row["label"] for row in made) == {1: 64, 0: 192}
        assert any(row["label"] == 0 for row in made[::8])  # shuffled
    samples = open_data(str(tmp_path / "a" / "pairs-test.jsonl"))
    assert samples.inputs == "text_pair"
    assert samples.groups is not None
    assert {*Counter(samples.groups).values()} == {8}
    assert [{*row} for row in rows(tmp_path / "a" / "pairs-far.jsonl")] == [
        {"text", "text_pair", "group"}
    ] * 8
    clinc.main(tmp_path, tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_packages_have_their_tags_and_sources_stay_together(tmp_path: Path) -> None:
    debian = importlib.import_module("debian_tags")
    first, *_ = debian.packages(INDEX.splitlines(keepends=True))
    tags = ("interface::commandline", "role::program", "use::searching")
    assert (first.source, first.section, first.text, first.tags) == (
        "glimpse",
        "text",
        "finds text",
        tags,
    )
    said = debian.main(INDEX.splitlines(keepends=True), tmp_path)
    files = {path.name: rows(path) for path in tmp_path.iterdir()}
    place = f"tags-{debian.file_of('glimpse', 0)}.jsonl"
    assert files[place] == [
        {"text": "finds more text", "labels": ["use::searching"]},
        {"text": "finds text", "labels": ["interface::commandline", "use::searching"]},
    ]
    assert files["tags-other.jsonl"] == [{"text": "a game"}]
    assert sum(len(file) for name, file in files.items() if name.startswith("tags")) == 3
    assert len(said) == 8
    # There are two tags, of two facets: no claim can be false of a text that has either alone.
    assert files[place.replace("tags", "claims")] == [
        {"text": "finds more text", "text_pair": "use: searching", "label": "entailment"},
        {"text": "finds more text", "text_pair": "interface: commandline", "label": "neutral"},
        {
            "text": "finds text",
            "text_pair": files[place.replace("tags", "claims")][2]["text_pair"],
            "label": "entailment",
        },
    ]
    assert {*files["claims-other.jsonl"][0]} == {"text", "text_pair"}
    classes = ("use::a", "use::b", "works-with::c")
    (_, false, _) = debian.claims([{"text": "x", "labels": ["use::a"]}], classes, name="n", seed=0)
    assert false == {"text": "x", "text_pair": "use: b", "label": "contradiction"}
    shares = Counter(debian.file_of(f"source-{i}", 0) for i in range(2000))
    assert [round(shares[name] / 20) for name, _ in debian.SHARES] == [20, 10, 70]
