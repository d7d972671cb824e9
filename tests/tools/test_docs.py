"""What the docs say in figures is what the result files hold."""

from __future__ import annotations

import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from hydrasurgeon.cli.app import application

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from pages import benchmarks, entities, front, paper, showdown  # noqa: E402
from render_docs import result  # noqa: E402

PLAIN = [*sorted((ROOT / "docs" / "guide").glob("*.md")), ROOT / "docs" / "glossary.md"]
"""Pages whose sentences are counted."""


def test_the_api_page_names_what_there_is() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    for path in re.findall(r"^::: (\S+)$", page, re.M):
        assert pkgutil.resolve_name(path).__doc__, path


def test_the_docs_stay_short() -> None:
    """In words: numbers and bars of tables are none."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = {
        page: len(re.findall(r"\S*[A-Za-z]\S*", page.read_text(encoding="utf-8"))) for page in pages
    }
    assert words.pop(ROOT / "README.md") <= 1200
    assert sum(words.values()) <= 24_000
    for page, count in words.items():
        assert count <= 800 or page.parent.name != "guide", page


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of a page, without code, tables, headings and the targets of links."""
    text = re.sub(r"<!--.*?-->|^```.*?^```$", "", text, flags=re.S | re.M)
    text = re.sub(r"^(?:    |#|\|).*$", "", text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.M):
        yield from (s for s in re.split(r"(?<=[.!?])\W*\s+", block) if re.search(r"\w", s))


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.stem)
def test_a_page_is_easy_to_read(page: Path) -> None:
    """At most 20 words a sentence on average, none over 40, and none that begins with "Of"."""
    sentences = list(sentences_of(page.read_text(encoding="utf-8")))
    lengths = [len(re.findall(r"\S*\w\S*", sentence)) for sentence in sentences]
    assert sum(lengths) <= 20 * len(lengths)
    for sentence, length in zip(sentences, lengths, strict=True):
        assert length <= 40, sentence
        assert not re.match(r"\W*(Of|By|In what)\b", sentence), sentence


def test_ci_runs_the_commands_that_the_readme_names() -> None:
    """Each stands in a block of its own, so that a reader can copy it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    for command in ("make demo", "make test"):
        assert f"```bash\n{command}\n```" in text
        assert command in ci


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("benchmarks", lambda: benchmarks.page(result)),
        ("entities", lambda: entities.page(result("entities"))),
        ("front", lambda: front.page(result("front"))),
        ("paper", lambda: paper.page(result("paper"), result("starts"))),
        ("showdown", lambda: showdown.page(result("showdown"), result("few"))),
    ],
)
def test_the_figures_of_a_page_are_those_measured(name: str, page: Callable[[], str]) -> None:
    text = (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert text == page(), "run tools/render_docs.py"


def test_the_figures_of_the_readme_are_those_measured() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    begin, end = showdown.MARKS
    assert text.split(begin)[1].split(end)[0].strip() == showdown.lead(
        result("showdown"), result("few")
    )


def commands_of(text: str) -> Iterator[list[str]]:
    """The words of each command in a page's blocks of code, comments and pipes apart."""
    for fenced, indented in re.findall(r"```\w+\n(.*?)```|((?:^    .*\n)+)", text, re.S | re.M):
        for line in (fenced or indented).replace("\\\n", " ").splitlines():
            command = re.split(r" [|>#]", line.strip())[0]
            if command.startswith("hydrasurgeon ") and not re.search(r"CKPT|\$|…", command):
                yield shlex.split(command)[1:]


def test_every_command_that_a_page_shows_is_one() -> None:
    """Its options too; slow tests run those of the guide."""
    known = get_command(application(None)).commands  # type: ignore[attr-defined]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    shown = [words for page in pages for words in commands_of(page.read_text(encoding="utf-8"))]
    assert len(shown) > 100
    for name, *words in shown:
        if name != "help":
            known[name].make_context(name, words)


def test_the_readme_has_the_figures_of_models_that_share_no_start() -> None:
    rows = {
        title: cells for title, *cells in paper.start_rows(result("starts")["clothes"]["trios"])
    }
    titles = ("hydra of half the heads, a quarter of the neurons", "single, mean of the three")
    more = ("… the best of them, by NLL", "Deep Ensemble")
    hydra, single, best, ensemble = (rows[title] for title in (*titles, *more))
    nll, usual, least, many = (row[2].split("±")[0] for row in (hydra, single, best, ensemble))
    cost = hydra[0]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"an NLL of {nll} at {cost} times the cost of a single model" in text
    assert f"Single models had {usual} on average and {least} at best, and a Deep" in text
    assert f"Deep Ensemble {many} at three times the cost" in text
