"""What the docs say in figures is what the result files hold."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_figures_of_decision_states_are_those_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    render = importlib.import_module("render_docs")
    results = json.loads((ROOT / "benchmarks" / "results" / "decision.json").read_text())
    page = (ROOT / "docs" / "decision.md").read_text(encoding="utf-8")
    between = page.partition(render.WORTH)[2].partition(render.WORTH_END)[0]
    assert between.strip() == render.figures(results)
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert "\n".join(render.decision(results)) in benchmarks


def test_the_figures_of_cascades_are_those_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    render = importlib.import_module("render_docs")
    results = json.loads((ROOT / "benchmarks" / "results" / "cascade.json").read_text())
    page = (ROOT / "docs" / "cascade.md").read_text(encoding="utf-8")
    between = page.partition(render.CASCADES)[2].partition(render.CASCADES_END)[0]
    assert between.strip() == render.cascades(results).strip()
