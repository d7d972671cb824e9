"""Check that the pages read easily: `python tools/readability.py [FOLDER|PAGE…]` prints each fault as PATH:LINE.

- The mean sentence of a page has at most 20 words, and no sentence has more than 40.
- No sentence begins with "Of", "By" or "In what".
- No page uses the private words in `PRIVATE`, which only this project's authors understand.

Only prose counts: no code, tables, headings, pictures, comments or addresses of links. Inline code is one word.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs")
MEAN_WORDS = 20
MAX_WORDS = 40
OPENINGS = re.compile(r"\W*(Of|By|In what)\b")
PRIVATE = {
    r"VAL": "validation rows",
    r"plain(est)? rivals?": "baseline",
    r"readers? of words|word reader": "bag-of-words model",
    r"words (first|beside|before)": "cascade or blend",
    r"frozen body": "frozen backbone",
    r"surer|surest|sureness": "more or most confident, confidence",
    r"taught": "trained on pseudo-labels",
    r"set aside": "abstain",
    r"chose nothing": "rows that were not used before",
    r"budget pays|budget could pay": "fits the budget",
    r"rungs?": "budget",
    r"made of": "contains, consists of",
}
"""Private word (a pattern) → what to write instead."""
PRIVATE_WORD = re.compile(rf"\b({'|'.join(PRIVATE)})\b", re.IGNORECASE)
CODE_BLOCK = re.compile(r"^( *)```.*?^\1```[^\n]*$|<!--.*?-->", re.S | re.M)
NOT_PROSE = re.compile(r"\s*(\||#|!\[|!!!|:::|\{[%#]|---)")
LIST_ITEM = re.compile(r"^\s*([-*+]|\d+\.) +")
INLINE = (
    (re.compile(r"(`+).+?\1", re.S), "code"),
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)", re.S), r"\1"),
    (re.compile(r"[*_]{2,}|(?<!\w)[*_]|[*_](?!\w)"), ""),
)
"""Markup → the words that a reader sees."""
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')”]*\s+(?=[^\s])(?<!e\.g\. )(?<!i\.e\. )(?<!al\. )")


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs and list items of a page, each with the number of its first line."""
    text = CODE_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    lines: list[str] = []
    start, in_code, after_blank = 0, False, True
    for number, line in enumerate([*text.splitlines(), ""], 1):
        in_code = line.startswith("    ") and (in_code or (after_blank and not lines))
        after_blank = not line.strip()
        is_prose = not (after_blank or in_code or NOT_PROSE.match(line))
        if lines and (not is_prose or LIST_ITEM.match(line)):
            yield start, "\n".join(lines)
            lines = []
        if is_prose:
            start = start if lines else number
            lines.append(line if lines[:1] else LIST_ITEM.sub("", line))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page, each with the number of its first line."""
    for start, block in blocks(text):
        for pattern, replacement in INLINE:
            block = pattern.sub(partial(visible_words, replacement), block)
        position = 0
        for end in [*(match.end() for match in SENTENCE_END.finditer(block)), len(block)]:
            yield start + block.count("\n", 0, position), block[position:end].strip()
            position = end


def visible_words(replacement: str, match: re.Match[str]) -> str:
    """Return the words that a reader sees for a piece of markup, with its line breaks."""
    words = match.expand(replacement)
    return words + "\n" * (match[0].count("\n") - words.count("\n"))


def faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield what is wrong on a page, each with the number of its line."""
    lengths = []
    for line, sentence in sentences(text):
        words = len(re.findall(r"\S*\w\S*", sentence))
        lengths.append(words)
        if words > MAX_WORDS:
            yield line, f"{words} words in a sentence, at most {MAX_WORDS}: {sentence[:50]!r}"
        if opening := OPENINGS.match(sentence):
            yield line, f"a sentence begins with {opening[1]!r}: {sentence[:50]!r}"
        for word in PRIVATE_WORD.finditer(sentence):
            better = next(to for of, to in PRIVATE.items() if re.fullmatch(of, word[0], re.I))
            yield line, f"private word {word[0]!r}, write instead: {better}"
    if lengths and fmean(lengths) > MEAN_WORDS:
        yield 1, f"{fmean(lengths):.1f} words in the mean sentence, at most {MEAN_WORDS}"


def main(arguments: Iterable[str]) -> int:
    """Print the faults of all pages; return 1 if there are any."""
    places = [ROOT / argument for argument in arguments] or [ROOT / page for page in PAGES]
    pages = [page for place in places for page in (sorted(place.rglob("*.md")) or [place])]
    printed = [
        f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{line}: {fault}"
        for page in pages
        for line, fault in faults(page.read_text(encoding="utf-8"))
    ]
    print(*printed, sep="\n", end="\n" * bool(printed))
    return int(bool(printed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
