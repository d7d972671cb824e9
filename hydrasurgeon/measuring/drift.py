"""Whether answers are still those of the data that calibration saw.

Unfamiliar inputs: the threshold is the k-th smallest of n validation scores, k = ⌈(n + 1)(1 − α)⌉,
so that of N inputs like those X lie above it, X ~ BetaBinomial(N, n + 1 − k, k): the exact binomial
test, with what n samples leave open about the threshold. Predicted classes: Pearson's χ² of two
rows of counts, by permutations of who is in which row, for most classes are rare. Both hold for any
number of answers, together by Bonferroni, and for one look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.files.decided import Decision, Seen

DRAWS = 9_999
"""Permutations: the smallest p-value is a tenth of the smallest alpha."""
CELLS = 4_000_000
"""Counts that are drawn at a time."""


@dataclass(frozen=True)
class DriftTest:
    """One comparison of answers with what calibration saw."""

    name: str
    kind: str
    p_value: float
    drifted: bool
    sentence: str
    log10_e: tuple[float, ...] = ()
    """The e-value after each look, as a power of ten; empty where one look is all there is."""


@dataclass(frozen=True)
class Drift:
    """What became of a model's answers since calibration."""

    answers: Seen
    validation: Seen | None
    """None where the decision state does not say."""
    id_flagged: float
    alpha: float
    tests: tuple[DriftTest, ...]
    labels: tuple[str | int, ...]
    """What the counts of predictions belong to, in their order."""
    looks: int = 1
    """With those of earlier runs."""
    bar: float | None = None
    """At which power of ten an e-value is an alarm; None where one look is all there is."""

    @property
    def drifted(self) -> bool:
        """Whether some test says so."""
        return any(test.drifted for test in self.tests)

    @property
    def sentence(self) -> str:
        """The verdict."""
        if not self.drifted and self.bar is not None:
            return f"no drift is shown by {self.looks:,} looks at alpha {self.alpha:g} for all"
        if not self.drifted:
            rows = f"{self.answers.rows:,} answers"
            return f"no drift is shown by one look at {rows} at alpha {self.alpha:g}"
        return "drifted: " + "; ".join(test.sentence for test in self.tests if test.drifted)

    def to_json(self) -> dict[str, Any]:
        """As `monitor --json` prints it."""
        return {
            "drifted": self.drifted,
            "alpha": self.alpha,
            "looks": self.looks,
            "bar": self.bar,
            "answers": self._named(self.answers),
            "validation": None if self.validation is None else self._named(self.validation),
            "promised": {"unfamiliar": self.id_flagged},
            "tests": [asdict(test) for test in self.tests],
        }

    def _named(self, seen: Seen) -> dict[str, Any]:
        """Counts, those of predicted classes by their names."""
        predicted = dict(zip(map(str, self.labels), seen.predicted, strict=True))
        return {**seen.model_dump(mode="json"), "predicted": predicted}


def drift_of(
    answers: Seen, decision: Decision, labels: Sequence[str | int], *, alpha: float, seed: int = 0
) -> Drift:
    """The tests that the decision state has figures for."""
    promised, seen = decision.ood.id_flagged, decision.seen
    bound = alpha if seen is None else alpha / 2
    p = unfamiliar_p(answers.unfamiliar, answers.rows, promised, decision.certified)
    says = (
        f"{answers.unfamiliar / answers.rows:.1%} of the inputs look unfamiliar, at most "
        f"{promised:.1%} were promised"
    )
    tests = [DriftTest("unfamiliar", "exact beta-binomial", p, p <= bound, says)]
    if seen is not None:
        p = classes_p(answers.predicted, seen.predicted, seed=seed)
        says = shift(answers, seen, labels)
        tests.append(DriftTest("classes", "chi-square by permutation", p, p <= bound, says))
    return Drift(answers, seen, promised, alpha, tuple(tests), tuple(labels))


def shift(answers: Seen, seen: Seen, labels: Sequence[str | int]) -> str:
    """Where predictions differ most."""
    now, then = (np.array(each.predicted) / each.rows for each in (answers, seen))
    most = int(np.abs(now - then).argmax())
    return (
        f"predictions shifted, most of all {labels[most]} from {then[most]:.1%} to {now[most]:.1%}"
    )


def rank(certified: int, promised: float) -> int:
    """Which of the validation scores is the threshold, counted from the smallest."""
    # As statistics/conformal.py rounds it.
    return math.ceil((certified + 1) * (1 - promised) - 1e-9)


def unfamiliar_p(count: int, rows: int, promised: float, certified: int) -> float:
    """P(X ≥ count) of so many inputs that are like those on which the threshold was taken."""
    if count == 0:
        return 1.0
    below = rank(certified, promised)
    above = certified + 1 - below
    j = np.arange(count, rows)
    ratios = np.log(rows - j) + np.log(j + above) - np.log(j + 1) - np.log(rows - j - 1 + below)
    lg = math.lgamma
    first = lg(rows + 1) - lg(count + 1) - lg(rows - count + 1)
    first += lg(count + above) + lg(rows - count + below) - lg(rows + above + below)
    first += lg(above + below) - lg(above) - lg(below)
    return min(1.0, float(np.exp(first + np.concatenate([[0.0], ratios.cumsum()])).sum()))


def classes_p(one: Sequence[int], other: Sequence[int], *, seed: int) -> float:
    """How often rows of these sizes, drawn from all samples together, differ as much."""
    counts = np.array([one, other], dtype=np.int64)
    counts = counts[:, counts.sum(axis=0) > 0]
    total, size = counts.sum(axis=0), int(counts[1].sum())

    def distance(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        # χ² is this times a constant: each column's expected count is its total times the row's
        # fraction.
        return ((drawn - total * (size / total.sum())) ** 2 / total).sum(axis=-1)

    random, step = np.random.default_rng(seed), max(1, CELLS // len(total))
    least, as_far = float(distance(counts[1])) * (1 - 1e-9), 0
    for at in range(0, DRAWS, step):
        drawn = random.multivariate_hypergeometric(
            total, size, size=min(step, DRAWS - at), method="marginals"
        )
        as_far += int((distance(drawn) >= least).sum())
    return (as_far + 1) / (DRAWS + 1)
