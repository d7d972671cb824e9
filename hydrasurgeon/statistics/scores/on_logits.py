"""OOD scores that are functions of logits alone; higher = more unfamiliar.

Each is a function of terms that are averaged over the members (`LOGITS` in `files/decided.py` names
them): msp 1 − max p · entropy H(p) · mi H(p) − mean H(p_m), all of the mean
probabilities; energy −T logsumexp(z/T) and
max-logit −max z, means over the members. On transformers energy and max-logit are often worse than
msp: their logits say little by their size (OpenOOD v1.5, table of ViT-B/16).

Of many labels, each a choice between no and yes: entropy, mi and energy are sums over the labels
(the last is the joint energy of Wang et al., NeurIPS 2021); msp and max-logit look at the most
likely label alone. Of a text's words, which have three classes or more, it is their mean; a place
without a word has the same logit for all classes, and counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import ndarray

from hydrasurgeon.files.decided import LOGITS
from hydrasurgeon.lookup import plugins
from hydrasurgeon.run.shapes import Float
from hydrasurgeon.statistics.probabilities import (
    Logits,
    Scores,
    entropy,
    logsumexp,
    softmax,
    tempered,
)

Many = Float[ndarray, "*any klass"]
One = Float[ndarray, "*any"]
Choices = Float[ndarray, "sample member label 2"]
Words = Float[ndarray, "sample member word klass"]


@dataclass(frozen=True)
class OnLogits:
    """A score of the logits, higher = more unfamiliar."""

    score: Callable[[Many], One]
    """Score of the terms, after averaging over the members."""
    terms: Callable[[Many, float], Many]
    """Terms of one member's logits at a temperature."""
    labels: Literal["likeliest", "sum"] | None = None
    """Rule for many labels, for a plugin's score; for ours it stands in `files/decided.py`."""


def probabilities(logits: Many, temperature: float) -> Many:
    return softmax(logits)


def informed(logits: Many, temperature: float) -> Float[ndarray, "*any klass_and_1"]:
    """Return probabilities, and in a last column their entropy."""
    probs = softmax(logits)
    return np.concatenate([probs, entropy(probs)[..., None]], axis=-1)


def energies(logits: Many, temperature: float) -> Float[ndarray, "*any 1"]:
    return -temperature * logsumexp(logits / temperature)[..., None]


def unchanged(logits: Many, temperature: float) -> Many:
    return logits


def msp(probs: Many) -> One:
    return 1 - probs.max(axis=-1)


def energy(energies: Float[ndarray, "*any 1"]) -> One:
    return energies[..., 0]


def max_logit(logits: Many) -> One:
    return -logits.max(axis=-1)


def mutual_information(means: Float[ndarray, "*any klass_and_1"]) -> One:
    return np.maximum(entropy(means[..., :-1]) - means[..., -1], 0.0)


ON_LOGITS = {
    "msp": OnLogits(msp, probabilities),
    "entropy": OnLogits(entropy, probabilities),
    "energy": OnLogits(energy, energies),
    "max-logit": OnLogits(max_logit, unchanged),
    "mi": OnLogits(mutual_information, informed),
}
"""Our scores of the logits."""


def score_of(kind: str, logits: Logits | Choices | Words, temperature: float = 1.0) -> Scores:
    """Compute a score of logits [sample, member, class], of many labels' choices, or of words."""
    row = ON_LOGITS.get(kind) or plugins("scores")[kind]
    score: Callable[[Many], One] = row.score
    means = row.terms(logits.astype(np.float64), temperature).mean(axis=1)
    if row.terms is probabilities:
        means = tempered(means, temperature)
    if means.ndim == 2:
        return score(means)
    if logits.shape[-1] > 2:
        there = (logits[:, 0] != logits[:, 0, :, :1]).any(axis=-1)
        return (score(means) * there).sum(axis=-1) / np.maximum(there.sum(axis=-1), 1)
    if LOGITS[kind] == "likeliest":
        return score(means[..., 1:]).min(axis=-1)
    return score(means).sum(axis=-1)
