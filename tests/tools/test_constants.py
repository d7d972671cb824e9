"""Each constant of the package has a sentence of its own: in a comment above, or in a string below."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hydrasurgeon"
NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
VARIABLES_OF_TYPES = ("TypeVar", "ParamSpec")


def unexplained(source: str) -> Iterator[str]:
    """Constants with neither."""
    lines, body = source.splitlines(), ast.parse(source).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if constants(statement) and not (is_sentence(following) or lines[statement.lineno - 2].startswith("# ")):
            yield from constants(statement)


def constants(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Assign):
        targets = [each for target in statement.targets for each in ast.walk(target)]
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return []
    value = statement.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) in VARIABLES_OF_TYPES:
        return []
    return [t.id for t in targets if isinstance(t, ast.Name) and NAME.fullmatch(t.id)]


def is_sentence(statement: ast.stmt | None) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def test_each_constant_is_explained() -> None:
    missing = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in unexplained(path.read_text(encoding="utf-8"))
    ]
    assert not missing


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import os\nA = 1\n", ["A"]),
        ("import os\nA: int = 1\nB, _C = 2, 3\n", ["A", "B", "_C"]),
        ('import os\nA = 1\n"""Why."""\n', []),
        ("import os\n# Why.\nA = 1\nB = 2\n", ["B"]),
        ("import os\nT = TypeVar('T')\nTable = dict[str, int]\n", []),
    ],
)
def test_what_is_found(source: str, names: list[str]) -> None:
    assert list(unexplained(source)) == names
