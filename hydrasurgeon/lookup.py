"""Things asked for by name: what is imported when it is first used, what a misspelt word meant,
which packages are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol, TypeVar

from hydrasurgeon.errors import MissingDependency, UsageError, reason

# What a package is called where it is installed from, if not as it is imported.
INSTALLED_AS = {"sklearn": "scikit-learn", "PIL": "pillow", "open_clip": "open_clip_torch"}


LARGEST = 2**63 - 1
"""Largest integer that fits into a manifest, and that torch and numpy take as a seed."""


def imported(place: str) -> Any:
    """Import a module and return its attribute; `place` is `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


@cache
def plugins(group: str) -> dict[str, Any]:
    """Load what other packages add to a table: name → the object behind their entry point of the
    group `hydrasurgeon.GROUP`.
    """
    from importlib.metadata import entry_points

    loaded: dict[str, Any] = {}
    for point in entry_points(group=f"hydrasurgeon.{group}"):
        try:
            loaded[point.name] = point.load()
        except Exception as error:  # whatever their module does
            package = point.value if point.dist is None else point.dist.name
            raise MissingDependency(
                f"{package}: its {point.group} {point.name} cannot be imported ({reason(error)})",
                hint="Update or uninstall this package.",
            ) from error
    return loaded


def whole_number(text: str) -> int | None:
    """Parse plain digits; return None for any other text. `²` is a digit too, and Python reads no
    more than 4,300 of them.
    """
    digits = text.lstrip("0") or "0"
    if not (text.isascii() and text.isdigit() and len(digits) <= len(str(LARGEST))):
        return None
    number = int(digits)
    return number if number <= LARGEST else None


def format_number(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits, and one from 1 on without an exponent: 270
    where Python's `2g` has 2.7e+02.
    """
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text else text


def percent(fraction: float) -> str:
    """Write a fraction in percent, with three digits."""
    return f"{100 * fraction:.3g} %"


def nearest(word: str, words: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the words that a misspelt one may stand for, the likeliest first."""
    import difflib

    return difflib.get_close_matches(word, list(words), n=most, cutoff=cutoff)


def did_you_mean(word: str, words: Iterable[str], shown: Callable[[str], object] = str) -> str:
    """Return ` (did you mean X?)`, to be put behind a message; an empty text if no word is near."""
    return "".join(f" (did you mean {shown(near)}?)" for near in nearest(word, words))


class Named(Protocol):
    """An object that users call by its name."""

    name: ClassVar[str]


NamedObject = TypeVar("NamedObject", bound=Named)


def find_named(
    name: str, candidates: Iterable[NamedObject], *, option: str, noun: str
) -> NamedObject:
    """Return the candidate of this name; refuse a name that none has."""
    by_name = {candidate.name: candidate for candidate in candidates}
    if name not in by_name:
        raise UsageError(
            f"{option} {name}: no such {noun}{did_you_mean(name, by_name)}",
            hint=f"Available: {', '.join(by_name)}.",
        )
    return by_name[name]


def need(*modules: str, purpose: str, extra: str | None = None) -> None:
    """Refuse before any work is done when one of `modules` is not installed; `extra` brings all of
    them.
    """
    missing = [INSTALLED_AS.get(name, name) for name in modules if find_spec(name) is None]
    packages = " ".join(missing) if extra is None else f'"hydrasurgeon[{extra}]"'
    if missing:
        raise MissingDependency(
            (
                f"{purpose} needs {' and '.join(missing)}, which "
                f"{'is' if len(missing) == 1 else 'are'} not installed"
            ),
            hint=f"Run `pip install {packages}`.",
        )
