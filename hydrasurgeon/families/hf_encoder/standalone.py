"""Text of this package that runs without it: the scores' own code, in the file by which stock
transformers decides.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.resources import files
from inspect import getsource

from hydrasurgeon.files.decided import FITTED, LOGITS, OnLogits

PACKAGE = "hydrasurgeon."
"""What the modules whose text is taken begin with."""
TABLES = {"stored_scores", "logit_scores"}
"""What makes the tables of scores in the template; the text spells them out."""


def standalone(template: str) -> str:
    """The template, with the text of what it imports of this package in place of the imports."""
    lines, texts = template.splitlines(), _Texts()
    kept = list(lines)
    for node in ast.parse(template).body:
        at = slice(node.lineno - 1, node.end_lineno)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                if alias.name not in TABLES:
                    texts.take(str(node.module), alias.name)
            kept[at] = [""] * len(kept[at])
        elif isinstance(node, ast.Assign) and TABLES & {*_names(node)}:
            tables = _tables(texts)
            kept[at] = [f"{texts}\n\n\n{tables}"]
    return "\n".join(kept) + "\n"


def deciding() -> str:
    """The file that a directory with a decision state gets."""
    return standalone(
        (files("hydrasurgeon.families.hf_encoder") / "deciding_hydrasurgeon.py").read_text(
            encoding="utf-8"
        )
    )


def _tables(texts: _Texts) -> str:
    rows, of_logits = list[str](), list[str]()
    for kind, (home, parts) in FITTED.items():
        module, _, name = home.partition(":")
        texts.take(module, f"score_{name}")
        rows.append(f'    "{kind}": ({(*parts,)!r}, score_{name}),')
    for kind, row in LOGITS.items():
        names = f"terms_{row.terms}", f"score_{kind.replace('-', '_')}"
        for name, home in zip(names, (OnLogits("logits").home, row.home), strict=True):
            texts.take(home, name)
        of_logits.append(f'    "{kind}": ({", ".join(names)}),')
    return "\n".join(["FITTED = {", *rows, "}", "LOGITS = {", *of_logits, "}"])


class _Texts:
    """Definitions, each behind those that it uses."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._imports: dict[str, None] = {}
        self._homes: dict[str, str] = {}

    def take(self, module: str, name: str) -> None:
        """A function or constant of a module, and what it uses of this package."""
        assert self._homes.setdefault(name, module) == module, f"{name} is defined in two modules"
        if name in self._texts:
            return
        lines, definitions, imported = _parsed(module)
        node = definitions[name]
        for used in dict.fromkeys(_names(node)):
            if imported.get(used, "").startswith(PACKAGE):
                self.take(imported[used], used)
            elif used in imported:
                self._imports[f"from {imported[used]} import {used}"] = None
            elif used in definitions and used != name:
                self.take(module, used)
        self._texts[name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])

    def __str__(self) -> str:
        return "\n\n\n".join(["\n".join(self._imports), *self._texts.values()])


@cache
def _parsed(module: str) -> tuple[list[str], dict[str, ast.stmt], dict[str, str]]:
    """The lines of a module, its definitions by name, and the modules that it has other names from."""
    text = getsource(import_module(module))
    definitions: dict[str, ast.stmt] = {}
    imported: dict[str, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                definitions |= {
                    part.id: node for part in ast.walk(target) if isinstance(part, ast.Name)
                }
        elif isinstance(node, ast.ImportFrom):
            imported |= {alias.name: str(node.module) for alias in node.names}
    return text.splitlines(), definitions, imported


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a definition uses when it runs: none of its annotations."""
    if isinstance(node, ast.Name):
        yield node.id
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in ("annotation", "returns"):
                yield from _names(child)


if __name__ == "__main__":
    sys.stdout.write(deciding())
