"""Mask rearrangement: within each layer other heads go instead, by how heads matter together (Kwon
et al. 2022, section 4.2).

Fisher's scores are the diagonal of the information I = Σ g gᵀ of a layer, g a sample's gradients by
its heads' factors. The heads R that go cost Σ_{i,j ∈ R} I_ij. Starting from those that were
selected, each head that stays, the least important first, joins R, and the one goes back without
which the rest costs least: the cost never rises, and every layer loses as many heads as before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import ManifestError, SurgeryError, UsageError
from hydrasurgeon.files.manifest import Score, SingleManifest
from hydrasurgeon.heads import Head, Kept, Layers, all_heads, drop

METHOD = "fisher"
"""The criterion whose scores come with the information between heads."""
INFORMATION = "information"
"""Where a score's settings hold it: tower → [layer][head][head], heads numbered in the original
model.
"""

Matrix = NDArray[np.float64]


def check_rearrange(method: str | None) -> None:
    """Refuse what has no information between heads."""
    if method != METHOD:
        raise UsageError(
            (
                f"--rearrange: {f'--method {method}' if method else 'a mask'} knows nothing of "
                "heads "
                "together"
            ),
            hint=f"Use --method {METHOD}, or leave it out.",
        )


def rearranged(
    manifest: SingleManifest, score: Score, kept: Kept, movable: Collection[Head], where: str
) -> dict[str, Layers]:
    """As many heads of each layer as `kept`, others where the layer does better with them."""
    information = _information(score, manifest, where)
    gone = set(all_heads(manifest.kept)) - set(all_heads(kept))
    instead: list[Head] = []
    for tower, layer in sorted({(head.tower, head.layer) for head in gone}):
        matrix = information[tower][layer]
        present = manifest.kept[tower][layer]
        absent = [h for h in range(len(matrix)) if h not in present]
        free = [h.number for h in movable if (h.tower, h.layer) == (tower, layer)]
        first = [h.number for h in gone if (h.tower, h.layer) == (tower, layer)]
        instead += [Head(tower, layer, h) for h in _layer(matrix, first, free, absent)]
    return drop(manifest.kept, instead)


def cost(matrix: Matrix, gone: Sequence[int]) -> float:
    """What it takes from a layer that these heads go, to second order."""
    return float(matrix[np.ix_(gone, gone)].sum())


def _layer(
    matrix: Matrix, first: Collection[int], free: Collection[int], absent: Sequence[int]
) -> list[int]:
    """The heads of one layer that go: as many as `first`, all of them from `free`; the `absent`
    ones are gone already.
    """
    gone = sorted(first)
    for head in sorted(set(free) - set(first), key=lambda h: (matrix[h, h], h)):
        joined = [*gone, head]
        # Of equal ones the one that came last goes back, so that nothing is changed for nothing.
        left = [[each for each in joined if each != back] for back in reversed(joined)]
        gone = min(left, key=lambda heads: cost(matrix, [*absent, *heads]))
    return gone


def _information(
    score: Score, manifest: SingleManifest, where: str
) -> Mapping[str, Sequence[Matrix]]:
    """The recorded matrices, held against the model."""
    recorded: Any = score.settings.get(INFORMATION)
    if recorded is None:
        raise SurgeryError(
            f"{where}: its {METHOD} scores do not say how heads matter together",
            hint=f"Score again: `hydrasurgeon score --method {METHOD} --data D`.",
        )
    matrices = {}
    for tower in score.values or {}:
        size = manifest.towers[tower]
        try:
            stack = np.array(recorded[tower], dtype=np.float64)
        except (KeyError, TypeError, ValueError, OverflowError):
            stack = np.zeros(0)
        if (
            stack.shape != (size.layers, size.heads, size.heads)
            or (stack != stack.transpose(0, 2, 1)).any()
        ):
            raise ManifestError(
                f"{where}: score {METHOD}: {INFORMATION} of tower {tower} is no symmetric matrix "
                "of "
                f"{size.heads} heads for each of {size.layers} layers"
            )
        matrices[tower] = list(stack)
    return matrices
