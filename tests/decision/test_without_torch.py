"""Deciding needs arrays, and nothing that computes them."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "timm", "datasets", "pandas", "scipy")
DECIDES = """
import sys
from pathlib import Path
import numpy as np
import hydrasurgeon.tasks
from hydrasurgeon.decision import fitting, state
from hydrasurgeon.files.decided import FITTED, Conformal, DecisionRecord, Ood, PerLabel
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tasks.base import rows_of
from hydrasurgeon.statistics import (
    abstain, betting, bootstrap, by_text, conformal, entities, metrics,
    probabilities, temperature, padded_words,
)
from hydrasurgeon.statistics.scores import evidence, fitted, on_features, on_logits

random = np.random.default_rng(0)
for kind in ("single_label", "binary", "multi_label", "token_classification"):
    task, outputs = TASKS[kind], 1 if kind == "binary" else 3
    shape = (6, 2, 4, outputs) if kind == "token_classification" else (6, 2, outputs)
    logits = random.normal(size=shape).astype(np.float32)
    more = {"binary": {"bias": 0.5}, "multi_label": {"labels": PerLabel(temperatures=(1, 2, 3), thresholds=(0.5, 0.5, 0.5))}}
    record = DecisionRecord(
        temperature=1.0 if kind == "multi_label" else 1.5, ood=Ood(score="msp", threshold=0.3, id_flagged=0.05, chosen_by="option"),
        conformal=Conformal(method="lac", coverage=0.9, threshold=0.8), fitted=1, certified=1, **more.get(kind, {}),
    )
    prediction = state.decide(state.State(record, None, task), logits, None)
    rows = rows_of(prediction, [{"id": i} for i in range(6)], names=None, top=3)
    assert len(rows) == 6 and all("unfamiliar" in row for row in rows), rows
number = TASKS["regression"].decide(random.normal(size=(6, 2, 1)))
assert len(number.answer) == 6
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


def test_rows_are_decided_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DECIDES, *HEAVY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
