"""Texts as they come from hurried hands: letters mistyped, words left out."""

from __future__ import annotations

from hydrasurgeon.data.corruptions.constants import TEXT
from hydrasurgeon.data.corruptions.filters import Random

ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
"""Of a keyboard: who means one letter hits the one beside it."""
BESIDE = {key: row[max(0, at - 1) : at] + row[at + 1 : at + 2] for row in ROWS for at, key in enumerate(row)}
"""Letter → the keys beside it."""


def scribbled(text: str, name: str, severity: int, random: Random) -> str:
    """A text spoiled: `typos` or `word_dropout`."""
    chance = TEXT[name][severity - 1]
    return _mistyped(text, chance, random) if name == "typos" else _shortened(text, chance, random)


def _mistyped(text: str, chance: float, random: Random) -> str:
    """Letters left out, doubled, swapped with the next, or hit beside; each draw is made whether it is used or not."""
    chances, kinds, picks = (random.random(len(text)), random.integers(4, size=len(text)), random.random(len(text)))
    typed: list[str] = []
    swapped = False
    for at, letter in enumerate(text):
        if swapped:
            swapped = False
            continue
        following = text[at + 1 : at + 2]
        if chances[at] >= chance or not letter.isalpha():
            typed.append(letter)
        elif kinds[at] == 0:
            continue
        elif kinds[at] == 1:
            typed.append(2 * letter)
        elif kinds[at] == 2 and following.isalpha():
            typed.append(following + letter)
            swapped = True
        else:
            near = BESIDE.get(letter.lower(), letter.lower())
            key = near[int(picks[at] * len(near))]
            typed.append(key.upper() if letter.isupper() else key)
    return "".join(typed)


def _shortened(text: str, chance: float, random: Random) -> str:
    """At least one word stays."""
    words = text.split()
    if not words:
        return text
    draws = random.random(len(words))
    stays = [word for word, draw in zip(words, draws, strict=True) if draw >= chance]
    return " ".join(stays or [words[int(draws.argmax())]])
