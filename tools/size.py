"""How large the package is, and whether it keeps to tools/size.json: `python tools/size.py`.

Tokens are counted, not lines: names, operators, numbers and strings (an f-string is one), without
comments. Tokens may lie at most 1 % below it, so that it falls with the package. Whoever raises it names an issue in the
commit's body, and what was deleted for it.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

TOOLS = Path(__file__).parent
PACKAGE = TOOLS.parent / "hydrasurgeon"
LONGEST = 80
SLACK = 0.01
"""By how much of the budget the tokens may lie below it."""
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
# From Python 3.12 on, f-strings come in pieces.
FSTRING_START = getattr(tokenize, "FSTRING_START", -1)
FSTRING_END = getattr(tokenize, "FSTRING_END", -2)


def tokens(text: str) -> int:
    """Tokens of a file's text."""
    count = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == FSTRING_START:
            count += depth == 0
            depth += 1
        elif token.type == FSTRING_END:
            depth -= 1
        elif depth == 0 and token.type in COUNTED:
            count += 1
    return count


def sizes(package: Path) -> dict[str, int]:
    """What the budget counts, over all Python files under a folder."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    return {
        "tokens": sum(tokens(text) for text in texts),
        "conditional expressions": sum(isinstance(node, ast.IfExp) for node in nodes),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "raise": sum(isinstance(node, ast.Raise) for node in nodes),
    }


def long_functions(package: Path) -> Iterator[str]:
    """Functions of more lines than a reader takes in at once."""
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST:
                    yield f"{path}:{node.lineno} {node.name}: {lines} lines, {LONGEST} at most"


def main() -> int:
    """Print each size beside its budget; 1 where one is larger, or a function is too long."""
    budget = json.loads((TOOLS / "size.json").read_text(encoding="utf-8"))
    measured = sizes(PACKAGE)
    too_long = list(long_functions(PACKAGE))
    for name, most in budget.items():
        print(f"{name}: {measured[name]} of {most}{' TOO MANY' * (measured[name] > most)}")
    fallen = measured["tokens"] < (1 - SLACK) * budget["tokens"]
    if fallen:
        print("tokens: lower tools/size.json to what is there")
    print(*too_long, sep="\n", end="\n" * bool(too_long))
    over = any(measured[name] > most for name, most in budget.items())
    return int(over or fallen or bool(too_long))


if __name__ == "__main__":
    sys.exit(main())
