"""Data that a member's OOD scores are fitted on: moments of all features, and a bounded sample.

Moments take one pass in float64. Σ⁻¹ = W Wᵀ is shrunk where Σ is singular (Ledoit, Wolf 2004):
Σ* = (1 − ρ) S + ρ μ I,  μ = tr S / d,  ρ = min(b², d²)/d²,
b² = 1/n² Σ_i |x_i x_iᵀ − S|²,  d² = |S − μ I|²  (Frobenius, x centred).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from hydrasurgeon.errors import DataError
from hydrasurgeon.run.shapes import Float, Int
from hydrasurgeon.statistics.probabilities import in_pieces, runs

Fit = dict[str, ndarray]
"""A score fitted to one member: what it stores, by name."""

# Features that are kept as they are, however many there were: kNN's neighbours, and what ViM's
# scale is taken from.
BANK = 10_000
# Features that differ by less than this fraction of their length differ by rounding alone.
ALIKE = 1e-6
# Features in one product: many small ones cost more than a few large, and much larger ones cost
# memory.
ROWS = 2048
SINGULAR = 1e-10
"""A covariance is singular when its smallest eigenvalue is below this fraction of its largest."""


@dataclass(frozen=True)
class Moments:
    """First and second moments of features, by class and over all."""

    counts: Int[ndarray, " klass"]
    means: Float[ndarray, "klass width"]
    """Means of each class; zeros for a class that never occurs."""
    mean: Float[ndarray, " width"]
    within: Float[ndarray, "width width"]
    """Covariance about the class means: 1/n Σ (x − μ_y)(x − μ_y)ᵀ."""
    total: Float[ndarray, "width width"]
    """Covariance about the mean."""

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def about(self, origin: Float[ndarray, " width"]) -> Float[ndarray, "width width"]:
        """Return 1/n Σ (x − o)(x − o)ᵀ."""
        apart = self.mean - origin
        return self.total + np.outer(apart, apart)


class Accumulator:
    """Sums that moments are made of; about the first batch's mean, so that little is lost to
    cancellation.
    """

    def __init__(self, classes: int, width: int) -> None:
        self._counts = np.zeros(classes, dtype=np.int64)
        self._sums = np.zeros((classes, width), dtype=np.float64)
        self._squares = np.zeros((width, width), dtype=np.float64)
        self._origin: ndarray | None = None
        self._waiting: list[tuple[ndarray, ndarray]] = []

    def add(
        self, features: Float[ndarray, "sample width"], labels: Int[ndarray, " sample"]
    ) -> None:
        self._waiting += zip(in_pieces(features, ROWS), in_pieces(labels, ROWS), strict=True)
        if sum(len(classes) for _, classes in self._waiting) >= ROWS:
            self._sum_up()

    def _sum_up(self) -> None:
        if not self._waiting:
            return
        features, labels = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        for rows, classes in zip(in_pieces(features, ROWS), in_pieces(labels, ROWS), strict=True):
            wide = rows.astype(np.float64)
            if self._origin is None:
                self._origin = wide.mean(axis=0)
            wide = wide - self._origin
            self._counts += np.bincount(classes, minlength=len(self._counts))
            order = np.argsort(classes, kind="stable")
            _, sizes = runs(classes[order])
            starts = sizes.cumsum() - sizes
            self._sums[classes[order][starts]] += np.add.reduceat(wide[order], starts, axis=0)
            self._squares += wide.T @ wide

    def moments(self) -> Moments:
        self._sum_up()
        assert self._origin is not None
        count = self._counts.sum()
        means = self._sums / np.maximum(self._counts, 1)[:, None]
        mean = self._sums.sum(axis=0) / count
        second = self._squares / count
        between = (means * self._counts[:, None]).T @ means / count
        present = (self._counts > 0)[:, None]
        return Moments(
            counts=self._counts,
            means=np.where(present, means + self._origin, 0.0),
            mean=mean + self._origin,
            within=_symmetric(second - between),
            total=_symmetric(second - np.outer(mean, mean)),
        )


def _symmetric(matrix: ndarray) -> ndarray:
    return (matrix + matrix.T) / 2


def whitening(
    covariance: Float[ndarray, "width width"], centred: Float[ndarray, "sample width"]
) -> tuple[ndarray, float | None]:
    """Return W, for which x W has the identity as covariance, and the shrinkage.

    The shrinkage is None if the covariance is not singular.
    """
    values, vectors = np.linalg.eigh(covariance)
    shrunk = None
    if values[0] <= SINGULAR * values[-1]:
        shrunk = shrinkage(covariance, centred)
        values = (1 - shrunk) * np.maximum(values, 0.0) + shrunk * values.mean()
        # Samples that are all alike have no covariance at all.
        values = np.maximum(np.maximum(values, SINGULAR * values[-1]), np.finfo(np.float64).tiny)
    return vectors / np.sqrt(values), shrunk


def shrinkage(
    covariance: Float[ndarray, "width width"], centred: Float[ndarray, "sample width"]
) -> float:
    """Estimate Ledoit and Wolf's ρ, in (0, 1]."""
    x = centred.astype(np.float64)
    count, width = x.shape
    identity = np.eye(width) * covariance.trace() / width
    distance = np.square(covariance - identity).sum()
    norms = np.square(np.square(x).sum(axis=1)).sum()
    # Σ_i |x_i x_iᵀ − S|² = Σ_i |x_i|⁴ − 2 Σ_i x_iᵀ S x_i + n |S|²
    error = norms - 2 * ((x @ covariance) * x).sum() + count * np.square(covariance).sum()
    if float(distance) <= 0:
        return 1.0
    return min(max(float(error / count**2 / distance), SINGULAR), 1.0)


