"""What was proven about a checkpoint: one line for each check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from hydrasurgeon.render.console import as_json, out, say

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.checks import Check
    from hydrasurgeon.stages.verify import Verification


__all__ = ["verified"]

MARKS = {
    True: "[green]holds[/]",
    False: "[bold red]does not hold[/]",
    None: "[yellow]not checked[/]",
}


def verified(result: Verification, *, json: bool, quiet: bool) -> None:
    if json:
        return as_json(result.to_json())
    if quiet:
        return None
    if result.note:
        say(f"note: {result.note}")
    model = result.manifest.model
    out().print(
        f"[bold]{escape(str(result.path))}[/]: {result.manifest.kind} of {model.family}:{escape(model.arch)}"
    )
    out().print(_table(result.checks))
    return None


def _table(checks: Sequence[Check]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=13)
    table.add_column(overflow="fold")
    for check in checks:
        line = f"{escape(check.name)}[dim]: {escape(check.detail)}[/]" if check.detail else escape(check.name)  # fmt: skip
        table.add_row(MARKS[check.holds], line)
    return table
