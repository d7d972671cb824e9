"""The verdict in words: how a model compares with the reference, and at what cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hydrasurgeon.measuring.bootstrap import Difference
from hydrasurgeon.measuring.measure import Answered
from hydrasurgeon.measuring.results import COMPARED, Cost, Result
from hydrasurgeon.report.columns import short, shown_name

Word = Literal["better", "mixed", "equal", "worse", "unknown"]

OF_OOD = ("auroc", "fpr95")
"""Metrics of OOD detection."""
FIGURES = ("accuracy", "f1", "token_accuracy", "brier", "nll", "ece")
"""What a sentence says of a model alone."""
SPOILED_BY = {"OOD score": OF_OOD, "calibration": ("brier", "nll", "ece", *OF_OOD)}
"""What two models do not have in common -> the metrics that are then not compared."""
LEVEL = 0.01
"""By how much costs may differ and be called the same."""
FEWEST = 20
"""Samples that a comparison takes: resamples of fewer repeat so few answers that their interval is
too narrow.
"""
NAMED = 3
"""Models that the headline names; of more it says how many."""
HEADS = {
    "better": "Better",
    "mixed": "Mixed",
    "equal": "Not distinguishable",
    "worse": "Worse",
    "unknown": "Not compared",
}
"""The word above a verdict."""
JUDGEMENTS = {
    "better": "better",
    "mixed": "better in some metrics and worse in others",
    "equal": "not distinguishable",
    "worse": "worse",
    "unknown": "not compared",
}
"""The same in the headline."""


@dataclass(frozen=True)
class Verdict:
    """How one row compares with the reference."""

    name: str
    word: Word
    sentence: str
    cost: str
    ratio: float | None
    """Its multiply-adds, as times the reference's."""
    differences: tuple[Difference, ...] = ()

    @property
    def head(self) -> str:
        return HEADS[self.word]

    @property
    def pays(self) -> bool:
        """Whether it is cheaper, and no worse as far as is known."""
        cheaper = self.ratio is not None and self.ratio < 1 - LEVEL
        return cheaper and self.word in ("better", "equal")


def named(metric: str) -> str:
    """What a metric is called in a sentence."""
    name = "Brier score" if metric == "brier" else COMPARED[metric].name
    return f"OOD {name}" if metric in OF_OOD else name


def verdict(
    result: Result,
    reference: Result,
    differences: Sequence[Difference] | None,
    *,
    unlike: Mapping[str, str],
) -> Verdict:
    """None: the two did not answer for the same samples, so that nothing can be told of their
    difference.
    """
    name, other = shown_name(result), shown_name(reference)
    cost, ratio = cost_words(result, reference), cost_ratio(result, reference)
    if differences is None:
        why = f"It answered for other samples than {other}, so the two are not compared."
        return Verdict(name, "unknown", why, cost, ratio)
    samples = f"{result.id.n:,} sample{'' if result.id.n == 1 else 's'}"
    if result.id.n < FEWEST:
        why = f"{samples} cannot tell it from {other}: a comparison takes {FEWEST} at least."
        return Verdict(name, "unknown", why, cost, ratio)
    spoiled = {metric for kind in unlike for metric in SPOILED_BY.get(kind, ())}
    if any(o.n < FEWEST for o in result.ood):
        spoiled.update(OF_OOD)
    told = tuple(d for d in differences if d.metric not in spoiled)
    better, worse, level = (
        [d for d in told if d.judgement == judgement] for judgement in ("better", "worse", "equal")
    )
    parts = []
    if better:
        parts.append(f"Better than {other} in {listed(map(_figures, better))}")
    if worse:
        start = "worse" if better else f"Worse than {other}"
        parts.append(f"{start} in {listed(map(_figures, worse))}")
    if parts and level:
        parts.append(f"not distinguishable in {listed(named(d.metric) for d in level)}")
    if not parts:
        # Accuracy comes first, and says most of how far the two may be apart.
        parts.append(f"Not distinguishable on {samples} ({_figures(level[0], ' ')})")
    left_out = [named(d.metric) for d in differences if d.metric in spoiled]
    if left_out:
        parts.append(f"not compared in {listed(left_out)}")
    if unlike:
        parts.append(f"not alike: {'; '.join(unlike.values())}")
    return Verdict(name, _word(better, worse), f"{'; '.join(parts)}.", cost, ratio, told)


