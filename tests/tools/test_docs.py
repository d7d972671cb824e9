"""What the docs say in figures is what the result files hold."""

from __future__ import annotations

import pkgutil
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from pages import benchmarks, front, readme  # noqa: E402
from render_docs import PASSAGES, result  # noqa: E402


@pytest.mark.parametrize("name", PASSAGES)
def test_the_figures_of_a_passage_are_those_measured(name: str) -> None:
    page, (begin, end), passage = PASSAGES[name]
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    between = text.partition(begin)[2].partition(end)[0]
    assert between.strip() == passage(result(name)).strip(), "run tools/render_docs.py"


def test_the_api_page_names_what_there_is() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    for path in re.findall(r"^::: (\S+)$", page, re.M):
        assert pkgutil.resolve_name(path).__doc__, path


def test_the_readme_stays_short() -> None:
    """Its prose, without commands, outputs and tables."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    start, _, links = text.partition("## Where to go next")
    assert links
    prose = re.sub(r"```.*?```|^[|<].*?$", "", start, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 700


def test_ci_runs_the_commands_that_the_readme_names() -> None:
    """Each stands in a block of its own, so that a reader can copy it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    for command in ("make demo", "make test"):
        assert f"```bash\n{command}\n```" in text
        assert command in ci


def test_the_figures_of_the_benchmarks_are_those_measured() -> None:
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    assert page == benchmarks.page(result), "run tools/render_docs.py"


def test_the_figures_of_the_front_are_those_measured() -> None:
    page = (ROOT / "docs" / "reference" / "front.md").read_text(encoding="utf-8")
    assert page == front.page(result("front")), "run tools/render_docs.py"
    begin, end = readme.FRONT
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.split(begin)[1].split(end)[0].strip() == readme.front_table(result("front"))
