"""build of token classifiers: its figures are those of `eval`, text by text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_tokens
from tiny_families import WORDS

import hydrasurgeon as hs


def table(place: Path, seed: int, rows: int = 120) -> str:
    """Some words are entities, mostly."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        words = [str(word) for word in random.choice(WORDS[4:], size=random.integers(4, 10))]
        named = [(word in WORDS[4:7]) != (random.random() < 0.1) for word in words]
        tags = ["B-A" if name else "O" for name in named]
        lines.append(json.dumps({"tokens": words, "tags": tags}))
    place.write_text("\n".join(lines) + "\n")
    return str(place)


@pytest.mark.slow
def test_what_is_shown_is_what_eval_says(tmp_path: Path) -> None:
    train, val = (table(tmp_path / f"{name}.jsonl", seed) for name, seed in (("t", 1), ("v", 2)))
    tokens = {str(json.loads(line)["tokens"]) for line in Path(train).read_text().splitlines()}
    rows = [json.loads(line) for line in Path(val).read_text().splitlines()]
    new = [json.dumps(row) for row in rows if str(row["tokens"]) not in tokens]
    Path(val).write_text("\n".join(new) + "\n")  # `build` leaves out rows that trained the model
    model = tmp_path / "model.safetensors"
    settings = {"lr": "5e-3", "epochs": "6"}
    hs.finetune(tiny_tokens.write(tmp_path / "tagger"), data=train, set=settings, out=model)
    options = {"data": train, "val": val, "device": "cpu"}
    hs.build(model, budget="macs=0.8,1", out=f"{tmp_path / 'front'}/", **options)
    record = json.loads((tmp_path / "front" / "front.json").read_text())
    single = next(row for row in record["references"] if row["name"].startswith("single"))
    (seen,) = hs.evaluate(model, data=val, device="cpu").report.results
    # A temperature changes no tag; of words that have none nothing is counted.
    assert seen.id.f1 > 0.3
    assert single["f1"] == pytest.approx(seen.id.f1, abs=1e-9)
    assert single["token_accuracy"] == pytest.approx(seen.id.token_accuracy, abs=1e-9)
    for rung in record["rungs"]:
        (ready,) = hs.evaluate(tmp_path / "front" / rung["path"], data=val).report.results
        assert rung["f1"] == pytest.approx(ready.id.f1, abs=1e-9)
        assert rung["nll"] == pytest.approx(ready.id.nll, abs=0.03)  # of both halves' constants
        assert rung["errors"]["f1"] > 0
