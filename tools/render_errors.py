"""Write docs/reference/errors.md: every mistake of tests/support/mistakes.py is made, and its message goes onto the page.

python tools/render_errors.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "errors.md"
sys.path.insert(0, str(ROOT / "tests" / "support"))

from mistakes import CODES, MISTAKES, Mistake, run_mistake, scene  # noqa: E402

HEAD = """# Errors

The {count} mistakes that users are most likely to make, with the message and the exit code of each. `tools/render_errors.py` makes every mistake
of `tests/support/mistakes.py` and writes this page; a test holds each to its exit code. They are made in a directory with a small ViT `vit`, two
members `a` and `b` pruned from it, their hydra `hydra`, another backbone `small` and labelled images `data.npz`. `0.…` and `0a1b2c…` stand for
figures and hashes of random weights.

Messages go to stderr. A mistake leaves no file behind, with two exceptions: a hydra that `fuse --check` rejects stays for you to look at, and what
`build` has computed stays to be used again. Exit code 0 is success; 130 and 143 follow SIGINT and SIGTERM. A traceback is a bug: please report it.
"""


def page(messages: list[str]) -> str:
    """The whole page, mistakes in the order of their exit codes."""
    parts = [HEAD.format(count=len(MISTAKES))]
    for code, about in CODES.items():
        parts.append(f"## Exit code {code}: {about}\n")
        parts += [
            entry(m, message)
            for m, message in zip(MISTAKES, messages, strict=True)
            if m.code == code
        ]
    return "\n".join(parts)


def entry(mistake: Mistake, message: str) -> str:
    """What is done and what the tool prints then."""
    return (
        f"**{mistake.what}.** `hydrasurgeon {mistake.line}`\n\n```text\n{message.rstrip()}\n```\n"
    )


def main() -> None:
    """Make all mistakes and write the page; those that end otherwise than expected are named."""
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
    PAGE.write_text(page(messages), encoding="utf-8")


if __name__ == "__main__":
    main()
