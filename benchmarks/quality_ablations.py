"""The paper's ablations in small, rows of benchmarks/quality.py --ablations: heads, members, sources of diversity
and MLPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quality_workshop import CIRCUITS, Row, Workshop

import hydrasurgeon as hs


def heads(criterion: str, shop: Workshop) -> Row:
    """Half of the heads removed (Figure 5)."""
    tower = shop.tower
    return shop.of(shop.member(criterion, removed=tower.layers * tower.heads // 2))


def diversity(heads_drawn: bool, shop: Workshop) -> Row:
    """Three members of one circuit (paper B.5): other heads drawn, or another order of the batches."""
    draws = (1, 2, 3) if heads_drawn else (1, 1, 1)
    numbers = (1, 1, 1) if heads_drawn else (1, 2, 3)
    paths = [shop.member("circuit-avg", draw=draw) for draw in draws]
    return shop.of(*(shop.tuned(path, n) for path, n in zip(paths, numbers, strict=True)))


def members(count: int, shop: Workshop) -> Row:
    """Draws of one circuit, tuned."""
    draws = range(1, count + 1)
    paths = [shop.tuned(shop.member("circuit-avg", draw=draw), draw) for draw in draws]
    return shop.of(*paths)


def mlp(average: bool, shop: Workshop) -> Row:
    """Circuits of three objectives whose MLPs were tuned too: apart, or averaged."""
    paths = [shop.tuned(shop.member(c), i, freeze=None) for i, c in enumerate(CIRCUITS)]
    if not average:
        return shop.of(*paths)
    out = shop.folder / "averaged.safetensors"
    hs.fuse(paths, out=out, mlp="average", force=True)
    return Row(shop.answers(out), shop.cost([out]))


ABLATIONS: dict[str, Callable[[Workshop], Row]] = {
    "Taylor, 4/8 of the heads less, training-free": partial(heads, "taylor"),
    "CircAvg, 4/8 of the heads less, training-free": partial(heads, "circuit-avg"),
    "diversity: heads": partial(diversity, True),
    "diversity: batch order": partial(diversity, False),
    "3 members": partial(members, 3),
    "5 members": partial(members, 5),
    "MLPs tuned, averaged": partial(mlp, True),
    "MLPs tuned, apart": partial(mlp, False),
}
