"""Tables in Markdown: words in the first column, figures in the others."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    align = "|---|" + "---:|" * (len(head) - 1)
    return ["| " + " | ".join(head) + " |", align, *("| " + " | ".join(row) + " |" for row in rows)]
