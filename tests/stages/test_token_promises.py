"""What is promised of entities, from a model to its file, its measures and its predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from row_files import write_lines
from tiny_families import WORDS
from tiny_tokens import write

import hydrasurgeon as hs
from hydrasurgeon.measuring.results import IdResult


def table(tagger: Path, place: Path, rows: int, seed: int) -> str:
    """Texts whose tags are what the model finds, but for one word in fifty."""
    random = np.random.default_rng(seed)
    texts = [
        [str(w) for w in random.choice(WORDS, size=random.integers(2, 9))] for _ in range(rows)
    ]
    lines = [{"tokens": words, "tags": ["O"] * len(words)} for words in texts]
    write_lines(place, lines)
    for line, row in zip(lines, hs.predict(tagger, data=str(place), device="cpu"), strict=True):
        for entity in row["entities"]:
            before = " ".join(line["tokens"])[: entity["start"]].split()
            length = len(entity["text"].split())
            for at in range(length):
                line["tags"][len(before) + at] = "I-A" if at else "B-A"
        for at, tag in enumerate(line["tags"]):
            if random.random() < 0.02:
                line["tags"][at] = "O" if tag == "B-A" else "B-A"
            if line["tags"][at] == "I-A" and line["tags"][at - 1] == "O":
                line["tags"][at] = "B-A"
    return write_lines(place, lines)


@pytest.mark.slow
def test_promises_travel_with_the_file(tmp_path: Path) -> None:
    tagger = write(tmp_path / "tagger")
    val, test = (table(tagger, tmp_path / f"{n}.jsonl", 400, n) for n in (1, 2))
    figures: dict[str, IdResult] = {}
    for promise in ("wrong", "missed"):
        out = tmp_path / f"{promise}.safetensors"
        done = hs.calibrate(tagger, data=val, risk=0.3, promise=promise, out=out, device="cpu")
        assert done.decision.ood.chosen_by == "perturbed"
        said = tmp_path / f"{promise}-said.safetensors"
        found = hs.evaluate(out, data=test, predictions=said, device="cpu").report
        figures[promise] = found.results[0].id
        rows = hs.predict(out, data=test, device="cpu")
        answers = [entity["answer"] for row in rows for entity in row["entities"]]
        answered = sum(answer != "abstain" for answer in answers)
        abstain = done.decision.abstain
        share = 1 if abstain is None else abstain.coverage
        assert answered / len(answers) == pytest.approx(share, abs=0.1)
        alone = hs.calibrate(
            predictions=said, risk=0.4, promise=promise, out=tmp_path / "d.safetensors", force=True
        )
        assert (alone.decision.cover is not None) == (promise == "missed")
    wrong, missed = figures["wrong"], figures["missed"]
    assert (wrong.f1, wrong.precision, wrong.recall) == (missed.f1, missed.precision, missed.recall)
    assert wrong.wrong is not None
    assert missed.missed is not None
    assert wrong.wrong <= 0.3
    assert missed.missed <= 0.3
