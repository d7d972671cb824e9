"""Write what in the README and in docs/ is made of figures: result files say it, the modules beside this one put it
into words.

make demo && python tools/render_docs.py --demo hydra-demo
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarked import benchmarks
from cascaded import CASCADES, cascades
from decided import WORTH, figures
from evidence import evidence
from inside import CORRUPTIONS, PROBE, corruptions, probe
from priced import README, front, front_plot, worth
from problem_tables import problem_tables
from readme import DEMO, demo_table, hydra_svg, with_outputs
from served import SERVED, served
from traded import trunk_plot

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PASSAGES = {
    "decision": ("guide/decision", WORTH, figures),
    "cascade": ("guide/cascade", CASCADES, cascades),
    "corruptions": ("guide/shift", CORRUPTIONS, corruptions),
    "probe": ("guide/probe", PROBE, probe),
    "serve": ("guide/serving", SERVED, served),
}
"""By file of results: the page it has a passage in, the marks around that passage, and who writes it."""


def result(name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def put_between(path: Path, marks: tuple[str, str], content: str) -> None:
    begin, end = marks
    before, rest = path.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n\n{content}\n\n{end}{after}", encoding="utf-8")


def demo(folder: Path) -> None:
    shown = demo_table(json.loads((folder / "results.json").read_text()))
    put_between(DOCS / "guide" / "commands.md", DEMO, shown)
    readme = ROOT / "README.md"
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        printed = with_outputs(readme.read_text(encoding="utf-8"), Path(copy))
    readme.write_text(printed, encoding="utf-8")
    picture = hydra_svg(json.loads((folder / "hydra.heads.json").read_text()))
    (DOCS / "hydra.svg").write_text(picture, encoding="utf-8")


def pages() -> None:
    """Those that are figures from top to bottom, then the passages of those that are not."""
    curve, quality, prices = result("trunk"), result("quality"), result("front")
    if prices is not None:
        front_plot(prices, DOCS / "front.svg")
        (DOCS / "reference" / "front.md").write_text(front(prices), encoding="utf-8")
        put_between(ROOT / "README.md", README, worth(prices))
    if curve is not None:
        trunk_plot(curve, DOCS / "trunk.svg")
    if quality is not None:
        page = evidence(quality, result("probe")) + "\n" + problem_tables(result("problems") or {})
        (DOCS / "reference" / "evidence.md").write_text(page, encoding="utf-8")
    (DOCS / "reference" / "benchmarks.md").write_text(benchmarks(result), encoding="utf-8")
    for name, (page, marks, passage) in PASSAGES.items():
        results = result(name)
        if results is not None:
            put_between(DOCS / f"{page}.md", marks, passage(results))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--demo",
        type=Path,
        help="also write what the demo gave: README's outputs, the guide's tables",
    )
    folder = parser.parse_args().demo
    if folder is not None:
        demo(folder)
    pages()


if __name__ == "__main__":
    main()
