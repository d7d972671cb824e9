"""Text of unknown origin as one line that shows what is in it: nothing in it moves a cursor, a reader or a Markdown
page."""

from __future__ import annotations


def visible(text: object) -> str:
    r"""Control characters, line breaks, bidirectional marks and the like as `\n`, `\x1b`, `\u202e`; the rest as it
    is."""
    return "".join(c if c.isprintable() else escaped(c) for c in str(text))


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def code(text: object) -> str:
    r"""A Markdown code span, in which no link, tag or emphasis means anything, fit for a table."""
    shown = visible(text).replace("|", r"\x7c") or " "
    fence = "`"
    while fence in shown:
        fence += "`"
    # A backtick at either end would join the fence; Markdown takes one space off both ends again.
    pad = " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"
