"""Which members could be made of one backbone: how each is pruned, as the words of `prune`, and the
heads it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, product, zip_longest
from typing import Any

import numpy as np

from hydrasurgeon.criteria import chooser, criterion
from hydrasurgeon.criteria.selection import movable, select
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.manifest import Score, SingleManifest
from hydrasurgeon.heads import Kept, Layers

FRACTIONS = (0.15, 0.25, 0.35, 0.5, 0.65)
"""Shares of the heads that can go which candidates lose."""
DRAWS = 3
"""Members drawn from one pool, besides the one that loses the heads that go first (paper B.5)."""
POOL = 1.75
"""A draw is from so many times the heads that go."""
REPAIRS = (None, "lstsq")
"""What is done for what is left of the layers."""
PAPER = (48 / 144, 100 / 144)
"""The paper's hydras lose so large a share of all heads, drawn from those that go first (section
5).
"""


@dataclass(frozen=True)
class Candidate:
    """One member that could be made."""

    kept: Mapping[str, Layers]
    method: str | None = None
    """The scores that it is pruned by; None: nothing is pruned, it is the backbone itself."""
    remove: int | None = None
    sample: str | None = None
    layers: str | None = None
    repair: str | None = None
    seed: int = 0

    @property
    def pruning(self) -> dict[str, Any]:
        """The keywords of `prune` that make it."""
        names = ("method", "remove", "sample", "layers", "seed")
        keywords = {name: getattr(self, name) for name in names} | {"compensate": self.repair}
        return {name: value for name, value in keywords.items() if value is not None}

    @property
    def label(self) -> str:
        """`circuit-avg -14 in layers 3-5, lstsq`: as a table shows it."""
        if self.method is None:
            return "backbone"
        amount = f"-{self.remove}" if self.sample is None else f"-{self.sample} seed {self.seed}"
        where = "" if self.layers is None else f" in layers {self.layers}"
        return f"{self.method} {amount}{where}" + (f", {self.repair}" if self.repair else "")

    @property
    def name(self) -> str:
        """`circuit-avg-r14-l3-5-lstsq`: as its file is called."""
        amount = (
            f"r{self.remove}"
            if self.sample is None
            else f"s{self.sample.replace('/', 'of')}-seed{self.seed}"
        )
        where = "" if self.layers is None else f"-l{self.layers}"
        return f"{self.method}-{amount}{where}" + (f"-{self.repair}" if self.repair else "")


def candidates(
    manifest: SingleManifest, scores: Mapping[str, Score], *, number: int, seed: int
) -> list[Candidate]:
    """The backbone, and so many others, each different: prefixes of every order and draws from it.

    Methods come in turn, each in an order of its own drawn by the seed: none is crowded out where
    candidates are few.
    """
    layers = manifest.towers[read_tower(manifest.kept)].layers
    starts = sorted({layers * quarter // 4 for quarter in range(4)})
    random = np.random.default_rng(seed)
    planned = []
    for method in sorted(scores):
        draws = range(1 if criterion(method).own_number else DRAWS + 1)
        points = list(product(starts, FRACTIONS, draws, REPAIRS))
        planned.append([(method, *points[i]) for i in random.permutation(len(points))])
    chosen = [Candidate(manifest.kept)]
    seen: set[tuple[object, str | None]] = {(_key(manifest.kept), REPAIRS[0])}
    for point in filter(None, chain.from_iterable(zip_longest(*planned))):
        if len(chosen) == number + 1:
            break
        candidate = _made(manifest, scores[point[0]], *point)
        if candidate is not None and (key := (_key(candidate.kept), candidate.repair)) not in seen:
            seen.add(key)
            chosen.append(candidate)
    return chosen


def _made(
    manifest: SingleManifest,
    score: Score,
    method: str,
    start: int,
    fraction: float,
    draw: int,
    repair: str | None,
) -> Candidate | None:
    """A member pruned from layer `start` on by the heads that go first (draw 0) or a draw, where
    there are such.
    """
    last = manifest.towers[read_tower(manifest.kept)].layers - 1
    layers = None if start == 0 else f"{start}-{last}"
    try:
        free = len(movable(manifest, score, layers=layers, tower=None))
        remove = round(fraction * free)
        pool = min(round(POOL * remove), free - 1)
        if remove < 1 or (draw and pool <= remove):
            return None
        amount: dict[str, Any] = {"sample": f"{remove}/{pool}"} if draw else {"remove": remove}
        kept, _ = chooser(method)(manifest, score, **amount, layers=layers, seed=draw)
    except SurgeryError:  # an order that is shorter, or nothing would be left
        return None
    return Candidate(kept, method, **amount, layers=layers, repair=repair, seed=draw)


def papers(manifest: SingleManifest, scores: Mapping[str, Score]) -> list[Candidate]:
    """Three members drawn as the paper draws them, from the first order that there is."""
    preferred = ("circuit-avg", "circuit-acc", "circuit-ood", "taylor", *scores)
    key = next(key for key in preferred if key in scores)
    free = len(movable(manifest, scores[key], layers=None, tower=None))
    remove, pool = (max(1, round(share * free)) for share in PAPER)
    if criterion(key).own_number or not remove < pool < free:
        return []
    sample = f"{remove}/{pool}"
    drawn = {seed: select(manifest, scores[key], sample=sample, seed=seed) for seed in (1, 2, 3)}
    return [Candidate(kept, key, sample=sample, seed=seed) for seed, kept in drawn.items()]


def read_tower(kept: Kept) -> str:
    """The tower that data runs through: members of a CLIP differ in their image towers."""
    return "vision" if "vision" in kept else next(iter(kept))


def first_changed(candidate: Candidate, kept: Kept) -> int:
    """How many leading layers a candidate has in common with the backbone."""
    tower = read_tower(kept)
    pairs = enumerate(zip(kept[tower], candidate.kept[tower], strict=True))
    return next((layer for layer, (whole, row) in pairs if row != whole), len(kept[tower]))


def _key(kept: Kept) -> tuple[object, ...]:
    return tuple((tower, tuple(map(tuple, rows))) for tower, rows in sorted(kept.items()))
