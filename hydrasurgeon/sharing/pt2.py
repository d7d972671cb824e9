"""Captured graphs → .pt2, torch.export's own file."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from hydrasurgeon.engines.program import Exported, Run, exported, silent
from hydrasurgeon.runtime.classifier import Classifier

ABOUT = "hydrasurgeon.json"
"""The extra file in a .pt2 that tells labels, thresholds and weights."""


def to_pt2(model: Classifier) -> Exported:
    """A .pt2 with a dynamic batch (and text length), read back and proven to give torch's outputs."""
    return exported(model, _written, "the .pt2")


def _written(
    program: ExportedProgram, inputs: Sequence[str], outputs: Any, facts: Mapping[str, str]
) -> tuple[bytes, Run]:
    with silent():
        # In memory: on a full disk torch's writer ends the process.
        made = io.BytesIO()
        torch.export.save(program, made, extra_files={ABOUT: json.dumps(facts)})
        call = torch.export.load(io.BytesIO(made.getvalue())).module()
    run = torch.inference_mode()(lambda named: call(*(named[name] for name in inputs)))
    return made.getvalue(), run
