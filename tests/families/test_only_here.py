"""Libraries of models are imported in families/ alone, and what a family is called is asked nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hydrasurgeon
from hydrasurgeon.families import FAMILIES

PACKAGE = Path(hydrasurgeon.__file__).parent
LIBRARIES = {"open_clip", "timm", "transformers"}
ELSEWHERE = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] != "families"
]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> Iterator[str]:
    """What a module imports: by statement, or by a name given to `import_module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__", "find_spec"):
                yield str(node.args[0].value)


def compared(tree: ast.AST) -> Iterator[str]:
    """Texts that something is compared with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                each = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
                yield from (str(one.value) for one in each if isinstance(one, ast.Constant))


def test_the_search_finds_imports_and_comparisons() -> None:
    tree = ast.parse(
        "import timm.models\ndef f():\n    from open_clip import CLIP\n    import_module('timm')\n    x == 'timm' or y"
        " in ('hf', 2)"
    )
    assert list(imported(tree)) == ["timm.models", "open_clip", "timm"]
    assert set(compared(tree)) == {"timm", "hf", "2"}


def test_libraries_of_models_are_imported_in_families_only() -> None:
    assert len(ELSEWHERE) > 100
    found = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in ELSEWHERE
        for name in imported(parsed(path))
        if name.partition(".")[0] in LIBRARIES
    ]
    assert not found


def test_no_one_reaches_into_a_librarys_module() -> None:
    """What an OpenCLIP model calls its parts is known in its family only."""
    names = {"encode_image", "encode_text", "logit_bias", "logit_scale", "resblocks", "visual"}
    reached = [
        f"{path.relative_to(PACKAGE)}: {node.attr}"
        for path in ELSEWHERE
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr in names
    ]
    assert not reached


def test_no_one_asks_which_family_it_is() -> None:
    """Nor imports one family's modules: what a family does differently is an attribute or a method of it."""
    own = {place.rpartition(".")[0] for places in FAMILIES.values() for place in places}
    found = []
    for path in ELSEWHERE:
        tree = parsed(path)
        found += [
            f"{path.relative_to(PACKAGE)}: == {text}"
            for text in compared(tree)
            if text in LIBRARIES
        ]
        found += [
            f"{path.relative_to(PACKAGE)}: {name}"
            for name in imported(tree)
            if name.startswith(tuple(own))
        ]
    assert found == ["sharing/timm_entry.py: hydrasurgeon.families.timm_vit.family"]
