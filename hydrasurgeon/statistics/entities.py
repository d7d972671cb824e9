"""Entities: what tags of words say together.

Tags are numbers: 0 is O, 2k + 1 is B of the kind k and 2k + 2 its I; no word is −1. By strict IOB2 an
entity is a B and what follows of its I without a gap; an I without its B begins none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics.probabilities import runs

Tags = Int[ndarray, "text word"]


@dataclass(frozen=True)
class Entities:
    """All entities of some texts, in their order."""

    text: Int[ndarray, " entity"]
    first: Int[ndarray, " entity"]
    """The number of its first word in the text, and …"""
    last: Int[ndarray, " entity"]
    """… of its last."""
    kind: Int[ndarray, " entity"]

    def __len__(self) -> int:
        return len(self.text)

    def counts(self, texts: int) -> Int[ndarray, " text"]:
        """How many each text has."""
        return np.bincount(self.text, minlength=texts)

    def words(self) -> tuple[Int[ndarray, " word"], Int[ndarray, " word"], Int[ndarray, " word"]]:
        """Of every word of an entity the number of that, its text, and where it stands there."""
        lengths = self.last - self.first + 1
        owner = np.repeat(np.arange(len(self)), lengths)
        begins = (lengths.cumsum(0) - lengths)[owner]
        return owner, self.text[owner], self.first[owner] + np.arange(len(owner)) - begins


def _inside(tags: Tags) -> Bool[ndarray, "text word"]:
    """Which words go on with what the word before is of."""
    before = np.concatenate([np.zeros_like(tags[:, :1]), tags[:, :-1]], axis=1)
    same = (tags + 1) // 2 == (before + 1) // 2
    return same & (tags > 0) & (tags % 2 == 0)


def begun(tags: Tags) -> Tags:
    """With a B wherever an I has none: every word that is not O then belongs to an entity."""
    alone = (tags > 0) & (tags % 2 == 0) & ~_inside(tags)
    return tags - alone.astype(np.int64)


def entities_of(tags: Tags) -> Entities:
    """The entities of each text."""
    groups = (~_inside(tags)).flatten().cumsum(0)
    sizes = np.bincount(groups)
    begins = np.flatnonzero(((tags > 0) & (tags % 2 == 1)).flatten())
    text, first = begins // max(1, tags.shape[1]), begins % max(1, tags.shape[1])
    kind = tags.flatten()[begins] // 2
    return Entities(text, first, first + sizes[groups[begins]] - 1, kind)


def are_right(entities: Entities, truth: Tags) -> Bool[ndarray, " entity"]:
    """Which of them the truth has: of the same kind, from the same word to the same word."""
    true = entities_of(truth)
    last = np.full_like(truth, -1)
    last[true.text, true.first] = true.last
    place = entities.text, entities.first
    return (last[place] == entities.last) & (truth[place] == 2 * entities.kind + 1)


def joint_chances(
    entities: Entities, chances: Float[ndarray, "text word"], how: str
) -> Float[ndarray, " entity"]:
    """The probability of each entity: the product of those of its words, or the least."""
    owner, text, word = entities.words()
    if not len(owner):
        return np.ones(0)
    _, lengths = runs(owner)
    join = {"product": np.multiply, "least": np.minimum}[how]
    joint: ndarray = join.reduceat(chances[text, word], lengths.cumsum() - lengths)
    return joint
