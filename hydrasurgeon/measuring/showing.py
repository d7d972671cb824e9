"""What of a report is written for people, and what it is compared with: options of `eval`, checked before the work and
kept after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.measuring.report import Report, Result
from hydrasurgeon.options.measuring import EvaluateOptions
from hydrasurgeon.visible import visible

if TYPE_CHECKING:
    from hydrasurgeon.measuring.answers import Answered

STDOUT = "-"
"""An output that is printed."""
FULL = " (full)"
"""What stands behind the name of a hydra that was also measured as a cascade."""


def places_of(arguments: EvaluateOptions, claimed: Callable[[str | Path | None, str], Path | None]) -> Places:
    """Where the report goes, claimed."""
    files = {"html": arguments.html, "markdown": arguments.markdown, "latex": arguments.latex}
    return Places(
        {
            kind: STDOUT if place == STDOUT else claimed(place, f"--{kind}")
            for kind, place in files.items()
            if place is not None
        }
    )


@dataclass(frozen=True)
class Places:
    """Where each kind of report is written; `STDOUT` for what is printed."""

    of_kind: Mapping[str, str | Path | None]

    def __bool__(self) -> bool:
        return bool(self.of_kind)


def check_reference(wanted: str | None, names: Iterable[str]) -> None:
    """Refuse a reference that no result will be called, before models run."""
    available = list(names)
    if wanted is not None and not {wanted, wanted.removesuffix(FULL)} & {*available}:
        raise UsageError(
            f"--reference {visible(wanted)}: no result is called so{did_you_mean(wanted, available, visible)}",
            hint=f"There are {', '.join(map(visible, available))}.",
        )


def show(
    places: Places,
    report: Report,
    answered: Sequence[Answered],
    manifests: Mapping[str, Manifest],
    *,
    reference: str | None,
    level: float | None,
    seed: int,
    notes: Sequence[str] = (),
) -> dict[str, str]:
    """Write each kind of report; the texts of those that are to be printed."""
    from hydrasurgeon.measuring.page import Material, document, latex, markdown

    material = Material(
        report,
        _in_order(report.results, answered),
        manifests,
        _place(reference, report.results),
        level or 0.95,
        seed,
        tuple(notes),
    )
    makers = {"html": document, "markdown": markdown, "latex": latex}
    printed = {}
    for kind, place in places.of_kind.items():
        text = makers[kind](material)
        if isinstance(place, Path):
            write_text(place, text)
        else:
            printed[kind] = text
    return printed


def _place(reference: str | None, results: Sequence[Result]) -> int:
    names = [result.name for result in results]
    return names.index(reference) if reference in names else 0


def _in_order(results: Sequence[Result], answered: Sequence[Answered]) -> tuple[Answered | None, ...]:
    """Of each result, what it was made of: names may be there twice, but come in the same order."""
    left = list(answered)
    rows: list[Answered | None] = []
    for result in results:
        at = next((at for at, each in enumerate(left) if each.name == result.name), None)
        rows.append(None if at is None else left.pop(at))
    return tuple(rows)
