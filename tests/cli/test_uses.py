"""docs/guide/one-logit.md and router.md: their commands run in order, on toy queries in CLINC150's form."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from own_models import embedder_folder
from row_files import read_lines
from tiny_families import WORDS
from warm import warm_path

ROOT = Path(__file__).parents[2]
INTENTS = ("balance", "alarm", "apr")
"""Two of them are about money."""
SIZES = {"train": 900, "val": 400, "test": 250}
SMALLER = {
    "hf:sentence-transformers/all-MiniLM-L6-v2": "minilm",
    "--risk 0.05": "--risk 0.2",
    "--risk 0.02": "--risk 0.2",
}
"""What a toy needs instead: no hub, and promises that a few hundred texts can keep."""


def queries(random: np.random.Generator, count: int, words: int) -> list[list[str]]:
    """Texts in which one word says the intent."""
    rows = []
    for number in random.integers(0, len(INTENTS), count):
        text = [WORDS[number], *random.choice(WORDS[4:], size=words)]
        rows.append([" ".join(random.permutation(text)), INTENTS[number]])
    return rows


def folder(place: Path) -> None:
    """minilm/, an untrained embedder, and data_full.json."""
    random = np.random.default_rng(0)
    data = {part: queries(random, size, 4) for part, size in SIZES.items()}
    for part, size in (("oos_val", 60), ("oos_test", 100)):
        strange = [" ".join(random.choice(WORDS[4:], size=8)) for _ in range(size)]
        data[part] = [[text, "oos"] for text in strange]
    (place / "data_full.json").write_text(json.dumps(data))
    embedder_folder(place)
    (place / "embedder").rename(place / "minilm")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["one-logit", "router"])
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    folder(tmp_path)
    text = (ROOT / "docs" / "guide" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.S)
    environment = os.environ | {"PATH": warm_path()}
    for block in blocks[1:]:  # the first one downloads
        for theirs, ours in SMALLER.items():
            block = block.replace(theirs, ours)
        done = subprocess.run(
            ["bash", "-ec", block], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    if page == "router":
        answers = (tmp_path / "answers.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in answers]
        kept = [row for row in rows if row["answer"] in INTENTS]
        assert len(kept) > 100
        assert sum(row["answer"] != row["data_label"] for row in kept) < 0.2 * len(kept)
        return
    guarded = read_lines(tmp_path / "guarded.jsonl")
    assert {row["answer"] for row in guarded} <= {"yes", "no", "abstain", "unfamiliar"}
    money = [row["answer"] for row in guarded if row["label"] == "yes"]
    assert money.count("no") <= 0.2 * len(money)
