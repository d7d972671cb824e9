"""`.eval_results/*.yaml` beside a model card: the accuracy on a data set of the hub, in the format that its
leaderboards read.

One entry is one number on one task of one data set (https://huggingface.co/docs/hub/eval-results), so calibration and
OOD
detection stay in the card. The hub shows it where the data set is registered as a benchmark.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.card import EVAL_RESULTS
from hydrasurgeon.files.atomic import not_written, write_text
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.measuring.results import Result

SPEC = re.compile(r"hf:(?P<id>\w[\w.-]*/\w[\w.-]*)(?:/(?P<config>\w[\w.-]*))?:(?P<split>\w[\w.-]*)")
"""A data set of the hub with its organisation: without one the hub knows no leaderboard."""


def entry(result: Result, data: DataRecord) -> dict[str, Any] | None:
    """The result as the hub wants it; None where the data are not on the hub."""
    match = SPEC.fullmatch(data.spec)
    if match is None:
        return None
    notes = (
        f"accuracy in %, {data.rows} samples of {match['split']}, sha256 {data.sha256}; hydrasurgeon eval,"
        f" {result.members} member{'s' if result.members > 1 else ''}"
    )
    return {
        "dataset": {"id": match["id"], "task_id": match["config"] or "default"},
        "value": round(100 * result.id.accuracy, 4),
        "notes": notes,
    }


def write_eval_results(folder: Path, result: Result, data: DataRecord) -> Path | None:
    """Put the result into a directory; None where there is nothing to be put."""
    from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]

    content = entry(result, data)
    if content is None:
        return None
    path = folder / EVAL_RESULTS
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise not_written(path, error, "The model card is written.") from error
    write_text(path, yaml_dump([content], sort_keys=False))
    return path
