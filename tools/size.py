"""How large the package is, and whether it keeps to the budget in tools/size.json: `python tools/size.py`.

Whoever raises the budget says why in the commit.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

TOOLS = Path(__file__).parent
PACKAGE = TOOLS.parent / "hydrasurgeon"


def sizes(package: Path) -> dict[str, int]:
    """Lines, modules, classes and `raise` statements of all Python files under a folder."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    return {
        "lines": sum(len(text.splitlines()) for text in texts),
        "modules": len(texts),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "raise": sum(isinstance(node, ast.Raise) for node in nodes),
    }


def main() -> int:
    """Print each size beside its budget; 1 where one is larger."""
    budget = json.loads((TOOLS / "size.json").read_text(encoding="utf-8"))
    measured = sizes(PACKAGE)
    for name, most in budget.items():
        print(f"{name}: {measured[name]} of {most}{' TOO MANY' if measured[name] > most else ''}")
    return int(any(measured[name] > most for name, most in budget.items()))


if __name__ == "__main__":
    sys.exit(main())
