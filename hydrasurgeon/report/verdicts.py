"""The verdict in words: better, equal or worse than the reference, by how much, and at what cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.measuring.bootstrap import Difference
from hydrasurgeon.measuring.results import Cost, Result
from hydrasurgeon.report.columns import short, shown_name

Word = Literal["better", "equal", "worse", "mixed", "unknown"]

NAMES = {
    "accuracy": "accuracy",
    "brier": "Brier score",
    "nll": "NLL",
    "ece": "ECE",
    "auroc": "OOD AUROC",
    "fpr95": "OOD FPR95",
}
"""What a metric is called in a sentence."""
LEVEL = 0.01
"""By how much costs may differ and be called the same."""
FEWEST = 20
"""Samples that a comparison takes: resamples of fewer repeat so few answers that their interval is
too narrow.
"""
NAMED = 3
"""Models of one verdict that the headline names; of more it says how many."""
JUDGED = {
    "better": ("Better", "better"),
    "mixed": ("Mixed", "better in some and worse in others"),
    "equal": ("Equal", "level"),
    "worse": ("Worse", "worse"),
    "unknown": ("Not compared", "not compared"),
}
"""The word above a verdict, and the same in the headline."""


@dataclass(frozen=True)
class Verdict:
    """How one row compares with the reference."""

    name: str
    word: Word
    sentence: str
    cost: str
    differences: tuple[Difference, ...] = ()
    unlike: Mapping[str, str] = field(default_factory=dict)
    """Conditions that the two do not have in common."""

    @property
    def head(self) -> str:
        return JUDGED[self.word][0]


def verdict(
    result: Result,
    reference: Result,
    differences: Sequence[Difference] | None,
    *,
    level: float,
    unlike: Mapping[str, str],
) -> Verdict:
    """None: the two did not answer for the same samples, so that nothing can be told of their
    difference.
    """
    name, other = shown_name(result), shown_name(reference)
    cost = cost_words(result, reference)
    if differences is None:
        why = (
            f"It did not answer for the samples that {other} answered for, so the two are not "
            "compared."
        )
        return Verdict(name, "unknown", why, cost)
    if result.id.n < FEWEST:
        why = (
            f"{result.id.n:,} sample{'' if result.id.n == 1 else 's'} cannot tell it from "
            f"{other}: a comparison"
        )
        return Verdict(name, "unknown", f"{why} takes {FEWEST} at least.", cost)
    if any(o.n < FEWEST for o in result.ood):
        differences = [d for d in differences if d.metric not in ("auroc", "fpr95")]
    better, worse, equal = (
        [d for d in differences if d.judgement == j] for j in ("better", "worse", "equal")
    )
    word: Word = (
        "mixed" if better and worse else "better" if better else "worse" if worse else "equal"
    )
    level_in = listed([NAMES[d.metric] for d in equal])
    parts = []
    if better:
        parts.append(f"Better than {other} in {_told(better)}")
    if worse:
        parts.append(f"{'worse' if better else f'Worse than {other}'} in {_told(worse)}")
    if equal and parts:
        parts.append(f"level in {level_in}")
    if not parts:
        every = f"every {100 * level:.4g} % interval of {level_in} contains 0"
        parts.append(f"No significant difference from {other}: {every}")
    if unlike:
        parts.append(f"not alike: {'; '.join(unlike.values())}")
    return Verdict(name, word, f"{'; '.join(parts)}.", cost, tuple(differences), unlike)


def _told(differences: Iterable[Difference]) -> str:
    words = "{} ({}, between {} and {})"
    return listed(
        [words.format(NAMES[d.metric], *map(signed, (d.value, d.low, d.high))) for d in differences]
    )


def signed(value: float) -> str:
    """With a sign that is one, and three digits of what is small."""
    digits = 3 if abs(value) >= 0.01 else 4
    return f"{value:+.{digits}f}".replace("-", "−")


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    *first, last = words or [""]
    return f"{', '.join(first)} and {last}" if first else last


def macs_of(cost: Cost) -> int:
    """Multiply-adds of a sample on average: a cascade runs all of its members on some samples only."""
    return cost.expected_macs or cost.macs


def cost_words(result: Result, reference: Result) -> str:
    """How many times the reference's cost; empty where that is not known."""
    mine, theirs = result.cost, reference.cost
    if mine is None or theirs is None:
        return "Its cost is not known." if mine is None else ""
    parts = []
    # A time is another one in the next minute: it stands in the table, no verdict rests on it.
    pairs = {
        "multiply-adds": (macs_of(mine), macs_of(theirs)),
        "parameters": (mine.params, theirs.params),
    }
    for what, (value, base) in pairs.items():
        if value and base:
            ratio = value / base
            times = f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:.1g}"
            parts.append(f"the same {what}" if abs(ratio - 1) < LEVEL else f"{times} × the {what}")
    return f"It takes {listed(parts)}." if parts else ""


