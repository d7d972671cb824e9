"""What the OOD scores of one member are fitted on: moments of all features, and a bounded sample of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from hydrasurgeon.decision.scores.moments import Accumulator, Moments
from hydrasurgeon.errors import DataError

Fit = dict[str, Tensor]
"""A score fitted to one member: what it stores, by name."""

# Features that are kept as they are, however many there were: kNN's neighbours, and what ViM's scale is taken from.
BANK = 10_000
# Features that differ by less than this share of their length differ by rounding alone.
ALIKE = 1e-6


@dataclass(frozen=True)
class Evidence:
    """Features and logits of labelled samples, and the classifier that made the second of the first."""

    moments: Moments
    directions: Moments
    """Moments of the features scaled to length 1."""
    features: Float[Tensor, "sample width"]
    """At most `BANK` of them, drawn at random, each as likely as any other."""
    logits: Float[Tensor, "sample klass"]
    labels: Int[Tensor, " sample"]
    weight: Float[Tensor, "klass width"]
    bias: Float[Tensor, " klass"]

    @property
    def capped(self) -> bool:
        """Whether there were more samples than are kept."""
        return self.moments.count > len(self.features)

    def need_every_class(self, score: str, names: Sequence[str] | None = None) -> None:
        """Class statistics of a class without samples do not exist."""
        absent = (self.moments.counts == 0).nonzero().flatten().tolist()
        if absent:
            called = [str(c) if names is None else names[c] for c in absent[:3]]
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            raise DataError(
                f"{score}: {'class' if len(absent) == 1 else 'classes'} {', '.join(called)}{more} never "
                f"{'occurs' if len(absent) == 1 else 'occur'} among the {self.moments.count} samples it is fitted on",
                hint=(
                    "Give --fit-data that has samples of every class, or a score that needs no classes (gen, knn, vim)."
                ),
            )
        classes = len(self.moments.counts)
        if self.moments.count <= classes:
            raise DataError(
                f"{score}: {self.moments.count} samples of {classes} classes leave nothing to estimate a covariance"
                " from",
                hint=f"It needs at least {classes + 1}; give more --fit-data.",
            )

    def need_spread(self, score: str) -> None:
        """Samples that are all the same do not tell how far from them is far."""
        length = self.moments.total.trace() + self.moments.mean.square().sum()
        if self.moments.total.trace() <= ALIKE**2 * length:
            raise DataError(
                f"{score}: the {self.moments.count} samples it is fitted on all have the same features",
                hint=(
                    "Look at what --data or --fit-data holds; a score of the logits, such as --ood-score msp, needs no"
                    " features."
                ),
            )


class Gathering:
    """One pass over batches of features; keeps a seeded random sample of them ."""

    def __init__(
        self, weight: Float[Tensor, "klass width"], bias: Float[Tensor, " klass"], *, seed: int = 0, bank: int = BANK
    ) -> None:
        self._weight, self._bias = weight.detach().cpu().double(), bias.detach().cpu().double()
        self._plain, self._directions = Accumulator(*weight.shape), Accumulator(*weight.shape)
        self._random = torch.Generator().manual_seed(seed)
        self._bank = bank
        self._drawn: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def add(
        self,
        features: Float[Tensor, "sample width"],
        logits: Float[Tensor, "sample klass"],
        labels: Int[Tensor, " sample"],
    ) -> None:
        check_finite(features, logits)
        self._plain.add(features, labels)
        self._directions.add(directions(features), labels)
        keys = torch.rand(len(features), generator=self._random, dtype=torch.float64)
        self._drawn.append((keys, features, logits, labels))
        if sum(len(keys) for keys, *_ in self._drawn) > 2 * self._bank:
            self._drawn = [self._smallest()]

    def _smallest(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Whoever drew the smallest numbers stays: a uniform sample, however the batches fall."""
        keys, features, logits, labels = (torch.cat(parts) for parts in zip(*self._drawn, strict=True))
        if len(keys) <= self._bank:
            return keys, features, logits, labels
        kept = keys.topk(self._bank, largest=False).indices.sort().values
        return keys[kept], features[kept], logits[kept], labels[kept]

    def evidence(self) -> Evidence:
        if not self._drawn:
            raise DataError("there are no samples to fit an OOD score on")
        _, features, logits, labels = self._smallest()
        return Evidence(
            self._plain.moments(),
            self._directions.moments(),
            features.double(),
            logits.double(),
            labels,
            self._weight,
            self._bias,
        )


def directions(features: Float[Tensor, "sample width"]) -> Float[Tensor, "sample width"]:
    return normalize(features.double(), dim=-1)


def check_finite(features: Tensor, logits: Tensor) -> None:
    for what, values in (("logits", logits), ("features", features)):
        broken = int((~torch.isfinite(values)).flatten(1).any(dim=1).sum())
        if broken:
            raise DataError(
                f"{what} hold NaN or infinity for {broken} of {len(values)} samples",
                hint="The model overflows: use --dtype float32, or start from a sound one.",
            )
