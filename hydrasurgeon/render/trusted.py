"""What was proven about a checkpoint: one line for each check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hydrasurgeon.render.console import as_json, lines, raw, show, styled
from hydrasurgeon.render.pieces import notes

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.checks import Check
    from hydrasurgeon.stages.replay import Replay
    from hydrasurgeon.stages.verify import Verification


MARKS = {True: ("holds", "green"), False: ("does not hold", "bold red"), None: ("not checked", "yellow")}
"""How the outcome of a check is drawn."""
# As wide as the longest mark and a gap.
MARK_CELLS = 15


def verified(result: Verification, *, json: bool, quiet: bool) -> None:
    if json:
        return as_json(result.to_json())
    if quiet:
        return None
    if result.note:
        notes([result.note])
    what = ""
    if result.manifest is not None:
        model = result.manifest.model
        what = f": {result.manifest.kind} of {model.family}:{model.arch}"
    show((str(result.path), "bold"), what)
    _checks(result.checks)
    return None


def _checks(checks: Iterable[Check]) -> None:
    for check in checks:
        mark, style = MARKS[check.holds]
        detail = f": {check.detail}" if check.detail else ""
        show((mark.ljust(MARK_CELLS), style), check.name, (detail, "dim"), hang=MARK_CELLS)


def replayed(result: Replay, *, shell: bool, json: bool, quiet: bool) -> None:
    if json:
        return as_json(result.to_json())
    if shell:
        return raw(result.script)
    if quiet:
        return None
    if result.versions:
        pairs = (f"{name} {then} (now {now})" for name, (then, now) in result.versions.items())
        notes([f"recorded with {', '.join(pairs)}"])
    if not result.ran:
        for command in result.commands:
            lines([styled(f"hydrasurgeon {command}")])  # to be copied: not folded
    _checks(result.checks)
    return None
