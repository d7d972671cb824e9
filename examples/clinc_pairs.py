"""Queries in pairs, grouped by query: do both mean the same? Made of any labelled texts, such as CLINC150's intents.

    python examples/clinc_pairs.py FOLDER OUT

FOLDER holds `clinc-train.jsonl`, `clinc-val.jsonl` and `clinc-test.jsonl` with `text` and `label`, and texts of none of
these classes in other files `clinc-*.jsonl`. OUT gets `pairs-*.jsonl`: `text`, `text_pair`, `label` (1: the same
intent) and `group`, the query. Both texts of a pair are of one file, so that what is held out stays so; a query
without a class meets texts of the test file, of which none answers it, and has no labels.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SAME, OTHER = 2, 6
"""Texts of its own class, and of others, that each query meets."""
LABELLED = ("train", "val", "test")
"""Files whose texts have classes."""

Row = dict[str, Any]


def pairs(rows: Sequence[Row], *, name: str, seed: int) -> Iterator[Row]:
    """Each text as a query: with some of its class, and some of other classes."""
    draw = random.Random(f"{seed} {name}")
    by_class: dict[Any, list[str]] = defaultdict(list)
    for row in rows:
        by_class[row["label"]].append(row["text"])
    for number, row in enumerate(rows):
        mine = [text for text in by_class[row["label"]] if text != row["text"]]
        others = [label for label in by_class if label != row["label"]]
        same = draw.sample(mine, min(SAME, len(mine)))
        strange = [
            draw.choice(by_class[label]) for label in draw.sample(others, min(OTHER, len(others)))
        ]
        met = [*((text, 1) for text in same), *((text, 0) for text in strange)]
        # In no order that a model which ranks nothing could profit from.
        for text, label in draw.sample(met, len(met)):
            yield {
                "text": row["text"],
                "text_pair": text,
                "label": label,
                "group": f"{name}-{number}",
            }


def unanswered(
    queries: Sequence[Row], texts: Sequence[Row], *, name: str, seed: int
) -> Iterator[Row]:
    """Queries that none of these texts means the same as."""
    draw = random.Random(f"{seed} {name}")
    for number, query in enumerate(queries):
        for row in draw.sample(texts, min(SAME + OTHER, len(texts))):
            yield {"text": query["text"], "text_pair": row["text"], "group": f"{name}-{number}"}


def main(source: Path, out: Path, seed: int = 0) -> list[str]:
    """Write a file of pairs for each file of texts; what was written, in words."""
    files = {
        path.stem.removeprefix("clinc-"): path for path in sorted(source.glob("clinc-*.jsonl"))
    }
    rows = {
        name: [json.loads(line) for line in path.read_text().splitlines()]
        for name, path in files.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    said = []
    for name, texts in rows.items():
        if name in LABELLED:
            made = list(pairs(texts, name=name, seed=seed))
        else:
            made = list(unanswered(texts, rows["test"], name=name, seed=seed))
        (out / f"pairs-{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in made))
        said.append(f"pairs-{name}.jsonl: {len(made):,} pairs of {len(texts):,} queries")
    return said


if __name__ == "__main__":
    sys.stdout.write("\n".join(main(Path(sys.argv[1]), Path(sys.argv[2]))) + "\n")