def headline(verdicts: Sequence[Verdict], reference: str) -> list[tuple[str, str]]:
    """One sentence over all rows, in clauses, each with what it says in parentheses."""
    if not verdicts:
        return [(f"What {short(reference)} is worth", "")]
    parts: list[tuple[str, str]] = []
    for word, (_, judgement) in JUDGED.items():
        of_word = [v for v in verdicts if v.word == word]
        if of_word:
            subject = (
                listed([short(v.name) for v in of_word])
                if len(of_word) <= NAMED
                else f"{len(of_word)} models"
            )
            before = "; " if parts else f"Compared with {short(reference)}: "
            parts.append(
                (
                    f"{before}{subject} {'is' if len(of_word) == 1 else 'are'} {judgement}",
                    _unlike(of_word),
                )
            )
    return parts


def _unlike(verdicts: Sequence[Verdict]) -> str:
    """In parentheses, what these models do not have in common with the reference."""
    unlike = [v for v in verdicts if v.unlike]
    phrases = [dict(each) for each in dict.fromkeys(tuple(v.unlike.items()) for v in unlike)]
    if not phrases:
        return ""
    who = ""
    if len(unlike) < len(verdicts):
        who = f"{listed([short(v.name) for v in unlike]) if len(unlike) <= NAMED else len(unlike)} "
    if len(phrases) == 1:
        return f" ({who}{'; '.join(phrases[0].values())})"
    kinds = dict.fromkeys(kind for each in phrases for kind in each)
    return f" ({who}not alike in {listed(list(kinds))}: see below)"


def figures(result: Result) -> str:
    """The reference's own figures in a sentence."""
    i = result.id
    quality = [
        f"Accuracy {i.accuracy:.3f}",
        f"Brier score {i.brier:.3f}",
        f"NLL {i.nll:.3f}",
        f"ECE {i.ece:.3f}",
    ]
    if "all" in result.ood_average:
        quality.append(f"OOD AUROC {result.ood_average['all'].auroc:.3f}")
    return f"{listed(quality)}."


def spent(result: Result) -> str:
    """What the reference costs; empty where that is not known."""
    if result.cost is None:
        return ""
    return (
        f"{amount(result.cost.macs)} multiply-adds for one sample, "
        f"{amount(result.cost.params)} parameters."
    )


def decided(row: Answered) -> str:
    """Whether its answers are calibrated, and by what it detects OOD samples."""
    of = row.conditions
    data = None if of.provenance is None else of.provenance.calibrated_on
    calibrated = (
        f"yes, on {data.spec} ({data.rows:,} samples)"
        if of.calibrated and data is not None
        else "yes"
    )
    parts = [f"Calibrated: {calibrated if of.calibrated else 'no'}"]
    if row.scores:
        threshold = "no threshold" if row.threshold is None else f"threshold {row.threshold:.3g}"
        parts.append(f"OOD by {row.used}, {threshold}")
    return f"{'. '.join(parts)}."


def amount(count: float) -> str:
    """Three digits and a unit: 25.3 k, 1.35 M, 17.6 G."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # What rounds up to a thousand is one of the next unit.
        if count >= 0.9995 * size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"
