"""Entities of texts, decoded from the tags of their words.

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
    """Number of its first word in the text."""
    last: Int[ndarray, " entity"]
    """Number of its last word in the text."""
    kind: Int[ndarray, " entity"]

    def __len__(self) -> int:
        return len(self.text)

    def counts(self, texts: int) -> Int[ndarray, " text"]:
        """Count the entities of each text."""
        return np.bincount(self.text, minlength=texts)

    def words(self) -> tuple[Int[ndarray, " word"], Int[ndarray, " word"], Int[ndarray, " word"]]:
        """Return for each word of an entity: the entity's number, the text, and the word's place."""
        lengths = self.last - self.first + 1
        owner = np.repeat(np.arange(len(self)), lengths)
        begins = (lengths.cumsum(0) - lengths)[owner]
        return owner, self.text[owner], self.first[owner] + np.arange(len(owner)) - begins


def _inside(tags: Tags) -> Bool[ndarray, "text word"]:
    """Return which words continue the entity of the word before."""
    before = np.concatenate([np.zeros_like(tags[:, :1]), tags[:, :-1]], axis=1)
    same = (tags + 1) // 2 == (before + 1) // 2
    return same & (tags > 0) & (tags % 2 == 0)


def with_openings(tags: Tags) -> Tags:
    """Replace each I that continues no entity by a B.

    Every word that is not O then belongs to an entity.
    """
    alone = (tags > 0) & (tags % 2 == 0) & ~_inside(tags)
    return tags - alone.astype(np.int64)


def entities_of(tags: Tags) -> Entities:
    """Return the entities of each text."""
    groups = (~_inside(tags)).flatten().cumsum(0)
    sizes = np.bincount(groups)
    begins = np.flatnonzero(((tags > 0) & (tags % 2 == 1)).flatten())
    text, first = begins // max(1, tags.shape[1]), begins % max(1, tags.shape[1])
    kind = tags.flatten()[begins] // 2
    return Entities(text, first, first + sizes[groups[begins]] - 1, kind)


def are_right(entities: Entities, truth: Tags) -> Bool[ndarray, " entity"]:
    """Return which entities are in the truth: same kind, same first and same last word."""
    true = entities_of(truth)
    last = np.full_like(truth, -1)
    last[true.text, true.first] = true.last
    place = entities.text, entities.first
    return (last[place] == entities.last) & (truth[place] == 2 * entities.kind + 1)


def joint_chances(
    entities: Entities, chances: Float[ndarray, "text word"], how: str
) -> Float[ndarray, " entity"]:
    """Return the probability of each entity: the product, or the least, of those of its words."""
    owner, text, word = entities.words()
    if not len(owner):
        return np.ones(0)
    _, lengths = runs(owner)
    join = {"product": np.multiply, "least": np.minimum}[how]
    joint: ndarray = join.reduceat(chances[text, word], lengths.cumsum() - lengths)
    return joint
