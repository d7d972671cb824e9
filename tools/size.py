"""Print how large the package is: `python tools/size.py`.

Tokens are counted, not lines: names, operators, numbers and strings (an f-string is one), without
comments. The figures inform; nothing fails because of them.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "hydrasurgeon"
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
# From Python 3.12 on, f-strings come in pieces.
FSTRING_START = getattr(tokenize, "FSTRING_START", -1)
FSTRING_END = getattr(tokenize, "FSTRING_END", -2)


def count_tokens(text: str) -> int:
    """Count the tokens of a file's text."""
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


def measure(package: Path) -> dict[str, int]:
    """Count tokens, files, classes and `raise` statements of all Python files under a folder."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    return {
        "files": len(texts),
        "tokens": sum(count_tokens(text) for text in texts),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "raise": sum(isinstance(node, ast.Raise) for node in nodes),
    }


def main() -> None:
    """Print the size of each folder of the package, and of all of it."""
    for folder in (*sorted(path for path in PACKAGE.iterdir() if path.is_dir()), PACKAGE):
        sizes = measure(folder)
        if sizes["files"]:
            print(f"{folder.name:14}" + "".join(f"{name} {n:7,}  " for name, n in sizes.items()))


if __name__ == "__main__":
    main()
