"""CAHP's choice of heads: cluster them by what they attend to, keep the weightiest of each cluster.

Complementary Attention Head Pruning, after the maps have become points in the plane
(attention_map_score.py): for k = 2 … N−1 FasterPAM and the mean simplified silhouette, the knee of
that curve as the number of clusters, the head of highest weight from each, and a layer left empty gets
its weightiest head back. Needs no torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.criteria.selection import movable
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.files.manifest import Score, SingleManifest
from hydrasurgeon.heads import Head, Layers, count, drop
from hydrasurgeon.lookup import need

Distances = NDArray[np.float64]
DEGREE = 6
"""Degree of the polynomial that the knee is searched on, as in the authors' code."""
# A polynomial through fewer points than this has no knee worth the name.
FEWEST = 4


@dataclass(frozen=True)
class HeadChoice:
    """Kept heads, with the clusters and the curve that explain them."""

    stay: tuple[Head, ...]
    clusters: tuple[tuple[Head, ...], ...]
    curve: tuple[tuple[int, float], ...]
    automatic: int
    knee: bool
    """False where the curve has no knee, and its highest point was taken instead."""


def choose(
    heads: Sequence[Head],
    points: NDArray[np.float64],
    weights: Sequence[float],
    *,
    clusters: int | None = None,
    degree: int = DEGREE,
) -> HeadChoice:
    """Choose one head from each of `clusters` clusters, or from as many as the curve's knee says."""
    need("kmedoids", "kneed", purpose="CAHP")
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=-1))
    curve = []
    for k in range(2, len(heads)):
        labels, medoids = _medoids(distances, k)
        curve.append((k, silhouette(distances, labels, medoids)))
    knee = None
    if curve:
        knee = knee_of([k for k, _ in curve], [height for _, height in curve], degree)
    automatic = max(curve, key=lambda point: point[1])[0] if curve else len(heads)
    if knee is not None:
        automatic = knee
    labels, _ = _medoids(distances, automatic if clusters is None else clusters)
    groups = [[i for i, label in enumerate(labels) if label == c] for c in sorted(set(labels))]
    stay = {max(group, key=lambda i: weights[i]) for group in groups}
    for place in dict.fromkeys((head.tower, head.layer) for head in heads):
        row = [i for i, head in enumerate(heads) if (head.tower, head.layer) == place]
        if not stay.intersection(row):
            stay.add(max(row, key=lambda i: weights[i]))
    return HeadChoice(
        stay=tuple(heads[i] for i in sorted(stay)),
        clusters=tuple(tuple(heads[i] for i in group) for group in sorted(groups)),
        curve=tuple(curve),
        automatic=automatic,
        knee=knee is not None,
    )


def _medoids(distances: Distances, k: int) -> tuple[list[int], list[int]]:
    """Return FasterPAM's labels and medoids; the start is greedy, so that nothing is random."""
    import kmedoids

    if k >= len(distances):
        return list(range(len(distances))), list(range(len(distances)))
    clustering = kmedoids.fasterpam(distances, k, init="build", n_cpu=1)
    return [int(label) for label in clustering.labels], [int(m) for m in clustering.medoids]


def silhouette(distances: Distances, labels: Sequence[int], medoids: Sequence[int]) -> float:
    """Mean of (b − a)/max(a, b): a to the own medoid, b to the others on average; heads with a = 0
    do not count.
    """
    to = distances[:, list(medoids)]
    to_medoid = to[np.arange(len(to)), list(labels)]
    away = (
        to_medoid > 0
    )  # a medoid would add 1 for being itself: the curve would rise with the number of clusters
    if not away.any():
        return 1.0
    if len(medoids) < 2:  # equal points make fewer clusters than were asked for
        return 0.0
    other = (to.sum(axis=1) - to_medoid) / (len(medoids) - 1)
    return float(np.mean(((other - to_medoid) / np.maximum(to_medoid, other))[away]))


def knee_of(ks: Sequence[int], heights: Sequence[float], degree: int = DEGREE) -> int | None:
    """Find the knee by Kneedle on a polynomial, concave and increasing; None if there is none."""
    from kneed import KneeLocator

    if len(ks) < FEWEST or max(heights) <= min(heights):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing knee is an answer here, not a warning
        knee = KneeLocator(
            ks,
            heights,
            curve="concave",
            direction="increasing",
            interp_method="polynomial",
            polynomial_degree=min(degree, len(ks) - 2),
        ).knee
    # At the first point it only says that the curve starts out below its chord: bent the wrong way,
    # or falling.
    return None if knee is None or knee == ks[0] else int(knee)


def choose_heads(
    manifest: SingleManifest,
    score: Score,
    *,
    keep: int | str | None = None,
    remove: int | None = None,
    sample: str | None = None,
    layers: str | None = None,
    tower: str | None = None,
    seed: int = 0,
    degree: int | None = None,
) -> tuple[dict[str, Layers], tuple[str, ...]]:
    """Choose the kept heads: CAHP's own number, K × layers clusters, or all but `remove`; and what is odd
    about its own number.
    """
    assert score.values is not None
    values, settings = score.values, score.settings
    candidates = movable(manifest, score, layers=layers, tower=tower)
    placed = {Head(t, layer, h): (x, y) for t, layer, h, x, y in settings.get("points", ())}
    missing = next((head for head in candidates if head not in placed), None)
    if missing is not None:
        raise SurgeryError(
            (
                f"the cahp scores do not cover head {missing.number} of {missing.tower} layer "
                f"{missing.layer}"
            ),
            hint="Score again.",
        )
    clusters = number_of_clusters(candidates, keep, remove)
    points = np.array([placed[head] for head in candidates]).reshape(-1, 2)
    weights = [values[head.tower][head.layer][head.number] for head in candidates]
    degree = degree or settings.get("degree", DEGREE)
    choice = choose(candidates, points, weights, clusters=clusters, degree=degree)
    kept = drop(manifest.kept, set(candidates) - set(choice.stay))
    notes = []
    if keep == "auto" and not choice.knee:
        notes.append("cahp's curve has no knee: its highest point gives the number of heads")
    left, present = count(kept), count(manifest.kept)
    if keep == "auto" and left < present / 2:
        notes.append(
            f"cahp's own number leaves {left} of {present} heads: see what that costs with eval, "
            "or say how many with"
            " --keep K"
        )
    return kept, tuple(notes)


def number_of_clusters(
    candidates: Sequence[Head], keep: int | str | None, remove: int | None
) -> int | None:
    """Return the number of clusters; None for CAHP's own number.

    It follows from the heads to keep in each layer, or to remove in all.
    """
    layers = len({(head.tower, head.layer) for head in candidates})
    if keep == "auto":
        return None
    if remove is not None:
        clusters, option = len(candidates) - remove, f"--remove {remove}"
    elif keep is not None:
        clusters, option = int(keep) * layers, f"--keep {keep}"
    else:
        raise UsageError(
            "--sample: cahp has no removal order to draw from",
            hint="Give --keep auto, --keep K or --remove N.",
        )
    if not 0 < clusters <= len(candidates) or remove == 0:
        raise SurgeryError(
            f"{option}: {clusters} clusters are not possible with {len(candidates)} heads in {layers} layers",
            hint=f"There can be 1 to {len(candidates)}.",
        )
    return clusters
