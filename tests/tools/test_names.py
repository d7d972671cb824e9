"""Locals are named by what they hold, not by how it came."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "hydrasurgeon"
VAGUE = {"found", "given", "known", "told", "asked", "own"}


def vague(source: str) -> Iterator[str]:
    """Variables and arguments that say nothing; attributes and functions are not counted."""
    tree = ast.parse(source)
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name in VAGUE:
            yield f"line {node.lineno}: {name}"


def test_names_say_what_they_hold() -> None:
    names = [
        f"{path.relative_to(PACKAGE)}, {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in vague(path.read_text(encoding="utf-8"))
    ]
    assert not names


def test_what_is_vague() -> None:
    source = "class A:\n    asked: int\n    def own(self, told):\n        found, x = told\n"
    assert list(vague(source)) == ["line 3: told", "line 4: found"]
