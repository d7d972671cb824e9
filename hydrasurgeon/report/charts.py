"""The charts of a report, drawn by matplotlib: pictures that are part of the page."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.lookup import format_number
from hydrasurgeon.measuring.measure import Answered
from hydrasurgeon.measuring.results import Result
from hydrasurgeon.report.columns import short
from hydrasurgeon.statistics.metrics import BINS, bins_of, risks
from hydrasurgeon.statistics.probabilities import spaced, sums_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Drawn = Sequence[tuple[int, str, Answered]]
"""Rows: their number, their name, and their answers."""
Curve = list[tuple[float, float]]
"""Points of a line."""

COLOURS = ["#1f5fbf", "#c2500a", "#0d7a5f", "#a02a8c", "#8a6a00", "#0b7d9c", "#b3261e", "#5b4bb7"]
"""Colours of the rows, in turn; the page's style sheet repeats them."""
GREY, GOOD, BAD = "#7a8294", "#0b7a4b", "#b3261e"
STYLE: Any = {
    "svg.hashsalt": "hydrasurgeon",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Style of all charts. Grey is legible on light and on dark pages; the salt makes equal charts
equal bytes.
"""
FIRST = 0.02
"""Coverage at which a risk chart begins: the risk of the first few answers varies too much."""
FLAGGED = 0.05
"""Fraction of in-distribution samples above the line that represents a threshold where none was
fitted.
"""
BARS = 24
"""Number of bars of a histogram."""
POINTS = 160
"""Maximum number of points of a curve, given the width of a chart in pixels."""
TAIL = 0.005
"""Fraction of samples at either end that a histogram counts in its outermost bars, because a few
distant ones would squeeze all others.
"""


def colour(at: int) -> str:
    """Return the style sheet's class for row `at`."""
    return f"c{at % len(COLOURS)}"


def picture(
    caption: str,
    says: str,
    draw: Callable[[Axes], object],
    across: str,
    up: str = "",
    *,
    percent: str = "",
) -> str:
    """Return a chart with its caption as HTML.

    `says` describes the chart for readers who cannot see it; `percent` names the axes of fractions:
    "x", "y" or "xy".
    """
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    file = io.BytesIO()
    with rc_context():
        rcdefaults()
        rcParams.update(STYLE)
        figure = Figure(figsize=(4.6, 3.3), layout="constrained")
        axes = figure.subplots()
        for axis, name, label in ((axes.xaxis, "x", across), (axes.yaxis, "y", up)):
            axis.set_label_text(f"{label}, %" if name in percent else label)
            if name in percent:
                axis.set_major_formatter(PercentFormatter(1.0, symbol=""))
        draw(axes)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    source = b64encode(file.getvalue()).decode()
    return (
        f"<figure><figcaption>{escape(visible(short(caption)))}</figcaption>"
        f'<img alt="{escape(visible(says))}" src="data:image/svg+xml;base64,{source}"></figure>'
    )


def _lines(curves: Mapping[int, Curve], axes: Axes) -> None:
    """Draw a line for each row, in its colour."""
    for at, points in curves.items():
        axes.plot(*zip(*points, strict=True), color=COLOURS[at % 8])


def reliability(rows: Drawn) -> list[str]:
    """Return a chart for each row: accuracy by confidence."""
    charts = []
    for at, name, row in rows:
        confidence, correct = row.inside.sure()
        if len(confidence):
            bins = bins_of_confidence(confidence, correct)
            sure, right, count = max(
                bins,
                key=lambda confidence_bin: (
                    confidence_bin[2] * abs(confidence_bin[1] - confidence_bin[0])
                ),
            )
            says = (
                f"Of {len(confidence)} answers. The largest part of the calibration error: "
                f"{count} answers of confidence {sure:.2f}, of which {right:.2f} are right."
            )
            draw = partial(_bins, bins, COLOURS[at % 8])
            charts.append(picture(name, says, draw, "confidence", "right", percent="xy"))
    return charts


def _bins(bins: Sequence[tuple[float, float, int]], colour: str, axes: Axes) -> None:
    axes.set(xlim=(0, 1), ylim=(0, 1))
    most = max(count for *_, count in bins)
    bar = partial(axes.bar, width=0.95 / BINS, align="edge")
    for sure, right, count in bins:
        left = min(int(sure * BINS + 1e-9), BINS - 1) / BINS
        bar(left, right, color=colour, alpha=0.5)
        bar(left, sure - right, bottom=right, color=BAD if sure > right else GOOD, alpha=0.25)
        bar(left, 0.06 * count / most, color=GREY)
    axes.plot([0, 1], [0, 1], "--", color=GREY)


def histograms(rows: Drawn) -> list[str]:
    """Return a chart for each row: the scores of in-distribution and OOD samples, with the
    threshold.
    """
    charts = []
    for _, name, row in rows:
        inside, threshold = row.scores[row.used], row.threshold
        sets = {"in distribution": inside}
        sets |= {set_name: scores[row.used] for set_name, scores in row.ood_scores.items()}
        line_name, style = "The fitted threshold,", "-"
        if threshold is None:
            threshold = float(np.quantile(inside.astype(np.float64), 1 - FLAGGED))
            line_name, style = "No threshold was fitted. One of", "--"
        fractions = [
            f"{100 * float((values > threshold).astype(np.float64).mean()):.1f} % of {which}"
            for which, values in sets.items()
        ]
        says = f"Scores by {row.used}. {line_name} {format_number(threshold)} flags {', '.join(fractions)}."
        charts.append(
            picture(
                f"OOD scores: {name}",
                says,
                partial(_scores, sets, threshold, style),
                f"OOD score, {row.used}",
                "samples",
                percent="y",
            )
        )
    return charts


def _scores(sets: Mapping[str, ndarray], threshold: float, style: str, axes: Axes) -> None:
    low, high = np.quantile(np.concatenate([*sets.values()]), (TAIL, 1 - TAIL))
    for at, (name, values) in enumerate(sets.items()):
        look: dict[str, Any] = {"color": COLOURS[(at - 1) % 8], "histtype": "step"}
        if not at:
            look = {"color": GREY, "histtype": "stepfilled", "alpha": 0.5}
        values, share = np.clip(values, low, high), np.full(len(values), 1 / len(values))
        axes.hist(
            values, BARS, range=(low, high), weights=share, label=visible(short(name)), **look
        )
    axes.legend(fontsize="small")
    axes.axvline(min(max(threshold, low), high), ls=style, color=GREY)


def risk_coverage(rows: Drawn, results: Sequence[Result]) -> list[str]:
    """Return one chart: risk by coverage, for all rows."""
    curves, areas = {}, []
    for at, name, row in rows:
        confidence, correct = row.inside.sure()
        if len(confidence):
            points = risk_curve(confidence, correct)
            curves[at] = [point for point in points if point[0] >= FIRST] or points
            area = results[at].id.aurc
            areas.append(name if area is None else f"{name} {area:.4f}")
    if not curves:
        return []
    says, labels = f"Area under the curve: {'; '.join(areas)}.", ("answered", "wrong among them")
    return [picture("Risk over coverage", says, partial(_lines, curves), *labels, percent="xy")]


def bins_of_confidence(
    confidence: Float[ndarray, " sample"], correct: Bool[ndarray, " sample"]
) -> list[tuple[float, float, int]]:
    """Return confidence, accuracy and count of each bin of the ECE that is not empty."""
    bins, rows = bins_of(confidence), (confidence, correct, np.ones_like(confidence))
    sums = np.stack([sums_at(bins, row.astype(np.float64), BINS + 1) for row in rows])
    return [(sure / n, right / n, int(n)) for sure, right, n in sums.T.tolist() if n]


def risk_curve(confidence: Float[ndarray, " sample"], correct: Bool[ndarray, " sample"]) -> Curve:
    """Return points (fraction answered, fraction wrong of these), the most confident answers
    first.
    """
    risk = risks(confidence, correct)
    some = spaced(len(risk) - 1, min(len(risk), POINTS)).round().astype(np.int64)
    return [(float((at + 1) / len(risk)), float(risk[at])) for at in np.unique(some)]
