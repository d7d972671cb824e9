"""Write what in the README and in docs/ is made of figures: result files say it, a module in pages/ for
each page puts it into words.

make demo && python tools/render_docs.py --demo hydra-demo --readme
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import benchmarks, entities, front, paper, readme, showdown

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def result(name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def put_between(path: Path, marks: tuple[str, str], content: str) -> None:
    begin, end = marks
    before, rest = path.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n\n{content}\n\n{end}{after}", encoding="utf-8")


def demo(folder: Path) -> None:
    report = json.loads((folder / "results.json").read_text())
    put_between(DOCS / "guide" / "commands.md", readme.DEMO, readme.demo_table(report))
    put_between(ROOT / "README.md", readme.LEAD, readme.demo_lead(report))
    picture = readme.hydra_svg(json.loads((folder / "hydra.heads.json").read_text()))
    (DOCS / "hydra.svg").write_text(picture, encoding="utf-8")


def outputs() -> None:
    """Paste what the commands of README and of two guides print, in the folders that the tests run them in."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    models = importlib.import_module("own_models")
    guide = DOCS / "guide" / "your-model.md"
    pasted(ROOT / "README.md", "", lambda folder: None)
    pasted(guide, "## A folder", models.text_folder)
    pasted(guide, "## A file", models.pictures)
    pasted(DOCS / "guide" / "text-pairs.md", "## A complete example", models.pair_folder)


def pasted(page: Path, heading: str, make: Callable[[Path], None]) -> None:
    """Run the commands of a page, or below one of its headings, in a folder that is made for them; paste what they print."""
    text = page.read_text(encoding="utf-8")
    section = text
    if heading:
        section = heading + text.split(heading)[1].split("\n## ")[0]
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        printed = readme.with_outputs(section, Path(folder))
    page.write_text(text.replace(section, printed), encoding="utf-8")


def write_pages() -> None:
    """Write the pages that consist of figures, and README's part of them."""
    costs = result("front")
    if costs is not None:
        front.plot(costs, DOCS / "front.svg")
        (DOCS / "reference" / "front.md").write_text(front.page(costs), encoding="utf-8")
    (DOCS / "reference" / "benchmarks.md").write_text(benchmarks.page(result), encoding="utf-8")
    shown, few = result("showdown"), result("few")
    if shown is not None and few is not None:
        showdown.plot(shown, DOCS / "showdown.svg")
        (DOCS / "reference" / "showdown.md").write_text(showdown.page(shown, few), encoding="utf-8")
        put_between(ROOT / "README.md", showdown.MARKS, showdown.lead(shown, few))
    tables = result("paper")
    if tables is not None:
        (DOCS / "reference" / "paper.md").write_text(
            paper.page(tables, result("starts")), encoding="utf-8"
        )
    tagged = result("entities")
    if tagged is not None:
        (DOCS / "reference" / "entities.md").write_text(entities.page(tagged), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--demo",
        type=Path,
        help="also write what the demo gave: the guide's table and docs/hydra.svg",
    )
    parser.add_argument(
        "--readme",
        action="store_true",
        help="also run the commands of README and of two guides, and paste what they print",
    )
    arguments = parser.parse_args()
    if arguments.demo is not None:
        demo(arguments.demo)
    if arguments.readme:
        outputs()
    write_pages()


if __name__ == "__main__":
    main()
