"""The paper's ablations in small, rows of benchmarks/quality.py --ablations: heads, members, sources of diversity,
MLPs, trunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quality_workshop import CIRCUITS, Row, Workshop

import hydrasurgeon as hs

EIGHTHS = (1, 2, 3, 4)
"""Fractions of the heads that are removed, up to half of them (Figures 5 and 6)."""
SIXTHS = {"no trunk": 0, "trunk of a third": 2, "trunk of two thirds": 4}
"""Fractions of the layers that members have in common."""


def heads(criterion: str, eighths: int, tuned: bool, shop: Workshop) -> Row:
    tower = shop.tower
    path = shop.member(criterion, removed=tower.layers * tower.heads * eighths // 8)
    return shop.of(shop.tuned(path, 0) if tuned else path)


def diversity(heads_drawn: bool, order: bool, shop: Workshop) -> Row:
    """Three members of one circuit (paper B.5): other heads drawn, another order of the batches, both or neither."""
    draws = (1, 2, 3) if heads_drawn else (1, 1, 1)
    numbers = (1, 2, 3) if order else (1, 1, 1)
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


def trunk(sixths: int, shop: Workshop) -> Row:
    """Draws by taylor from the layers behind a trunk, as many heads where there are as many; nothing is tuned."""
    tower = shop.tower
    first, last = tower.layers * sixths // 6, tower.layers - 1
    layers, behind = f"{first}-{last}", (last - first + 1) * tower.heads
    count = min(shop.task.removed, behind // 2)
    pool = min(2 * count, behind - 1)
    scored = shop.scored("taylor")
    paths = []
    for draw in (1, 2, 3):
        out = shop.folder / f"trunk-{layers}-{draw}.safetensors"
        if not out.exists():
            hs.prune(
                scored,
                method="taylor",
                sample=f"{count}/{pool}",
                layers=layers,
                seed=draw,
                out=out,
                force=True,
            )
        paths.append(out)
    return shop.of(*paths)


ABLATIONS: dict[str, Callable[[Workshop], Row]] = {
    **{
        f"{name}, {eighths}/8 of the heads less, {'tuned' if tuned else 'training-free'}": partial(
            heads, criterion, eighths, tuned
        )
        for tuned in (False, True)
        for eighths in EIGHTHS
        for name, criterion in (("Taylor", "taylor"), ("CircAvg", "circuit-avg"))
    },
    "diversity: heads": partial(diversity, True, False),
    "diversity: batch order": partial(diversity, False, True),
    "diversity: heads and batch order": partial(diversity, True, True),
    "diversity: none": partial(diversity, False, False),
    "3 members": partial(members, 3),
    "5 members": partial(members, 5),
    "MLPs tuned, averaged": partial(mlp, True),
    "MLPs tuned, apart": partial(mlp, False),
    **{f"trunk: {name}": partial(trunk, sixths) for name, sixths in SIXTHS.items()},
}
