"""docs/reference/evidence.md: what counts as held, and that the page is what the results say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from pages import evidence  # noqa: E402
from pages.evidence.claims import CLAIMS  # noqa: E402
from pages.evidence.seeds import gain  # noqa: E402

pytestmark = pytest.mark.bench


def cell(auroc: float, macs: float = 1.0, **more: float) -> dict[str, Any]:
    values = {
        "accuracy": 0.9,
        "nll": 0.3,
        "ece": 0.02,
        "auroc_near": auroc,
        "auroc_far": auroc,
        "auroc_mean": auroc,
        "fpr95_mean": 1 - auroc,
    } | more
    return {"macs": macs, "mi": 0.1, "plain": values, "calibrated": values}


def rows(*aurocs: float, **more: Any) -> dict[str, Any]:
    return {str(seed): cell(auroc, **more) for seed, auroc in enumerate(aurocs, 1)}


def test_gains_are_paired_by_seed() -> None:
    table = {"a": rows(0.8, 0.7, 0.9), "b": rows(0.7, 0.6, 0.9)}
    better = gain(table, "a", "b", "auroc_mean")
    assert better.mean == pytest.approx(0.2 / 3)
    assert better.error == pytest.approx(0.1 / 3)  # sd 0.0577 of three
    assert better.clear
    lower = gain(table, "a", "b", "fpr95_mean")
    assert lower.mean == pytest.approx(better.mean)
    assert not gain(table, "b", "a", "auroc_mean").clear
    assert gain(table, "a", "c", "auroc_mean") is None
    del table["b"]["1"]
    assert gain(table, "a", "b", "auroc_mean").seeds == 2


def test_the_page_is_what_the_results_say() -> None:
    path = ROOT / "benchmarks" / "results" / "quality.json"
    results = json.loads(path.read_text())
    text = (ROOT / "docs" / "reference" / "evidence.md").read_text(encoding="utf-8")
    looked = json.loads((path.parent / "probe.json").read_text())
    assert text.startswith(evidence.page(results, looked)), "run tools/render_docs.py"
    names = {
        name
        for task in results["tasks"].values()
        for kind in ("rows", "ablations", "shift")
        for name in task.get(kind, {})
    }
    assert names
    for claim in CLAIMS:
        row = f"| {claim.where} | {claim.says} |"
        (line,) = [line for line in text.splitlines() if line.startswith(row)]
        verdict = line.split("|")[3].partition("(")[0].strip()
        assert verdict in ("**held**", "**not held**", "not measured yet")
        if not {claim.first, claim.second} <= names:
            assert verdict == "not measured yet"
