"""Drift tests: whether answers still resemble the data of calibration, at any number of looks.

Each question has an e-process (`statistics.betting`) and an equal part of alpha, half of which is
that of its bets. The other half pays for what calibration estimated on a sample, how many inputs
are flagged and how often each class is predicted: bets are against the exact upper confidence limit
(Clopper and Pearson) of such a fraction. Of classes, some are on more of each and some on less; of
ranges of numbers, on how many values lie below each level. A promised risk is a number that was not
estimated. With n validation scores and the k-th smallest as the threshold, the fraction above it is
as that of n samples of which n − k were flagged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.files.decided import DecisionRecord, Seen
from hydrasurgeon.files.looks import Look
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.statistics.abstain import risk_bound
from hydrasurgeon.statistics.betting import log_wealth

BELOW_ONE = 1 - 1e-9
"""The largest limit of a fraction that can be bet against."""
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class DriftTest:
    """One comparison of answers with what calibration saw."""

    name: str
    p_value: float
    drifted: bool
    sentence: str
    """Description of the drift; empty without one."""
    log10_e: tuple[float, ...]
    """The e-value after each look, as a power of ten."""


@dataclass(frozen=True)
class Drift:
    """Results of the drift tests, with the counts that they compare."""

    answers: Seen
    validation: Seen | None
    """None if the decision state does not record it."""
    id_flagged: float
    may_be_flagged: float
    """Fraction up to which nothing has drifted, because few validation rows fitted the threshold."""
    alpha: float
    tests: tuple[DriftTest, ...]
    labels: tuple[str | int, ...]
    """Class labels, in the order of the counts of predictions."""
    looks: int
    """Number of looks, including those of earlier runs."""
    latest: int
    """Number of the look, from 1 on, that `answers` are of."""
    bar: float
    """Power of ten at which an e-value raises an alarm."""
    promises: Mapping[str, float]
    """Risks that labels can test."""
    kept: Mapping[str, tuple[int, int]]
    """Number of labelled answers over all looks, and of those that break the promise, by
    promise.
    """

    @property
    def level(self) -> float:
        """p-value at which a test raises an alarm."""
        return float(10**-self.bar)

    @property
    def drifted(self) -> bool:
        """True if at least one test shows drift."""
        return any(test.drifted for test in self.tests)

    @property
    def sentence(self) -> str:
        """One sentence on all that drifted."""
        return "the answers drifted: " + "; ".join(
            test.sentence for test in self.tests if test.drifted
        )

    def to_json(self) -> dict[str, Any]:
        """Return the record that `monitor --json` prints."""
        return {
            "drifted": self.drifted,
            "alpha": self.alpha,
            "looks": self.looks,
            "bar": self.bar,
            "answers": self._named(self.answers),
            "validation": None if self.validation is None else self._named(self.validation),
            "promised": {"unfamiliar": self.id_flagged, **self.promises},
            "labelled": {
                name: {"rows": rows, "broken": broken} for name, (rows, broken) in self.kept.items()
            },
            "tests": [asdict(test) for test in self.tests],
        }

    def _named(self, seen: Seen) -> dict[str, Any]:
        """Return counts as JSON, those of predicted classes by class name."""
        predicted = dict(zip(map(str, self.labels), seen.predicted, strict=True))
        return {**seen.model_dump(mode="json"), "predicted": predicted}


def _when(looks: Sequence[Look], first: int) -> str:
    """Say which look showed a drift first; nothing if there was no other."""
    if len(looks) == 1:
        return ""
    name = looks[first].name
    of_file = "" if name is None else f"{visible(name)}, "
    return f"in {of_file}look {first + 1:,} of {len(looks):,}, "


@dataclass(frozen=True)
class _Question:
    name: str
    counted: Counts
    """[look, stream]; `rows` holds the number of rows that these were counted among."""
    rows: Counts
    limits: Sequence[float]
    """Upper limit of each fraction without drift."""
    says: Callable[[int], str]
    """Function that describes the result of a look."""

    def tested(self, looks: Sequence[Look], level: float) -> DriftTest:
        """Test this question; a drift that was shown once, at wealth 1 / level, remains shown."""
        path = log_wealth(self.counted, self.rows, np.minimum(self.limits, BELOW_ONE))
        p_value = min(1.0, math.exp(-max(path)))
        drifted, sentence = p_value <= level, ""
        if drifted:
            first = int((path >= -math.log(level)).argmax())
            sentence = f"{_when(looks, first)}{self.says(first)}"
        log10_e = tuple((path / math.log(10)).round(6).tolist())
        return DriftTest(self.name, p_value, drifted, sentence, log10_e)


def drift_over(
    looks: Sequence[Look],
    decision: DecisionRecord,
    labels: Sequence[str | int],
    promises: Mapping[str, float],
    *,
    alpha: float,
) -> Drift:
    """Test all looks together for drift; `promises` are risks that labels can test."""
    promised, before = decision.ood.id_flagged, decision.seen
    count = 1 + (before is not None) + bool(promises)
    level = alpha / count / 2
    nothing = Seen.model_construct(
        rows=0, unfamiliar=0, abstain=0, uncertainty=0.0, predicted=(0,) * len(labels)
    )
    nights = [look.seen or nothing for look in looks]
    questions = [_unfamiliar(nights, decision, level)]
    if before is not None:
        ordered = bool(decision.levels)
        questions.append(_classes(nights, before, labels, level, ordered=ordered))
    if any(look.kept for look in looks):
        questions.append(_risk(looks, promises))
    tests = tuple(question.tested(looks, level) for question in questions)
    kept = {}
    for name in promises:
        if counts := [look.kept[name] for look in looks if name in look.kept]:
            kept[name] = (sum(rows for rows, _ in counts), sum(broken for _, broken in counts))
    latest = max(number for number, night in enumerate(nights, 1) if night.rows)
    bar = round(-math.log10(level), 6)
    return Drift(
        nights[latest - 1],
        before,
        promised,
        questions[0].limits[0],
        alpha,
        tests,
        tuple(labels),
        len(looks),
        latest,
        bar,
        promises,
        kept,
    )


def _unfamiliar(nights: Sequence[Seen], decision: DecisionRecord, level: float) -> _Question:
    promised, certified = decision.ood.id_flagged, decision.certified
    limit = risk_bound(certified - rank(certified, promised), certified, level)

    def says(look: int) -> str:
        share = nights[look].unfamiliar / nights[look].rows
        return f"{share:.1%} of the inputs were flagged as unfamiliar; at most {promised:.1%} were promised"

    flagged, rows = (_column(getattr(n, name) for n in nights) for name in ("unfamiliar", "rows"))
    return _Question("unfamiliar", flagged, rows, [limit], says)


def _classes(
    nights: Sequence[Seen],
    before: Seen,
    labels: Sequence[str | int],
    level: float,
    *,
    ordered: bool,
) -> _Question:
    rows = _column(night.rows for night in nights)
    class_counts = np.array([seen.predicted for seen in (before, *nights)])
    if ordered:
        class_counts = class_counts.cumsum(axis=1)[:, :-1]
    then, class_counts = class_counts[0].tolist(), class_counts[1:]
    expected = [*then, *(before.rows - count for count in then)]
    limit = cache(lambda count: risk_bound(count, before.rows, level / len(expected)))
    limits = [limit(count) for count in expected]
    counted = np.hstack([class_counts, rows - class_counts])
    return _Question(
        "classes", counted, rows, limits, lambda look: shift(nights[look], before, labels)
    )


def _risk(looks: Sequence[Look], promises: Mapping[str, float]) -> _Question:
    kept = np.array([[look.kept.get(name, (0, 0)) for name in promises] for look in looks])

    def says(look: int) -> str:
        sentences = [
            f"{broken} of {rows} labelled answers break the promised {name} of {most:.1%}"
            for (name, most), (rows, broken) in zip(promises.items(), kept[look], strict=True)
        ]
        return " and ".join(sentences)

    return _Question("risk", kept[..., 1], kept[..., 0], [*promises.values()], says)


def _column(values: Iterable[int]) -> Counts:
    return np.array([*values], dtype=np.int64)[:, None]


def shift(answers: Seen, seen: Seen, labels: Sequence[str | int]) -> str:
    """Describe the class whose predictions changed most."""
    now, then = (np.array(counts.predicted) / counts.rows for counts in (answers, seen))
    most = int(np.abs(now - then).argmax())
    return (
        f"predictions shifted, most of all {labels[most]} from {then[most]:.1%} to {now[most]:.1%}"
    )


def rank(certified: int, promised: float) -> int:
    """Return the rank of the threshold among the validation scores, counted from the smallest."""
    # As statistics/conformal.py rounds it.
    return math.ceil((certified + 1) * (1 - promised) - 1e-9)
