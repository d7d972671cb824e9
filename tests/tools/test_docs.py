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


@pytest.mark.parametrize(("page", "name"), [("shift", "corruptions"), ("probe", "probe")])
def test_the_figures_of_shifts_and_probes(page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    inside = importlib.import_module("inside")
    results = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    begin, end = getattr(inside, name.upper())
    between = text.partition(begin)[2].partition(end)[0]
    assert between.strip() == getattr(inside, name)(results)
