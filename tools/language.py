"""Check the language of the code: `python tools/language.py [FOLDER…]` counts, `--list` names each place.

The rules are those of CONTRIBUTING.md:

- a function's docstring begins with an imperative verb (properties may be noun phrases);
- no docstring begins with a subordinate clause or a preposition;
- no participle or pronoun is bound as a name;
- a class name is used once in the package, and so is a module name.

`--check FOLDER…` exits with 1 where one of these folders breaks a rule.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hydrasurgeon"
OTHERS = (
    ROOT / "tools",
    ROOT / "benchmarks",
    ROOT / "examples",
    ROOT / "tests" / "support",
)
CLAUSES = frozenset(["what", "whether", "of", "how", "where", "which", "who", "by", "to", "in"])
"""First words of a docstring that is a clause."""
BANNED = frozenset(
    [
        "made",
        "said",
        "told",
        "found",
        "given",
        "asked",
        "taken",
        "known",
        "own",
        "each",
        "what",
        "both",
        "others",
        "wanted",
        "whole",
        "begun",
        "every",
        "foreign",
        "gone",
        "mine",
        "ours",
        "strange",
        "taught",
        "theirs",
    ]
)
"""Names that tell where a value came from instead of what it holds."""
SHARED_MODULES = frozenset(["__init__", "__main__", "base", "family", "modules", "architectures"])
"""Module names that several packages may use."""
VERBS = frozenset((Path(__file__).parent / "verbs.txt").read_text(encoding="utf-8").split())
"""Verbs that a function's docstring may begin with; add what is missing."""


@dataclass(frozen=True)
class Violation:
    """One place that breaks a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.rule}: {self.text}"


def first_word(docstring: str) -> str:
    """Return the first word of a docstring in lower case."""
    match = re.match(r"\W*([\w'-]+)", docstring)
    return match[1].lower() if match else ""


def is_property(node: ast.AST) -> bool:
    """Return True for a property, whose docstring may be a noun phrase."""
    names = {ast.unparse(decorator) for decorator in getattr(node, "decorator_list", ())}
    return bool(names & {"property", "cached_property", "functools.cached_property"})


def docstrings(tree: ast.AST) -> Iterator[tuple[ast.AST, str, bool]]:
    """Yield each docstring with its node, and whether it belongs to a function."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for index, statement in enumerate(body):
            if not (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                continue
            heads_body = index == 0 and not isinstance(node, ast.If | ast.For | ast.With | ast.Try)
            yield (
                statement,
                statement.value.value,
                heads_body and is_function and not is_property(node),
            )


TYPED = {("deciding.py", "each")}
"""Names that users type, as `hs.predict(each=…)`."""


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each name that the code binds: variables, parameters, attributes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def check_file(path: Path, tree: ast.AST) -> Iterator[Violation]:
    """Yield what a file's docstrings and names break."""
    for node, docstring, is_function in docstrings(tree):
        word, line = first_word(docstring), getattr(node, "lineno", 1)
        summary = docstring.strip().splitlines()[0] if docstring.strip() else ""
        if word in CLAUSES:
            yield Violation(path, line, "clause", summary)
        elif is_function and word not in VERBS:
            yield Violation(path, line, "verb", summary)
    for line, name in bound_names(tree):
        if name.strip("_") in BANNED and (path.name, name) not in TYPED:
            yield Violation(path, line, "name", name)


def check_uniqueness(trees: Mapping[Path, ast.AST]) -> Iterator[Violation]:
    """Yield classes and modules whose name is used twice."""
    classes: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    modules: dict[str, list[Path]] = defaultdict(list)
    for path, tree in trees.items():
        modules[path.stem].append(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append((path, node.lineno))
    for name, places in classes.items():
        for path, line in places if len({path for path, _ in places}) > 1 else ():
            yield Violation(path, line, "class", f"{name} stands in {len(places)} places")
    for name, paths in modules.items():
        if name not in SHARED_MODULES:
            for path in paths if len(paths) > 1 else ():
                yield Violation(path, 1, "module", f"{name}.py stands in {len(paths)} folders")


def violations(folders: Iterable[Path]) -> Iterator[Violation]:
    """Yield all violations below these folders; names must be unique within the package."""
    for folder in folders:
        paths = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
        trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
        for path, tree in trees.items():
            yield from check_file(path, tree)
        if folder == PACKAGE:
            yield from check_uniqueness(trees)


def print_counts(found_violations: Iterable[Violation]) -> None:
    """Print the number of violations of each rule for each folder."""
    rules = ("clause", "verb", "name", "class", "module")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for violation in found_violations:
        parts = violation.path.relative_to(ROOT).parts
        folder = "/".join(parts[: 2 if len(parts) > 2 else 1])
        counts[folder][violation.rule] += 1
        counts["all"][violation.rule] += 1
    print(f"{'':28}" + "".join(f"{rule:>8}" for rule in rules))
    for folder in (*sorted(folder for folder in counts if folder != "all"), "all"):
        print(f"{folder:28}" + "".join(f"{counts[folder][rule]:8}" for rule in rules))


def main() -> int:
    """Print the counts, or each place; return 1 where --check finds a violation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[PACKAGE, *OTHERS])
    parser.add_argument("--list", action="store_true", help="print each place")
    parser.add_argument("--check", action="store_true", help="print each place, and fail")
    options = parser.parse_args()
    violated = list(violations(folder.resolve() for folder in options.folders))
    if options.list or options.check:
        print(*violated, sep="\n", end="\n" * bool(violated))
    else:
        print_counts(violated)
    return int(options.check and bool(violated))


if __name__ == "__main__":
    sys.exit(main())
