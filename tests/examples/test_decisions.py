"""examples/decisions: what a server said becomes a model, which is asked the same."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.stages.serve import PACKAGES

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"the extra serve is missing: {name}"
    )
    for name in PACKAGES
]
RECORD = Path(__file__).parents[2] / "examples" / "decisions" / "record.py"


def test_bought_decisions_become_a_model(tmp_path: Path) -> None:
    from listening import serving
    from stock_models import ready, texts
    from systemone import Choice, Client

    model, _ = ready(FAMILIES["BERT"], tmp_path, neurons=None)
    asked: list[Any] = [each["text"] for each in texts(60)]
    asked[1] = {"text": "good film", "user": 3}
    asked[2] = {"said": "good"}
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    question = {"team": {"type": "choice", "criteria": dict.fromkeys("210")}}
    (tmp_path / "question.json").write_text(json.dumps(question))
    bought = tmp_path / "bought.jsonl"
    words = [sys.executable, RECORD, tmp_path / "texts.jsonl", tmp_path / "question.json", bought]
    with serving(model) as at:
        for _ in range(2):  # the second time there is nothing left to ask
            subprocess.run([*words, "--server", at], check=True, timeout=120)
    rows = [json.loads(line) for line in bought.read_text().splitlines()]
    assert len(rows) == 60
    assert [row["text"] for row in rows[1:3]] == ["good film", '{"said":"good"}']
    said = hs.predict(model, data=str(bought), device="cpu", top=3)
    for row, own in zip(rows, said, strict=True):
        assert row["label"] == pytest.approx({str(name): p for name, p in own["top"]}, abs=1e-4)
    student = hs.finetune(
        tmp_path / "source", recipe="probe", data=str(bought), out=tmp_path / "s", device="cpu"
    ).path
    with serving(f"team={student}") as at, Client(at) as client:
        reply = client.system_one(asked[0], {"team": Choice("Which?", dict.fromkeys("210"))})
    assert set(reply.choices["team"].probabilities) == set("210")
