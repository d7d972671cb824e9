"""A cascade of two ONNX graphs in onnxruntime: every row runs through the first, those that it lets go on through the
rest.

hydrasurgeon export ready --format onnx --cascade -o ready.onnx     # ready.first.onnx and ready.rest.onnx
python cascade.py ready.onnx inputs.npz answers.npz
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it reports sessions to its maker otherwise
import onnxruntime

ANSWERS = ("probabilities", "uncertainty", "ood_score", "unfamiliar")


class Cascade:
    def __init__(self, path: str | Path) -> None:
        first, rest = (str(Path(path).with_suffix(f".{step}.onnx")) for step in ("first", "rest"))
        self.first = onnxruntime.InferenceSession(first)
        self.rest = onnxruntime.InferenceSession(rest)
        self.takes = [each.name for each in self.rest.get_inputs()]

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Answers by name, and `went_on`: which rows all members answered."""
        names = [each.name for each in self.first.get_outputs()]
        made = dict(zip(names, self.first.run(None, dict(inputs)), strict=True))
        answers = {name: made[name].copy() for name in ANSWERS}
        going = answers["went_on"] = made["goes_on"]
        if going.any():
            known = {**inputs, **made}
            more = self.rest.run(list(ANSWERS), {name: known[name][going] for name in self.takes})
            for name, values in zip(ANSWERS, more, strict=True):
                answers[name][going] = values
        return answers


if __name__ == "__main__":
    _, model, inputs, out = sys.argv
    np.savez(out, **Cascade(model)(dict(np.load(inputs))))
