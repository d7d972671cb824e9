"""Which members could be made of one backbone: how each is pruned, as the words of `prune`, and the heads it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
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
REPAIRS = ("none", "lstsq")
"""What is done for what is left of the layers."""
PAPER = (48 / 144, 100 / 144)
"""The paper's hydras lose so large a share of all heads, drawn from those that go first (section 5)."""


@dataclass(frozen=True)
class Candidate:
    """One member that could be made."""

    kept: Mapping[str, Layers]
    method: str | None = None
    """The scores that it is pruned by; None: nothing is pruned, it is the backbone itself."""
    remove: int | None = None
    sample: str | None = None
    layers: str | None = None
    compensate: str = "none"
    seed: int = 0

    @property
    def pruning(self) -> dict[str, Any]:
        """The keywords of `prune` that make it."""
        keywords = {
            "method": self.method,
            "remove": self.remove,
            "sample": self.sample,
            "layers": self.layers,
            "compensate": self.compensate if self.repairs else None,
            "seed": self.seed,
        }
        return {name: value for name, value in keywords.items() if value is not None}

    @property
    def label(self) -> str:
        """`circuit-avg -14 from layer 3, lstsq`: as a table shows it."""
        if self.method is None:
            return "backbone"
        amount = f"-{self.remove}" if self.sample is None else f"-{self.sample} seed {self.seed}"
        where = "" if self.layers is None else f" in layers {self.layers}"
        return f"{self.method} {amount}{where}" + (f", {self.compensate}" if self.repairs else "")

    @property
    def name(self) -> str:
        """`circuit-avg-r14-l3-5-lstsq`: as its file is called."""
        amount = f"r{self.remove}" if self.sample is None else f"s{self.sample.replace('/', 'of')}-seed{self.seed}"
        where = "" if self.layers is None else f"-l{self.layers}"
        return f"{self.method}-{amount}{where}" + (f"-{self.compensate}" if self.repairs else "")

    @property
    def repairs(self) -> bool:
        return self.compensate != "none"


def candidates(manifest: SingleManifest, scores: Mapping[str, Score], *, number: int, seed: int) -> list[Candidate]:
    """The backbone, and so many others, each different: prefixes of every order and draws from it, from every trunk's
    end on.

    They come in an order drawn by the seed, so that more of them begin with the same ones.
    """
    chosen = [Candidate(manifest.kept)]
    seen = {(_key(manifest.kept), "none")}
    for planned in _shuffled(_grid(manifest, scores), seed):
        if len(chosen) == number + 1:
            break
        candidate = _made(manifest, scores, planned)
        if candidate is None:
            continue
        key = (_key(candidate.kept), candidate.compensate)
        if key not in seen:
            seen.add(key)
            chosen.append(candidate)
    return chosen


@dataclass(frozen=True)
class _Plan:
    """A point of the grid: nothing is selected yet."""

    method: str
    start: int
    """The layer that pruning begins with: those before can be a trunk."""
    fraction: float
    draw: int
    """0: the heads that go first; else which of the draws."""
    compensate: str


def _grid(manifest: SingleManifest, scores: Mapping[str, Score]) -> Iterator[_Plan]:
    layers = manifest.towers[read_tower(manifest.kept)].layers
    starts = sorted({layers * quarter // 4 for quarter in range(4)})
    for method, start, fraction, draw, repair in product(sorted(scores), starts, FRACTIONS, range(DRAWS + 1), REPAIRS):
        if not (draw and criterion(method).own_number):
            yield _Plan(method, start, fraction, draw, repair)


def _shuffled(grid: Iterator[_Plan], seed: int) -> Iterator[_Plan]:
    """Methods in turn, each in an order of its own: none is crowded out where candidates are few."""
    by_method: dict[str, list[_Plan]] = {}
    for planned in grid:
        by_method.setdefault(planned.method, []).append(planned)
    random = np.random.default_rng(seed)
    shuffled = [[plans[i] for i in random.permutation(len(plans))] for plans in by_method.values()]
    for row in range(max(map(len, shuffled), default=0)):
        yield from (plans[row] for plans in shuffled if row < len(plans))


def _made(manifest: SingleManifest, scores: Mapping[str, Score], planned: _Plan) -> Candidate | None:
    """The candidate of a plan; None where there are no such heads to remove."""
    score = scores[planned.method]
    last = manifest.towers[read_tower(manifest.kept)].layers - 1
    layers = None if planned.start == 0 else f"{planned.start}-{last}"
    try:
        free = len(movable(manifest, score, layers=layers, tower=None))
        remove = round(planned.fraction * free)
        pool = min(round(POOL * remove), free - 1)
        if remove < 1 or (planned.draw and pool <= remove):
            return None
        sample = f"{remove}/{pool}" if planned.draw else None
        amount = None if planned.draw else remove
        choose = chooser(planned.method)
        kept, _ = choose(manifest, score, remove=amount, sample=sample, layers=layers, seed=planned.draw)
    except SurgeryError:  # an order that is shorter, or nothing would be left
        return None
    return Candidate(kept, planned.method, amount, sample, layers, planned.compensate, planned.draw)


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
