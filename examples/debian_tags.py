"""Texts with many labels: what Debian's packages say of themselves, and the tags that people gave them.

    apt-get update
    apt-cache dumpavail | python examples/debian_tags.py OUT

Any Debian machine has the index. OUT gets `tags-train.jsonl`, `tags-val.jsonl`, `tags-test.jsonl`: `text`, the one-line
description, and `labels`, those of the LABELS most frequent tags of FACETS that the package has; packages without one
are left out. `tags-other.jsonl` holds descriptions from the sections of OTHER, without labels: near OOD data. Packages
of one source lie in one file, for their descriptions are alike; which one follows from the seed and the source's name.

Files `claims-*.jsonl` are made of the same texts, pairs for inference: `text`, the description, `text_pair`, a claim
such as "use: editing", and `label`: *entailment* where the package has that tag, *contradiction* where it has others of
the facet only, *neutral* where it has none of the facet.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FACETS = ("field", "game", "interface", "use", "web", "works-with")
"""What tags speak of, as far as a description may tell it."""
LABELS = 24
"""Tags that are classes."""
OTHER = ("fonts", "games", "science")
"""Sections whose packages are left aside."""
SHARES = (("test", 20), ("val", 10), ("train", 70))
"""Files, and how many of a hundred sources lie in each."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Package:
    source: str
    section: str
    text: str
    tags: tuple[str, ...]


def packages(lines: Iterable[str]) -> Iterator[Package]:
    """The packages of an index; fields begin at the left, and go on in lines that begin with a space."""
    fields: dict[str, str] = {}
    name = ""
    for line in (*lines, "\n"):
        if not line.strip():
            if "Description" in fields:
                source = fields.get("Source", fields["Package"]).partition(" ")[0]
                tags = tuple(tag.strip() for tag in fields.get("Tag", "").split(",") if tag.strip())
                yield Package(
                    source,
                    fields.get("Section", "").rpartition("/")[2],
                    fields["Description"],
                    tags,
                )
            fields = {}
        elif line[0] in " \t":
            # Of a description only the first line counts.
            fields[name] += line.rstrip() if name == "Tag" else ""
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()


def file_of(source: str, seed: int) -> str:
    """Where the packages of a source lie."""
    place = int(hashlib.sha256(f"{seed} {source}".encode()).hexdigest(), 16) % 100
    for name, share in SHARES:
        if place < share:
            return name
        place -= share
    raise AssertionError("shares make a hundred")


def labelled(index: Iterable[Package], seed: int = 0) -> dict[str, list[Row]]:
    """The rows of each file, every description once."""
    texts = {package.text: package for package in reversed(list(index))}
    inside = [package for package in texts.values() if package.section not in OTHER]
    counts = Counter(
        tag for package in inside for tag in package.tags if tag.partition("::")[0] in FACETS
    )
    classes = {
        tag for tag, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:LABELS]
    }
    files: dict[str, list[Row]] = {name: [] for name, _ in SHARES} | {"other": []}
    for text, package in sorted(texts.items()):
        labels = sorted(classes & {*package.tags})
        if package.section in OTHER:
            files["other"].append({"text": text})
        elif labels:
            files[file_of(package.source, seed)].append({"text": text, "labels": labels})
    return files


def claims(rows: Sequence[Row], classes: Sequence[str], *, name: str, seed: int) -> Iterator[Row]:
    """Each text with a claim that holds, a false one and one that it says nothing of, as far as there are such."""
    draw = random.Random(f"{seed} {name}")
    for row in rows:
        tags = row.get("labels", ())
        facets = {tag.partition("::")[0] for tag in tags}
        met = {
            "entailment": list(tags),
            "contradiction": [
                tag for tag in classes if tag not in tags and tag.partition("::")[0] in facets
            ],
            "neutral": [tag for tag in classes if tag.partition("::")[0] not in facets],
        }
        for label, some in met.items():
            if some:
                facet, _, value = draw.choice(some).partition("::")
                claim = {"text": row["text"], "text_pair": f"{facet}: {value.replace(':', ' ')}"}
                yield {**claim, "label": label} if tags else claim


def main(lines: Iterable[str], out: Path, seed: int = 0) -> list[str]:
    """Write the files; what was written, in words."""
    out.mkdir(parents=True, exist_ok=True)
    said = []
    files = labelled(packages(lines), seed)
    classes = sorted(
        {tag for rows in files.values() for row in rows for tag in row.get("labels", ())}
    )
    for name, rows in files.items():
        pairs = list(claims(rows, classes, name=name, seed=seed))
        for kind, made, what in (("tags", rows, "texts"), ("claims", pairs, "pairs")):
            (out / f"{kind}-{name}.jsonl").write_text(
                "".join(f"{json.dumps(row)}\n" for row in made)
            )
            said.append(f"{kind}-{name}.jsonl: {len(made):,} {what}")
    return said


if __name__ == "__main__":
    sys.stdout.write("\n".join(main(sys.stdin, Path(sys.argv[1]))) + "\n")
