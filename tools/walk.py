"""Which of the package's files a command enters: `python tools/walk.py eval vit --data demo:test`.

A file is entered when one of its functions is called, imports and class bodies apart; threads and
worker processes are not followed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).parents[1] / "hydrasurgeon"
BODIES = {"<module>", "<lambda>"}


def main(arguments: list[str]) -> int:
    """Run the command; print the files in the order in which they are entered first."""
    from hydrasurgeon.cli.app import run

    entered: dict[str, None] = {}

    def called(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # A class body has no arguments and runs once, in the module that imports it.
        if event == "call" and code.co_name not in BODIES and code.co_flags & 0x2:
            entered.setdefault(code.co_filename)

    sys.setprofile(called)
    code = run(arguments)
    sys.setprofile(None)
    files = [Path(name) for name in entered if Path(name).is_relative_to(PACKAGE)]
    print(*(file.relative_to(PACKAGE) for file in files), sep="\n")
    print(f"{len(files)} files are entered")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
