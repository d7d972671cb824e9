"""Write hydrasurgeon/__init__.pyi, by which editors and type checkers know the options of every stage.

python tools/render_stubs.py
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import hydrasurgeon as hs
from hydrasurgeon.lookup import imported

STUB = Path(hs.__file__).with_name("__init__.pyi")
"""File that is written."""
HEAD = '''"""Written by tools/render_stubs.py from the records of options."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

'''


def stub() -> str:
    """Return the stub file."""
    homes: dict[str, str] = vars(hs)["_HOME"]
    stages = {
        name: imported(place)
        for name, place in homes.items()
        if hasattr(imported(place), "__wrapped__")
    }
    other_homes = [tuple(place.split(":")) for name, place in homes.items() if name not in stages]
    results = [
        (imported_from(function), function.__annotations__["return"])
        for function in stages.values()
    ]
    lines = [
        f"from {module} import {name} as {name}"
        for module, name in sorted([*other_homes, *results])
    ]
    return HEAD + "\n".join(
        [*lines, "", "__version__: str", "", *(signature(*stage) for stage in stages.items())]
    )


def imported_from(function: Callable[..., Any]) -> str:
    """Return the module in which the class that a stage returns is defined."""
    return str(imported(f"{function.__module__}:{function.__annotations__['return']}").__module__)


def signature(name: str, function: Callable[..., Any]) -> str:
    """Return a stage's signature, with one option in each line."""
    parameters = inspect.signature(function).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    lines = []
    for at, parameter in enumerate(parameters):
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.KEYWORD_ONLY not in kinds[:at]:
            lines.append("*")
        default = "" if parameter.default is parameter.empty else " = ..."
        lines.append(f"{parameter.name}: {spelled(parameter.annotation)}{default}")
    inside = "".join(f"    {line},\n" for line in lines)
    return f"def {name}(\n{inside}) -> {function.__annotations__['return']}: ...\n"


def spelled(kind: Any) -> str:
    """Return a type as it is written. An option for several values also takes one."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return spelled(inside[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inside))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(spelled, inside)))
    if origin is tuple:
        return f"{spelled(inside[0])} | Sequence[{spelled(inside[0])}]"
    if origin is Callable:
        return f"Callable[[{', '.join(map(spelled, inside[0]))}], {spelled(inside[1])}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(spelled, inside))}]"
    return "None" if kind in (None, type(None)) else str(kind.__name__)


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
