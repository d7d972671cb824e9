"""Write docs/reference/errors.md: every mistake of tests/support/mistakes.py is made, and what is said then goes onto the page.

python tools/render_errors.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from mistakes import MISTAKES, page, run_mistake, scene  # noqa: E402


def main() -> None:
    messages = []
    with tempfile.TemporaryDirectory() as name:
        start = Path(name).resolve() / "start"
        start.mkdir()
        scene(start)
        for number, mistake in enumerate(MISTAKES):
            folder = start.parent / str(number)
            shutil.copytree(start, folder)
            outcome = run_mistake(mistake, folder)
            if outcome.code != mistake.code:
                print(f"{mistake.line}: exit {outcome.code}, not {mistake.code}\n{outcome.message}")
            if outcome.left:
                print(f"{mistake.line}: left {outcome.left}")
            messages.append(outcome.message)
            shutil.rmtree(folder)
    (ROOT / "docs" / "reference" / "errors.md").write_text(page(messages), encoding="utf-8")


if __name__ == "__main__":
    main()