@dataclass(frozen=True)
class Evidence:
    """Features and logits of labelled samples, and the classifier that relates them."""

    moments: Moments
    directions: Moments
    """Moments of the features scaled to length 1."""
    features: Float[ndarray, "sample width"]
    """At most `BANK` of them, drawn at random, each as likely as any other."""
    logits: Float[ndarray, "sample klass"]
    labels: Int[ndarray, " sample"]
    weight: Float[ndarray, "klass width"]
    bias: Float[ndarray, " klass"]

    def need_every_class(self, score: str) -> None:
        """Refuse data that lack a class, or have too few samples for a covariance within classes."""
        absent = int((self.moments.counts == 0).sum())
        count, classes = self.moments.count, len(self.moments.counts)
        if absent:
            raise DataError(
                f"{score}: {absent} of {classes} classes never occur among the {count} samples it "
                "is fitted on",
                hint="Give --fit-data of every class, or a score without classes (msp, knn, vim).",
            )
        if count <= classes:
            message = (
                f"{score}: {count} samples of {classes} classes leave nothing to estimate a "
                "covariance from"
            )
            raise DataError(message, hint=f"It needs at least {classes + 1}; give more --fit-data.")

    def need_spread(self, score: str) -> None:
        """Refuse samples whose features are all the same: they give no scale for distances."""
        length = self.moments.total.trace() + np.square(self.moments.mean).sum()
        if self.moments.total.trace() <= ALIKE**2 * length:
            message = (
                f"{score}: the {self.moments.count} samples it is fitted on all have the same "
                "features"
            )
            raise DataError(
                message, hint="Look at --data or --fit-data; --ood-score msp needs no features."
            )


class Gathering:
    """One pass over batches of features; keeps a seeded random sample of them."""

    def __init__(
        self,
        weight: Float[ndarray, "klass width"],
        bias: Float[ndarray, " klass"],
        *,
        seed: int = 0,
        bank: int = BANK,
    ) -> None:
        self._weight, self._bias = weight.astype(np.float64), bias.astype(np.float64)
        self._plain, self._directions = Accumulator(*weight.shape), Accumulator(*weight.shape)
        self._random = np.random.default_rng(seed)
        self._bank = bank
        self._drawn: list[tuple[ndarray, ndarray, ndarray, ndarray]] = []

    def add(
        self,
        features: Float[ndarray, "sample width"],
        logits: Float[ndarray, "sample klass"],
        labels: Int[ndarray, " sample"],
    ) -> None:
        for name, values in (("logits", logits), ("features", features)):
            if broken := int((~np.isfinite(values)).reshape(len(values), -1).any(axis=1).sum()):
                message = f"{name} hold NaN or infinity for {broken} of {len(values)} samples"
                raise DataError(
                    message,
                    hint="The model overflows: use --dtype float32, or start from a sound one.",
                )
        self._plain.add(features, labels)
        self._directions.add(directions(features), labels)
        keys = self._random.random(len(features))
        self._drawn.append((keys, features, logits, labels))
        if sum(len(keys) for keys, *_ in self._drawn) > 2 * self._bank:
            self._drawn = [self._smallest()]

    def _smallest(self) -> tuple[ndarray, ndarray, ndarray, ndarray]:
        """Keep the rows with the smallest random numbers.

        They are a uniform sample, however the batches fall.
        """
        keys, features, logits, labels = (
            np.concatenate(parts) for parts in zip(*self._drawn, strict=True)
        )
        if len(keys) <= self._bank:
            return keys, features, logits, labels
        kept = np.sort(np.argpartition(keys, self._bank)[: self._bank])
        return keys[kept], features[kept], logits[kept], labels[kept]

    def evidence(self) -> Evidence:
        if not self._drawn:
            raise DataError("there are no samples to fit an OOD score on")
        _, features, logits, labels = self._smallest()
        moments, classifier = (
            (self._plain.moments(), self._directions.moments()),
            (self._weight, self._bias),
        )
        return Evidence(
            *moments, features.astype(np.float64), logits.astype(np.float64), labels, *classifier
        )


def directions(features: Float[ndarray, "sample width"]) -> Float[ndarray, "sample width"]:
    return normalized(features.astype(np.float64))


def normalized(vectors: ndarray) -> ndarray:
    """Scale vectors to length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)
