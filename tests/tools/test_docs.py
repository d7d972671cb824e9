"""What the docs say in figures is what the result files hold."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PASSAGES = ("decision", "cascade", "corruptions", "probe", "serve")


def test_each_passage_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    assert tuple(importlib.import_module("render_docs").PASSAGES) == PASSAGES


@pytest.mark.parametrize("name", PASSAGES)
def test_the_figures_of_a_passage_are_those_measured(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    page, (begin, end), passage = importlib.import_module("render_docs").PASSAGES[name]
    results = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    between = text.partition(begin)[2].partition(end)[0]
    assert between.strip() == passage(results).strip(), "run tools/render_docs.py"


def test_the_api_page_names_what_there_is() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    for path in re.findall(r"^::: (\S+)$", page, re.M):
        assert pkgutil.resolve_name(path).__doc__, path


def test_the_readme_stays_short() -> None:
    start, _, rest = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("## Where to go next")
    )
    assert rest
    assert len(start.split()) <= 900


def test_the_figures_of_the_benchmarks_are_those_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    render = importlib.import_module("render_docs")
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    assert page == render.benchmarks(render.result), "run tools/render_docs.py"


def test_the_figures_of_the_front_are_those_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    render = importlib.import_module("render_docs")
    page = (ROOT / "docs" / "reference" / "front.md").read_text(encoding="utf-8")
    assert page == render.front(render.result("front")), "run tools/render_docs.py"
    begin, end = render.README
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.split(begin)[1].split(end)[0].strip() == render.worth(render.result("front"))


def test_the_figures_of_other_problems_are_those_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    render = importlib.import_module("render_docs")
    page = (ROOT / "docs" / "reference" / "evidence.md").read_text(encoding="utf-8")
    tables = render.problem_tables(render.result("problems"))
    assert page.endswith(tables), "run tools/render_docs.py"
    for task in render.result("problems").values():
        assert len(task["seeds"]) == 3
