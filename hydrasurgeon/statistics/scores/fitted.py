"""A score fitted on features, and how the members of an ensemble join: the mean of what each says,
standardised.

    s(x) = 1/M Σ_m (s_m(x) − mean_m) / std_m

with mean and deviation over samples held back from fitting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.deadline import check_deadline
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.decided import FITTED, LARGEST, LOGITS, SMALLEST, Standard, scores_known
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.run.shapes import Float
from hydrasurgeon.statistics.probabilities import Scores, in_pieces
from hydrasurgeon.statistics.scores.evidence import Evidence, Fit
from hydrasurgeon.statistics.scores.on_features import K, on_features
from hydrasurgeon.statistics.scores.on_logits import score_of

Features = Float[ndarray, "sample member width"]
ROWS = 1024
"""Samples that are scored at a time: a knn bank of 10,000 then takes some 80 MB."""


def check_score(kind: str, among: Collection[str] | None = None) -> None:
    """Refuse a name that no score has."""
    among = scores_known(kind) if among is None else among
    if kind not in among:
        message = f"--ood-score {kind}: not known{did_you_mean(kind, among)}"
        raise UsageError(message, hint=f"Available: {', '.join(among)}.")


@dataclass(frozen=True)
class EnsembleScore:
    """A score fitted to each member, with what its values were on samples held back."""

    kind: str
    fits: tuple[Fit, ...]
    standards: tuple[Standard, ...]
    notes: tuple[str, ...] = ()
    neighbours: int = K
    """The k of knn."""

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a member's tensors by dimension: `width` of the features, `size` of a bank."""
        first = self.fits[0]
        return {
            dimension: count
            for part, dimensions in FITTED[self.kind].items()
            for dimension, count in zip(dimensions.split(), first[part].shape, strict=True)
        }

    def among(self, members: Sequence[int]) -> EnsembleScore:
        """Return the score for a selection of members, in this order."""
        fits, standards = (
            tuple(self.fits[m] for m in members),
            tuple(self.standards[m] for m in members),
        )
        return replace(self, fits=fits, standards=standards)

    def score_inputs(self, features: Any, logits: Any) -> Any:
        """Return what this score reads if a bag-of-words model answers beside the model.

        It comes from the model alone, in place of features; arrays or tensors.
        """
        return features

    def __call__(self, features: Features, logits: ndarray) -> Scores:
        standardized = [
            (_values(self.kind, fit, features[:, m], logits[:, m], self.neighbours) - standard.mean)
            / standard.deviation
            for m, (fit, standard) in enumerate(zip(self.fits, self.standards, strict=True))
        ]
        return np.stack(standardized).mean(axis=0)


@dataclass(frozen=True)
class Given(EnsembleScore):
    """A score that comes in place of features."""

    shift: float = 0.0
    """Value added to the scores, so that they lie below those of another score."""

    def among(self, members: Sequence[int]) -> Given:
        return self

    def __call__(self, features: Features, logits: ndarray) -> Scores:
        return features[:, 0, 0] + self.shift


@dataclass(frozen=True)
class OwnLogits(EnsembleScore):
    """A score of what the model itself says, which comes in place of features where words answer
    beside it: they know little of what is unlike the data.
    """

    read: Callable[[ndarray], ndarray] = np.asarray
    """Logits as scores take them."""

    def among(self, members: Sequence[int]) -> OwnLogits:
        return self

    def score_inputs(self, features: Any, logits: Any) -> Any:
        return logits

    def __call__(self, features: Features, logits: ndarray) -> Scores:
        return scores_of(self.kind, self.read(features), None, None)


@dataclass(frozen=True)
class OwnBoth(EnsembleScore):
    """A fitted score that reads logits too: the model's own come behind the features."""

    width: int = 0
    """Width of the features."""
    read: Callable[[ndarray], ndarray] = np.asarray

    def score_inputs(self, features: Any, logits: Any) -> Any:
        if isinstance(features, ndarray):
            return np.concatenate([features, logits], axis=-1)
        import torch

        return torch.cat([features, logits.to(features)], dim=-1)

    def __call__(self, features: Features, logits: ndarray) -> Scores:
        model_logits = self.read(features[..., self.width :])
        return super().__call__(features[..., : self.width], model_logits)


def _values(kind: str, fit: Fit, features: ndarray, logits: ndarray, neighbours: int) -> Scores:
    """Return one member's score of many samples, in bounded memory."""
    score = on_features(kind).score
    if kind == "knn":
        score = partial(score, neighbours=neighbours)
    pairs = zip(in_pieces(features, ROWS), in_pieces(logits, ROWS), strict=True)
    scores = []
    for some_features, some_logits in pairs:
        check_deadline()
        scores.append(score(fit, some_features, some_logits))
    return np.concatenate(scores)


def fit(
    kind: str,
    evidence: Sequence[Evidence],
    held: tuple[Features, ndarray],
    *,
    precise: bool = False,
) -> EnsembleScore:
    """Fit a score to every member and standardise it on `held`, features and logits that were not
    fitted on.

    Fits are kept in float32, as they are stored: what is measured is what will be used. `precise`
    keeps float64. `knn/5` is knn by the 5th neighbour.
    """
    kind, _, number = kind.partition("/")
    neighbours = int(number or K)
    features, logits = held
    fits, standards = [], []
    notes: dict[str, None] = {}
    for member, data in enumerate(evidence):
        data.need_spread(kind)
        if kind == "knn" and len(data.features) < neighbours:
            message = (
                f"knn: {len(data.features)} samples to fit it on have no {neighbours}th neighbour"
            )
            raise DataError(message, hint=f"It needs at least {neighbours}; give more --fit-data.")
        parts, remarks = on_features(kind).fit(data)
        if not precise:
            parts = {name: part.astype(np.float32) for name, part in parts.items()}
        values = _values(kind, parts, features[:, member], logits[:, member], neighbours)
        if not (np.abs(values) <= LARGEST).all():  # NaN is not, either
            message = f"{kind}: overflows on samples that were held back from fitting it"
            raise DataError(message, hint="Give more --data or --fit-data, or another --ood-score.")
        fits.append(parts)
        deviation = float(values.std())
        if deviation < SMALLEST:  # all values are equal, but for rounding
            deviation = 1.0
        standards.append(Standard(mean=float(values.mean()), deviation=deviation))
        notes |= dict.fromkeys(remarks)
    return EnsembleScore(kind, tuple(fits), tuple(standards), tuple(notes), neighbours)


def scores_of(
    kind: str,
    logits: ndarray,
    features: Features | None,
    fitted: EnsembleScore | None,
    temperature: float = 1.0,
) -> Scores:
    """Compute a score, of logits alone or fitted."""
    if not len(logits):
        return np.zeros(0)
    if kind in LOGITS and fitted is None:
        return np.concatenate(
            [score_of(kind, rows, temperature) for rows in in_pieces(logits, ROWS)]
        )
    assert fitted is not None
    assert features is not None
    return fitted(features, logits)
