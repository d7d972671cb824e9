"""The pictures of a report: calibration, OOD detection, selective answers, shifts, and quality against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, cat

from hydrasurgeon.measuring import curves
from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.measuring.bootstrap import Difference
from hydrasurgeon.measuring.page.grids import shown_name
from hydrasurgeon.measuring.page.svg import Chart, Scale, drawing, figure, number, short, text_of
from hydrasurgeon.measuring.results import Result

Drawn = Sequence[tuple[int, str, Answered]]
"""Rows that have been answered sample by sample: their number, what they are called, their answers."""

# What a risk chart leaves out at its left: among the first few answers the risk jumps about.
FIRST = 0.02
LINES = 4
"""OOD sets that have a line each in a histogram; of more, the near and the far ones have one line."""
ARROWS = {"higher": "↑", "lower": "↓"}
"""Which way a metric is better, behind its name."""
FOREST_ROW = 26
"""Height of one metric among the differences."""


def reliability(rows: Drawn) -> list[str]:
    """A chart for each row: how often answers of some confidence are right."""
    charts = []
    for at, name, row in rows:
        bins = curves.reliability(row.inside.confidence, row.inside.correct)
        gap = max(bins, key=lambda b: b.count * abs(b.accuracy - b.confidence))
        says = (
            f"Of {len(row.inside.labels)} answers. The largest part of the calibration error: "
            f"{gap.count} answers of confidence {gap.confidence:.2f}, of which {gap.accuracy:.2f} are right."
        )
        chart = Chart.of(f"Reliability of {name}", says, x=(0, 1), y=(0, 1))
        chart.axes("confidence, %", "right, %", percent="xy")
        most = max(b.count for b in bins)
        for b in bins:
            place = min(int(b.confidence * 15 + 1e-9), 14)
            tip = f"confidence {100 * b.confidence:.1f} %: {100 * b.accuracy:.1f} % right\nof {b.count} answers"
            chart.bar(place / 15, (place + 1) / 15, b.accuracy, f"share c{at % 8}", tip)
            top, low = sorted((b.accuracy, b.confidence), reverse=True)
            x, width = chart.x(place / 15) + 0.5, chart.x(1 / 15) - chart.x(0) - 1
            kind = "sure" if b.confidence > b.accuracy else "shy"
            chart.add(
                f'<rect class="gap {kind}" x="{number(x)}" y="{number(chart.y(top))}" width="{number(width)}"'
                f' height="{number(chart.y(low) - chart.y(top))}"/>'
            )
            # How many answers are this sure, as a line of that length at the foot.
            chart.add(
                f'<rect class="count" x="{number(x)}" y="{number(chart.y.start - 3)}"'
                f' width="{number(width * b.count / most)}" height="3"/>'
            )
        chart.add(
            f'<path class="ideal" d="M{number(chart.x(0))} {number(chart.y(0))}L{number(chart.x(1))}'
            f' {number(chart.y(1))}"/>'
        )
        charts.append(figure(name, chart.svg()))
    return charts


def histograms(rows: Drawn, results: Sequence[Result]) -> list[str]:
    """A chart for each row: the scores of familiar and of foreign samples."""
    charts = []
    groups = {o.name: o.group for result in results for o in result.ood}
    for _, name, row in rows:
        foreign = _foreign(row, groups)
        low, high, shares = curves.histogram([row.scores[row.used], *foreign.values()])
        titles = ["in distribution", *foreign]
        says = f"Scores by {row.used}, from {low:.3g} to {high:.3g}; higher is more foreign."
        top = max(max(each) for each in shares)
        chart = Chart.of(f"OOD scores of {name}", says, x=(low, high), y=(0, top * 1.05))
        chart.axes(f"OOD score, {row.used}", "samples, %", percent="y")
        step = (high - low) / len(shares[0])
        for at, share in enumerate(shares[0]):
            if share:
                tip = f"{titles[0]}: {100 * share:.1f} %\nscore {low + at * step:.3g} to {low + (at + 1) * step:.3g}"
                chart.bar(low + at * step, low + (at + 1) * step, share, "inside", tip)
        for which, each in enumerate(shares[1:]):
            # A step line: up and down at the edges of the bars.
            points = [(low + (at + edge) * step, share) for at, share in enumerate(each) for edge in (0, 1)]
            chart.line(points, which, titles[which + 1])
        legend = '<span><span class="key inside"></span>in distribution</span>' + "".join(
            f' <span><span class="key c{which % 8}"></span>{text_of(short(title))}</span>'
            for which, title in enumerate(titles[1:])
        )
        charts.append(figure(f"OOD scores: {name}", chart.svg(), note=f'<span class="legend">{legend}</span>'))
    return charts


def _foreign(row: Answered, groups: Mapping[str, str]) -> dict[str, Tensor]:
    """The scores of each OOD set, or, of many sets, of the near and of the far ones."""
    sets = {each.name: each.scores[row.used] for each in row.foreign}
    if len(sets) <= LINES:
        return sets
    members = {group: [sets[name] for name in sets if groups[name] == group] for group in ("near", "far")}
    return {
        f"{group} ({len(each)} set{'s' if len(each) > 1 else ''})": cat(each) for group, each in members.items() if each
    }


def rocs(rows: Drawn, results: Sequence[Result]) -> list[str]:
    """A chart for each OOD set, a line for each row."""
    names = list(dict.fromkeys(each.name for _, _, row in rows for each in row.foreign))
    charts = []
    for title in names:
        chart = Chart.of(f"ROC, {title}", "", x=(0, 1), y=(0, 1))
        chart.axes("familiar samples flagged, %", "foreign samples flagged, %", percent="xy")
        chart.add(
            f'<path class="ideal" d="M{number(chart.x(0))} {number(chart.y(0))}L{number(chart.x(1))}'
            f' {number(chart.y(1))}"/>'
        )
        areas = []
        for at, name, row in rows:
            for each in row.foreign:
                if each.name == title:
                    area = next(o.auroc for o in results[at].ood if o.name == title)
                    areas.append(f"{name} {area:.3f}")
                    points = curves.roc(row.scores[row.used], each.scores[row.used])
                    chart.line(points, at, f"{name}\nAUROC {area:.3f} by {row.used}")
        chart.says = f"AUROC: {'; '.join(areas)}."
        charts.append(figure(f"ROC: {title}", chart.svg()))
    return charts


def risk_coverage(rows: Drawn, results: Sequence[Result]) -> str:
    """One chart: how many answers are wrong among the surest."""
    drawn = [(at, name, curves.risk_coverage(row.inside.confidence, row.inside.correct)) for at, name, row in rows]
    top = max(risk for _, _, points in drawn for share, risk in points if share >= FIRST)
    chart = Chart.of("Risk over coverage", "", x=(0, 1), y=(0, max(top * 1.08, 0.001)))
    chart.axes("answered, %", "wrong among them, %", percent="xy")
    summaries = []
    for at, name, points in drawn:
        area = results[at].id.aurc
        summaries.append(f"{name} {area:.4f}" if area is not None else name)
        seen = [point for point in points if point[0] >= FIRST] or points
        chart.line(seen, at, f"{name}\nAURC {area:.4f}" if area is not None else name)
    chart.says = f"Area under the curve: {'; '.join(summaries)}."
    return figure("Risk over coverage", chart.svg())


def severities(results: Sequence[Result]) -> list[str]:
    """Accuracy and Brier by severity, a mean over the shifts of each; 0 is the set itself."""
    levels = sorted({s.severity for r in results for s in r.shift if s.severity is not None})
    if not levels:
        return []
    charts = []
    for title, key, percent in (("Accuracy", "accuracy", "y"), ("Brier score", "brier", "")):
        curves_of = []
        for at, result in enumerate(results):
            points: list[tuple[float, float]] = [(0.0, getattr(result.id, key))]
            for level in levels:
                values = [getattr(s, key) for s in result.shift if s.severity == level]
                points += [(float(level), sum(values) / len(values))] if values else []
            curves_of.append((at, shown_name(result), points))
        every = [value for _, _, points in curves_of for _, value in points]
        room = 0.06 * (max(every) - min(every) or 0.1)
        chart = Chart.of(
            f"{title} by severity",
            "",
            x=(0, levels[-1]),
            y=(max(min(every) - room, 0.0), min(max(every) + room, 1.0) if percent else max(every) + room),
        )
        chart.axes("severity of the shift", f"{title.lower()}{', %' if percent else ''}", percent=percent)
        summaries = []
        for at, name, points in curves_of:
            chart.line(points, at, name)
            for severity, value in points:
                chart.point(severity, value, at, f"{name}\nseverity {severity:.0f}: {value:.3f}")
            summaries.append(f"{name} from {points[0][1]:.3f} to {points[-1][1]:.3f}")
        chart.says = f"{'; '.join(summaries)}."
        charts.append(figure(f"{title} by severity", chart.svg()))
    return charts


def quality_cost(results: Sequence[Result], reference: int) -> list[str]:
    """A chart for each of a few metrics: what is got for how many multiply-adds."""
    spent = [_macs(result) for result in results]
    costed = [at for at, macs in enumerate(spent) if macs]
    if len(costed) < 2:
        return []
    base = spent[reference] or 0
    unit, label = (
        (base, f"multiply-adds, times those of {shown_name(results[reference])}") if base else (1e6, "multiply-adds, M")
    )
    metrics = (
        ("Accuracy", "y", _accuracy, "higher"),
        ("NLL", "", _nll, "lower"),
        ("ECE", "", _ece, "lower"),
        ("OOD AUROC", "y", _auroc, "higher"),
    )
    charts = []
    for title, percent, of, better in metrics:
        points = [((spent[at] or 0) / unit, value, at) for at in costed if (value := of(results[at])) is not None]
        if len(points) < 2:
            continue
        low, high = min(y for _, y, _ in points), max(y for _, y, _ in points)
        room = 0.16 * (high - low or max(abs(high), 0.01))
        # No share lies beyond 100 %, and nothing here below 0.
        low, high = max(low - room, 0.0), min(high + room, 1.0) if percent else high + room
        right = max(x for x, _, _ in points)
        # A badge at next to no cost would lie upon the ticks.
        left = -0.06 * right if min(x for x, _, _ in points) < 0.06 * right else 0.0
        values = "; ".join(f"{shown_name(results[at])}: {x:.2f}, {y:.3f}" for x, y, at in points)
        chart = Chart.of(f"{title} against cost", f"{values}.", x=(left, right * 1.08), y=(low, high))
        chart.axes(
            label if len(label) < 48 else "multiply-adds, times the reference's",
            f"{title}{', %' if percent else ''}",
            percent=percent,
        )
        chart.badges([(x, y, at, f"{shown_name(results[at])}\n{title} {y:.3f} for {x:.2f}") for x, y, at in points])
        charts.append(figure(f"{title} {ARROWS[better]} against cost", chart.svg()))
    return charts


def _accuracy(result: Result) -> float | None:
    return result.id.accuracy


def _nll(result: Result) -> float | None:
    return result.id.nll


def _ece(result: Result) -> float | None:
    return result.id.ece


def _auroc(result: Result) -> float | None:
    return result.ood_average["all"].auroc if result.ood_average else None


def _macs(result: Result) -> float | None:
    if result.cost is None:
        return None
    values = result.cost.model_dump()
    return values.get("expected_macs") or values["macs"]


def forest(differences: Sequence[Difference], names: dict[str, str], title: str) -> str:
    """A line for each metric: its difference and interval, each on a scale of its own, better to the right."""
    width, height = 320, FOREST_ROW * len(differences) + 20
    zero = 204
    pieces = [f'<line class="zero" x1="{zero}" x2="{zero}" y1="2" y2="{height - 18}"/>']
    for at, d in enumerate(differences):
        sign = 1 if d.metric in ("accuracy", "auroc") else -1
        ends = sorted((sign * d.low, sign * d.high))
        scale = Scale(0, max(abs(ends[0]), abs(ends[1]), 1e-12), zero, width - 14)
        y = FOREST_ROW * at + 14
        left, right, middle = (number(scale(value)) for value in (*ends, sign * d.value))
        tip = f"{names[d.metric]}: {d.value:+.4f}, between {d.low:+.4f} and {d.high:+.4f}"
        pieces.append(f'<text class="tick" x="0" y="{y}" dy=".32em">{text_of(names[d.metric])}</text>')
        pieces.append(
            f'<g class="mark {d.judgement}" data-tip="{text_of(tip)}"><line x1="{left}" x2="{right}" y1="{y}"'
            f' y2="{y}"/><circle cx="{middle}" cy="{y}" r="4"/></g>'
        )
    pieces.append(
        f'<text class="tick" x="{zero - 8}" y="{height - 4}" text-anchor="end">← worse</text><text class="tick"'
        f' x="{zero + 8}" y="{height - 4}">better →</text>'
    )
    says = "; ".join(f"{names[d.metric]} {d.value:+.4f}, {d.judgement}" for d in differences)
    return drawing(title, says, width, height, "".join(pieces), kind="forest")
