"""The charts of a report: calibration, OOD detection, selective prediction, shifts, and quality
against cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, cat

from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.measuring.bootstrap import HIGHER, Difference
from hydrasurgeon.measuring.results import Result
from hydrasurgeon.report.columns import ARROWS, F1, OOD, QUALITY, short, shown_name
from hydrasurgeon.report.svg import (
    RADIUS,
    WIDTH,
    Chart,
    Scale,
    colour,
    drawing,
    figure,
    number,
    text_of,
    ticks_of,
)
from hydrasurgeon.report.verdicts import HEADS, NAMES, Verdict, listed, macs_of
from hydrasurgeon.statistics.metrics import BINS, bins_of, risks

Drawn = Sequence[tuple[int, str, Answered]]
"""Rows: their number, what they are called, their answers."""

FIRST = 0.02
"""What a risk chart leaves out at its left: among the first few answers the risk jumps about."""
LINES = 4
"""OOD sets that have a line each in a histogram; of more, the near and the far ones have one line.
"""
DIFFERENCE = 26
"""Height of one model among the differences."""
FLAGGED = 0.05
"""The fraction of in-distribution samples above the line that stands for a threshold where none was
fitted.
"""
POINTS = 160
"""Points of a curve; a chart has no pixels for more."""
BARS = (8, 40)
"""Fewest and most bars of a histogram; bars of a few samples each show only noise."""
TAIL = 0.005
"""The fraction of samples at either end that a histogram may leave out: a few far ones would
squeeze all others.
"""

Curve = list[tuple[float, float]]
"""Points of a line."""


def reliability(rows: Drawn) -> list[str]:
    """A chart for each row: how often answers of some confidence are right."""
    charts = []
    for at, name, row in rows:
        confidence, correct = row.inside.sure()
        if not len(confidence):
            continue
        bins = bins_of_confidence(confidence, correct)
        sure, right, count = max(bins, key=lambda each: each[2] * abs(each[1] - each[0]))
        says = (
            f"Of {len(confidence)} answers. The largest part of the calibration error: "
            f"{count} answers of confidence {sure:.2f}, of which {right:.2f} are right."
        )
        chart = Chart.of(f"Reliability of {name}", says, x=(0, 1), y=(0, 1))
        chart.axes("confidence, %", "right, %", "xy")
        most = max(count for *_, count in bins)
        for sure, right, count in bins:
            place = min(int(sure * 15 + 1e-9), 14)
            tip = f"confidence {100 * sure:.1f} %: {100 * right:.1f} % right\nof {count} answers"
            chart.bar(place / 15, (place + 1) / 15, right, f"share c{at % 8}", tip)
            x, width = chart.x(place / 15) + 0.5, chart.x(1 / 15) - chart.x(0) - 1
            top = chart.y(max(sure, right))
            chart.rect(
                f"gap {'sure' if sure > right else 'shy'}",
                x,
                top,
                width,
                chart.y(min(sure, right)) - top,
            )
            # How many answers have this confidence, as a line of that length at the foot.
            chart.rect("count", x, chart.y.start - 3, width * count / most, 3)
        chart.ideal()
        charts.append(figure(name, chart.svg()))
    return charts


def histograms(rows: Drawn, results: Sequence[Result]) -> list[str]:
    """A chart for each row: the scores of in-distribution and of OOD samples, and the threshold."""
    charts = []
    groups = {o.name: o.group for result in results for o in result.ood}
    for _, name, row in rows:
        inside, foreign = row.scores[row.used], _foreign(row, groups)
        low, high, shares = bars_of([inside, *foreign.values()])
        threshold, flags = _threshold(row, {"in distribution": inside, **foreign})
        says = f"Scores by {row.used}, from {low:.3g} to {high:.3g}; higher for OOD. {flags}"
        chart = Chart.of(
            f"OOD scores of {name}", says, x=(low, high), y=(0, 1.05 * max(map(max, shares)))
        )
        chart.axes(f"OOD score, {row.used}", "samples, %", "y")
        step = (high - low) / len(shares[0])
        for at, share in enumerate(shares[0]):
            if share:
                left = low + at * step
                tip = f"in distribution: {100 * share:.1f} %\nscore {left:.3g} to {left + step:.3g}"
                chart.bar(left, left + step, share, "inside", tip)
        for which, (title, each) in enumerate(zip(foreign, shares[1:], strict=True)):
            # A step line: up and down at the edges of the bars.
            points = [
                (low + (at + edge) * step, share)
                for at, share in enumerate(each)
                for edge in (0, 1)
            ]
            chart.line(points, which, title)
        chart.rule(min(max(threshold, low), high), "" if row.threshold is None else "fitted", flags)
        keys = [
            ("inside", "in distribution"),
            *((f"c{at % 8}", short(title)) for at, title in enumerate(foreign)),
        ]
        keys.append(("line", "5 % of ID" if row.threshold is None else "threshold"))
        legend = " ".join(
            f'<span><span class="key {kind}"></span>{text_of(title)}</span>' for kind, title in keys
        )
        charts.append(
            figure(f"OOD scores: {name}", chart.svg(), note=f'<span class="legend">{legend}</span>')
        )
    return charts


def _threshold(row: Answered, sets: Mapping[str, Tensor]) -> tuple[float, str]:
    """The fitted threshold, else the one that flags 5 % of the in-distribution samples, and how
    much of each set it flags.
    """
    inside = row.scores[row.used].double()
    threshold = float(inside.quantile(1 - FLAGGED)) if row.threshold is None else row.threshold
    fractions = [
        f"{100 * float((each > threshold).double().mean()):.1f} % of {name}"
        for name, each in sets.items()
    ]
    what = "No threshold was fitted. One of" if row.threshold is None else "The fitted threshold,"
    return threshold, f"{what} {threshold:.3g} flags {listed(fractions)}."


def _foreign(row: Answered, groups: Mapping[str, str]) -> dict[str, Tensor]:
    """The scores of each OOD set, or, of many sets, of the near and of the far ones."""
    sets = {each.name: each.scores[row.used] for each in row.foreign}
    if len(sets) <= LINES:
        return sets
    members = {
        group: [sets[name] for name in sets if groups[name] == group] for group in ("near", "far")
    }
    return {
        f"{group} ({len(each)} set{'s' if len(each) > 1 else ''})": cat(each)
        for group, each in members.items()
        if each
    }


def rocs(rows: Drawn, results: Sequence[Result]) -> list[str]:
    """A chart for each OOD set, a line for each row."""
    charts = []
    for title in dict.fromkeys(each.name for _, _, row in rows for each in row.foreign):
        chart = Chart.of(f"ROC, {title}", "", x=(0, 1), y=(0, 1))
        chart.axes("in-distribution samples flagged, %", "OOD samples flagged, %", "xy")
        chart.ideal()
        areas = []
        for at, name, row in rows:
            for o, each in zip(results[at].ood, row.foreign, strict=True):
                if each.name == title:
                    areas.append(f"{name} {o.auroc:.3f}")
                    points = roc_curve(row.scores[row.used], each.scores[row.used])
                    chart.line(points, at, f"{name}\nAUROC {o.auroc:.3f} by {row.used}")
        chart.says = f"AUROC: {'; '.join(areas)}."
        charts.append(figure(f"ROC: {title}", chart.svg()))
    return charts


def risk_coverage(rows: Drawn, results: Sequence[Result]) -> list[str]:
    """One chart: how many of the most confident answers are wrong."""
    drawn = [
        (at, name, risk_curve(*row.inside.sure()))
        for at, name, row in rows
        if len(row.inside.sure()[0])
    ]
    if not drawn:
        return []
    top = max(risk for _, _, points in drawn for share, risk in points if share >= FIRST)
    chart = Chart.of("Risk over coverage", "", x=(0, 1), y=(0, max(top * 1.08, 0.001)))
    chart.axes("answered, %", "wrong among them, %", "xy")
    summaries = []
    for at, name, points in drawn:
        area = results[at].id.aurc
        summaries.append(f"{name} {area:.4f}" if area is not None else name)
        shown = [point for point in points if point[0] >= FIRST] or points
        chart.line(shown, at, f"{name}\nAURC {area:.4f}" if area is not None else name)
    chart.says = f"Area under the curve: {'; '.join(summaries)}."
    return [figure("Risk over coverage", chart.svg())]


def severities(results: Sequence[Result]) -> list[str]:
    """Accuracy and Brier by severity, a mean over the shifts of each; 0 is the set itself."""
    if not any(r.shift_average and r.shift_average.severities for r in results):
        return []
    charts = []
    for title, key, percent in (("Accuracy", "accuracy", "y"), ("Brier score", "brier", "")):
        lines = []
        for result in results:
            points = [(0.0, float(getattr(result.id, key)))]
            if result.shift_average is not None:
                levels = result.shift_average.severities
                points += [(float(at), float(getattr(levels[at], key))) for at in levels]
            lines.append((shown_name(result), points))
        last = max(x for _, points in lines for x, _ in points)
        values = [value for _, points in lines for _, value in points]
        room = 0.06 * (max(values) - min(values) or 0.1)
        low, high = _within(min(values) - room, max(values) + room, percent)
        says = [f"{name} from {ends[0][1]:.3f} to {ends[-1][1]:.3f}" for name, ends in lines]
        title = f"{title} by severity"
        chart = Chart.of(title, f"{'; '.join(says)}.", x=(0, last), y=(low, high))
        chart.axes("severity of the shift", _unit(title.split(" by")[0].lower(), percent), percent)
        for at, (name, points) in enumerate(lines):
            chart.line(points, at, name)
            for severity, value in points:
                chart.point(severity, value, at, f"{name}\nseverity {severity:.0f}: {value:.3f}")
        charts.append(figure(title, chart.svg()))
    return charts


def _within(low: float, high: float, percent: str) -> tuple[float, float]:
    """No fraction lies beyond 100 %, and nothing here below 0."""
    return max(low, 0.0), min(high, 1.0) if percent else high


def _unit(label: str, percent: str) -> str:
    return f"{label}, %" if percent else label


def quality_cost(results: Sequence[Result], reference: int) -> list[str]:
    """A chart for each of a few metrics: what is got for how many multiply-adds."""
    costs = {at: macs_of(r.cost) for at, r in enumerate(results) if r.cost is not None}
    costs = {at: macs for at, macs in costs.items() if macs}
    if len(costs) < 2:
        return []
    unit, label = 1e6, "multiply-adds, M"
    if reference in costs:
        unit = costs[reference]
        label = f"multiply-adds, times those of {shown_name(results[reference])}"
        if len(label) >= 48:
            label = "multiply-adds, times the reference's"
    inside = [result.id for result in results]
    ood = [result.ood_average.get("all") for result in results]
    charts = []
    for title, metric, records, percent in (
        ("Accuracy", QUALITY[0], inside, "y"),
        ("F1", F1, inside, "y"),
        ("NLL", QUALITY[2], inside, ""),
        ("ECE", QUALITY[3], inside, ""),
        ("OOD AUROC", OOD[0], ood, "y"),
    ):
        points = []
        for at, macs in costs.items():
            value = metric.of(records[at])
            if value is not None:
                tip = f"{shown_name(results[at])}\n{title} {value:.3f} for {macs / unit:.2f}"
                points.append((macs / unit, value, at, tip))
        if len(points) < 2:
            continue
        across, values = [x for x, *_ in points], [value for _, value, *_ in points]
        room = 0.16 * (max(values) - min(values) or max(abs(max(values)), 0.01))
        # A dot at next to no cost would lie upon the ticks.
        left = -0.06 * max(across) if min(across) < 0.06 * max(across) else 0.0
        says = [f"{shown_name(results[at])}: {x:.2f}, {value:.3f}" for x, value, at, _ in points]
        chart = Chart.of(
            f"{title} against cost",
            f"{'; '.join(says)}.",
            x=(left, max(across) * 1.08),
            y=_within(min(values) - room, max(values) + room, percent),
        )
        chart.axes(label, _unit(title, percent), percent)
        chart.numbered(points)
        charts.append(figure(f"{title}{ARROWS[metric.better]} against cost", chart.svg()))
    return charts


def differences(verdicts: Sequence[tuple[int, Verdict]], reference: str) -> list[str]:
    """A chart for each metric: every row's difference from the reference on one axis, better to the
    right.
    """
    metrics = dict.fromkeys(d.metric for _, verdict in verdicts for d in verdict.differences)
    return [
        _differences(
            metric,
            [(at, v.name, d) for at, v in verdicts for d in v.differences if d.metric == metric],
            reference,
        )
        for metric in metrics
    ]


def _differences(metric: str, rows: Sequence[tuple[int, str, Difference]], reference: str) -> str:
    ends = [0.0, *(end for _, _, d in rows for end in (d.low, d.high))]
    room = 0.05 * (max(ends) - min(ends)) or 0.001
    low, high = min(ends) - room, max(ends) + room
    height = DIFFERENCE * len(rows) + 8
    x, better = Scale(low, high, 34, WIDTH - 10), "higher"
    if metric not in HIGHER:
        # Less is better to the right too, where less is better.
        x, better = Scale(high, low, 34, WIDTH - 10), "lower"

    def label(text: str, at: str, y: float, anchor: str) -> str:
        return f'<text class="tick" x="{at}" y="{y}" text-anchor="{anchor}">{text}</text>'

    def upright(kind: str, at: str) -> str:
        return f'<line class="{kind}" x1="{at}" x2="{at}" y1="2" y2="{height}"/>'

    pieces, says = [], []
    for value, text in ticks_of(Scale(low, high, 0, 1), percent=False):
        place = number(x(value))
        pieces += [upright("grid", place), label(text, place, height + 14, "middle")]
    pieces.append(upright("zero", number(x(0))))
    for line, (at, name, d) in enumerate(rows):
        y, judgement = DIFFERENCE * line + 4 + DIFFERENCE // 2, HEADS[d.judgement].lower()
        left, right, middle = (number(x(value)) for value in (d.low, d.high, d.value))
        interval = f"{d.value:+.4f}, between {d.low:+.4f} and {d.high:+.4f}: {judgement}"
        says.append(f"{name} {interval}")
        tip = text_of(f"{name}\n{NAMES[metric]} {interval}")
        pieces += [
            f'<circle class="dot {colour(at)}" cx="12" cy="{y}" r="{RADIUS}"/>',
            f'<text class="in-dot" x="12" y="{y}" dy=".34em" text-anchor="middle">{at + 1}</text>',
            f'<g class="mark {d.judgement}" data-tip="{tip}"><line x1="{left}" x2="{right}" y1="{y}"'
            f' y2="{y}"/><circle cx="{middle}" cy="{y}" r="4"/></g>',
        ]
    foot = height + 30
    pieces.append(label("← worse", "34", foot, "start"))
    pieces.append(label("better →", str(WIDTH - 10), foot, "end"))
    title = f"{NAMES[metric]}{ARROWS[better]}"
    name = f"{title} less that of {reference}"
    content = drawing(name, f"{'; '.join(says)}.", WIDTH, foot + 4, "".join(pieces))
    return figure(f"Δ {title}", content)


def bins_of_confidence(
    confidence: Float[Tensor, " sample"], correct: Bool[Tensor, " sample"]
) -> list[tuple[float, float, int]]:
    """Confidence, accuracy and count of the bins of the ECE that hold anything."""
    bins = bins_of(confidence)
    rows = torch.stack(
        [confidence.double(), correct.double(), torch.ones_like(confidence, dtype=torch.float64)]
    )
    sums = torch.zeros(3, BINS + 1, dtype=torch.float64).index_add_(1, bins, rows)
    return [
        (sure / count, right / count, int(count)) for sure, right, count in sums.T.tolist() if count
    ]


def bars_of(sets: Sequence[Tensor]) -> tuple[float, float, list[list[float]]]:
    """Low and high end, and for each set the share of its samples in each of some equal steps
    between.
    """
    # Rice's rule, for the smallest set.
    bars = min(max(round(2 * min(map(len, sets)) ** (1 / 3)), BARS[0]), BARS[1])
    ends = [_ends(values) for values in sets]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    shares = []
    for values in sets:
        # What lies beyond the ends is counted in the last bars.
        place = ((values.double() - low) / (high - low) * bars).long().clamp(0, bars - 1)
        shares.append((torch.bincount(place, minlength=bars) / len(values)).tolist())
    return low, high, shares


def _ends(values: Tensor) -> tuple[float, float]:
    order = values.double().sort().values
    tail = int(TAIL * len(order))
    return float(order[tail]), float(order[len(order) - 1 - tail])


def roc_curve(inside: Tensor, outside: Tensor) -> Curve:
    """(share of ID samples flagged, share of OOD samples flagged), from nothing flagged to
    everything.
    """
    thresholds = torch.cat([inside, outside]).unique(sorted=True).flip(0)
    chosen = thresholds[_spread(len(thresholds))]
    below = [
        torch.searchsorted(scores.sort().values, chosen).double() / len(scores)
        for scores in (inside, outside)
    ]
    return [(0.0, 0.0), *zip(*((1 - share).tolist() for share in below), strict=True)]


def risk_curve(confidence: Float[Tensor, " sample"], correct: Bool[Tensor, " sample"]) -> Curve:
    """(share answered, share wrong among them), the surest first."""
    risk = risks(confidence, correct)
    return [(float((at + 1) / len(risk)), float(risk[at])) for at in _spread(len(risk))]


def _spread(count: int) -> Tensor:
    """At most `POINTS` places from the first to the last."""
    return torch.linspace(0, count - 1, min(count, POINTS)).round().long().unique()
