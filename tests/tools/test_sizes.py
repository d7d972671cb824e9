"""No function is long, and none takes more than a handful of things."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "hydrasurgeon"
LINES, PARAMETERS = 60, 12

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(module: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(module) if isinstance(node, Function))


def declares_options(path: Path, function: Function) -> bool:
    """A command's parameters are its options as Typer reads them: each is declared there and only handed on."""
    return path.parent.name == "cli" and len(own(function)) > PARAMETERS


def own(function: Function) -> list[str]:
    """What a function takes by name, without what it shares with others (`**keywords`) and the object it belongs to."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def lines(path: Path, function: Function) -> int:
    """From the first line to the last; of a command without its options."""
    assert function.end_lineno is not None
    first = function.body[0].lineno if declares_options(path, function) else function.lineno
    return function.end_lineno - first + 1


def test_functions_are_short_and_take_little() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        for function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(PACKAGE)}: {function.name}"
            assert lines(path, function) <= LINES, where
            assert len(own(function)) <= PARAMETERS or declares_options(path, function), where


def test_what_is_measured() -> None:
    """The measure itself: a long function is long, and a command's options do not count as its own."""
    (long,) = functions(ast.parse("def f(self, a, *, b=1, **c):\n" + "    a\n" * 60))
    assert lines(PACKAGE / "stages" / "x.py", long) == 61
    assert own(long) == ["a", "b"]
    options = ",\n".join(f"    o{i}" for i in range(13))
    (command,) = functions(ast.parse(f"def f(\n{options}\n):\n    '''Says what it does.'''\n    call()\n"))
    assert lines(PACKAGE / "cli" / "x.py", command) == 2
    assert not declares_options(PACKAGE / "stages" / "x.py", command)


def test_the_package_opens_on_few_names() -> None:
    """Wings and modules at the root: more than that nobody takes in at a glance."""
    names = {path.name for path in PACKAGE.iterdir()} - {"__pycache__", "__init__.pyi", "py.typed"}
    assert len(names) <= 25, sorted(names)