def _word(better: Sequence[Difference], worse: Sequence[Difference]) -> Word:
    if better and worse:
        return "mixed"
    if better:
        return "better"
    return "worse" if worse else "equal"


def _figures(difference: Difference, opening: str = " (") -> str:
    """accuracy (+1.2 points, between +0.3 and +2.1)."""
    metric, values = difference.metric, (difference.value, difference.low, difference.high)
    unit = ""
    value, low, high = map(signed, values)
    if COMPARED[metric].points:
        unit = " points"
        value, low, high = (f"{100 * each:+.1f}".replace("-", "−") for each in values)
    closing = ")" if "(" in opening else ""
    return f"{named(metric)}{opening}{value}{unit}, between {low} and {high}{closing}"


def signed(value: float) -> str:
    """With a sign that is one, and three digits of what is small."""
    digits = 3 if abs(value) >= 0.01 else 4
    return f"{value:+.{digits}f}".replace("-", "−")


def listed(words: Iterable[str]) -> str:
    """a, b and c."""
    *first, last = [*words] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def macs_of(cost: Cost) -> int:
    """Multiply-adds of a sample on average: a cascade runs all of its members on some samples only."""
    return cost.expected_macs or cost.macs


def cost_ratio(result: Result, reference: Result) -> float | None:
    """How many times the reference's multiply-adds it takes."""
    if result.cost is None or reference.cost is None or not macs_of(reference.cost):
        return None
    return macs_of(result.cost) / macs_of(reference.cost)


def times(ratio: float, what: str) -> str:
    """the same cost, or 0.71 × the cost."""
    if abs(ratio - 1) < LEVEL:
        return f"the same {what}"
    return f"{ratio:.2f} × the {what}" if ratio >= 0.095 else f"{ratio:.1g} × the {what}"


def cost_words(result: Result, reference: Result) -> str:
    """How many times the reference's cost; empty where that is not known."""
    if result.cost is None or reference.cost is None:
        return "Its cost is not known." if result.cost is None else ""
    # A time is another one in the next minute: it stands in the table, no verdict rests on it.
    pairs = {
        "multiply-adds": (macs_of(result.cost), macs_of(reference.cost)),
        "parameters": (result.cost.params, reference.cost.params),
    }
    parts = [times(value / base, what) for what, (value, base) in pairs.items() if value and base]
    return f"It takes {listed(parts)}." if parts else ""


def headline(verdicts: Sequence[Verdict], reference: str) -> str:
    """One sentence over all rows; what is cheaper and no worse comes first."""
    if not verdicts:
        return f"The quality of {short(reference)}"
    order = sorted(verdicts, key=lambda v: (not v.pays, [*JUDGEMENTS].index(v.word)))
    clauses = [_clause(verdict) for verdict in order[:NAMED]]
    if len(order) > NAMED:
        clauses.append(f"{len(order) - NAMED} more below")
    return f"Compared with {short(reference)}: {'; '.join(clauses)}"


def _clause(verdict: Verdict) -> str:
    """half is not distinguishable at 0.71 × the cost."""
    cost = "" if verdict.ratio is None else f" at {times(verdict.ratio, 'cost')}"
    return f"{short(verdict.name)} is {JUDGEMENTS[verdict.word]}{cost}"


def figures(result: Result) -> str:
    """The reference's own figures in a sentence."""
    values = {named(key): getattr(result.id, key) for key in FIGURES}
    quality = [f"{name} {value:.3f}" for name, value in values.items() if value is not None]
    if "all" in result.ood_average:
        quality.append(f"OOD AUROC {result.ood_average['all'].auroc:.3f}")
    text = f"{listed(quality)}."
    return text[0].upper() + text[1:]


def spent(result: Result) -> str:
    """What the reference costs; empty where that is not known."""
    if result.cost is None:
        return ""
    return (
        f"{amount(result.cost.macs)} multiply-adds for one sample, "
        f"{amount(result.cost.params)} parameters."
    )


def calibration_words(row: Answered) -> str:
    """Whether its answers are calibrated, and by what it detects OOD samples."""
    parts = [f"Calibrated: {'yes' if row.calibrated else 'no'}"]
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
