"""tokenizer.json: how much longer it may make a text. What else it says, the tokenizers library checks itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from hydrasurgeon.errors import CheckpointError

# Of a text, by what compounds: replacements, prefixes, bytes spelt as letters. Tokenizers in use stay below ten.
MAX_GROWTH = 64
# Steps from a text to its words; tokenizers in use have five or so.
MAX_STEPS = 64
# Words around a text, such as [CLS] and [SEP].
MAX_ADDED = 64

PARTS = ("normalizers", "pretokenizers", "processors")
"""Where a sequence of steps keeps them."""


def check_growth(document: Any, where: str) -> None:
    """CheckpointError for a tokenizer of which some lines could make gigabytes of a letter."""
    parts = document if isinstance(document, Mapping) else {}
    before = [*_steps(parts.get("normalizer")), *_steps(parts.get("pre_tokenizer"))]
    after = list(_steps(parts.get("post_processor")))
    if (
        len(before) + len(after) > MAX_STEPS
        or prod(map(_growth, before)) > MAX_GROWTH
        or sum(map(_added, after)) > MAX_ADDED
    ):
        raise CheckpointError(
            f"{where}: makes texts more than {MAX_GROWTH} times as long, or in more than {MAX_STEPS} steps",
            hint="It was made to fill the memory: do not use it.",
        )


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """One step after another, out of sequences within sequences."""
    if not isinstance(part, Mapping):
        return
    if part.get("type") != "Sequence":
        yield part
        return
    for name in PARTS:
        for each in _list(part.get(name)):
            yield from _steps(each)


def _growth(step: Mapping[str, Any]) -> float:
    if step.get("type") == "ByteLevel":
        return 2  # every byte beyond ASCII becomes a letter of two
    if step.get("type") == "Prepend":
        return 1 + len(str(step.get("prepend")))
    if step.get("type") != "Replace":
        return 1
    content, pattern = str(step.get("content")), step.get("pattern")
    literal = pattern.get("String") if isinstance(pattern, Mapping) else None
    if isinstance(literal, str) and literal:
        return max(1, len(content) / len(literal))
    return 1 + len(content)  # an expression may match between all letters


def _added(step: Mapping[str, Any]) -> int:
    """How many words a template puts around a text, which it holds once."""
    single, special = _list(step.get("single")), step.get("special_tokens")
    if sum(isinstance(piece, Mapping) and "Sequence" in piece for piece in single) > 1:
        return MAX_ADDED + 1
    words = special.values() if isinstance(special, Mapping) else ()
    longest = max((len(_list(w.get("ids"))) for w in words if isinstance(w, Mapping)), default=1)
    return len(single) * longest


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
