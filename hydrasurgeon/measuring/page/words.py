"""The verdict in words: better, equal or worse than the reference, by how much, and for what cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hydrasurgeon.measuring.bootstrap import Difference
from hydrasurgeon.measuring.page.grids import shown_name
from hydrasurgeon.measuring.page.svg import short
from hydrasurgeon.measuring.results import Result

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
"""Samples that a comparison takes: resamples of fewer repeat so few answers that their interval is too narrow, of one
sample a point."""
NAMED = 3
"""Models of one verdict that the headline names; of more it says how many."""
HEADS = {"better": "Better", "equal": "Equal", "worse": "Worse", "mixed": "Mixed", "unknown": "Not compared"}
"""The word above a verdict."""


@dataclass(frozen=True)
class Verdict:
    """What one row is worth beside the reference."""

    name: str
    word: Word
    sentence: str
    cost: str
    differences: tuple[Difference, ...]
    unlike: Mapping[str, str] = field(default_factory=dict)
    """Conditions that the two do not have in common."""

    @property
    def head(self) -> str:
        return HEADS[self.word]


def verdict(
    result: Result,
    reference: Result,
    differences: Sequence[Difference] | None,
    *,
    level: float,
    unlike: Mapping[str, str],
) -> Verdict:
    """None: the two did not answer for the same samples, so that nothing can be told of their difference."""
    name, other = shown_name(result), shown_name(reference)
    cost = cost_words(result, reference)
    why = ""
    if differences is None:
        why = f"It did not answer for the samples that {other} answered for, so the two are not compared."
    elif result.id.n < FEWEST:
        why = f"{samples(result.id.n)} cannot tell it from {other}: a comparison takes {FEWEST} at least."
    if differences is None or why:
        return Verdict(name, "unknown", why, cost, ())
    but = f"; not alike: {'; '.join(unlike.values())}" if unlike else ""
    if any(o.n < FEWEST for o in result.ood):
        differences = [d for d in differences if d.metric not in ("auroc", "fpr95")]
    better = [d for d in differences if d.judgement == "better"]
    worse = [d for d in differences if d.judgement == "worse"]
    equal = [NAMES[d.metric] for d in differences if d.judgement == "equal"]
    word: Word = "mixed" if better and worse else "better" if better else "worse" if worse else "equal"
    parts = []
    if better:
        parts.append(f"Better than {other} in {_told(better)}")
    if worse:
        parts.append(f"{'worse' if better else f'Worse than {other}'} in {_told(worse)}")
    if not parts:
        same = (
            f"These samples do not tell it from {other}: no {100 * level:.4g} % interval of {listed(equal)} leaves"
            f" out 0{but}."
        )
        return Verdict(name, word, same, cost, tuple(differences), unlike)
    if equal:
        parts.append(f"level in {listed(equal)}")
    return Verdict(name, word, f"{'; '.join(parts)}{but}.", cost, tuple(differences), unlike)


def _told(differences: Iterable[Difference]) -> str:
    return listed(
        [f"{NAMES[d.metric]} ({signed(d.value)}, between {signed(d.low)} and {signed(d.high)})" for d in differences]
    )


def signed(value: float) -> str:
    """With a sign that is one, and three digits of what is small."""
    digits = 3 if abs(value) >= 0.01 else 4
    return f"{value:+.{digits}f}".replace("-", "−")


def samples(count: int, kind: str = "") -> str:
    """1 sample, 2 samples, 3 labelled samples."""
    return f"{count:,} {kind}{' ' if kind else ''}sample{'' if count == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    *first, last = words or [""]
    return f"{', '.join(first)} and {last}" if first else last


def cost_words(result: Result, reference: Result) -> str:
    """How many times the reference's cost; empty where either is not known."""
    mine, theirs = result.cost, reference.cost
    if mine is None or theirs is None:
        return "Its cost is not known." if mine is None else ""
    parts = []
    # A time is another one in the next minute: it stands in the table, no verdict rests on it.
    for what, key in (("multiply-adds", "macs"), ("parameters", "params")):
        # A cascade runs all of its members on some samples only.
        spent, base = mine.model_dump(), theirs.model_dump()
        value = spent.get("expected_macs") or spent[key] if key == "macs" else spent[key]
        against = base.get("expected_macs") or base[key] if key == "macs" else base[key]
        if value and against:
            ratio = value / against
            parts.append(
                f"the same {what}"
                if abs(ratio - 1) < LEVEL
                else f"{ratio:.{2 if ratio >= 0.095 else 1}{'f' if ratio >= 0.095 else 'g'}} × the {what}"
            )
    return f"It takes {listed(parts)}." if parts else ""


def headline(verdicts: Sequence[Verdict], reference: str) -> str:
    """One sentence over all rows."""
    if not verdicts:
        return f"What {short(reference)} is worth"
    says = {
        "better": "better",
        "mixed": "better in some and worse in others",
        "equal": "level",
        "worse": "worse",
        "unknown": "not compared",
    }
    parts = []
    for word, judgement in says.items():
        of_word = [v for v in verdicts if v.word == word]
        names = [short(v.name) for v in of_word]
        if names:
            subject = listed(names) if len(names) <= NAMED else f"{len(names)} models"
            parts.append(f"{subject} {'is' if len(names) == 1 else 'are'} {judgement}{_unlike(of_word)}")
    return f"Compared with {short(reference)}: {'; '.join(parts)}"


def _unlike(verdicts: Sequence[Verdict]) -> str:
    """In parentheses, what these models do not have in common with the reference."""
    phrases = [dict(each) for each in dict.fromkeys(tuple(v.unlike.items()) for v in verdicts if v.unlike)]
    if not phrases:
        return ""
    which = [short(v.name) for v in verdicts if v.unlike]
    who = "" if len(which) == len(verdicts) else f"{listed(which) if len(which) <= NAMED else len(which)} "
    if len(phrases) == 1:
        return f" ({who}{'; '.join(phrases[0].values())})"
    kinds = dict.fromkeys(kind for each in phrases for kind in each)
    return f" ({who}not alike in {listed(list(kinds))}: see below)"


def figures(result: Result) -> str:
    """The reference's own figures in a sentence."""
    i = result.id
    quality = [f"Accuracy {i.accuracy:.3f}", f"Brier score {i.brier:.3f}", f"NLL {i.nll:.3f}", f"ECE {i.ece:.3f}"]
    if "all" in result.ood_average:
        quality.append(f"OOD AUROC {result.ood_average['all'].auroc:.3f}")
    return f"{listed(quality)}."


def spent(result: Result) -> str:
    """What the reference costs; empty where that is not known."""
    if result.cost is None:
        return ""
    return f"{amount(result.cost.macs)} multiply-adds for one sample, {amount(result.cost.params)} parameters."


def amount(count: float) -> str:
    """Three digits and a unit: 25.3 k, 1.35 M, 17.6 G."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # What rounds up to a thousand is one of the next unit.
        if count >= 0.9995 * size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"
