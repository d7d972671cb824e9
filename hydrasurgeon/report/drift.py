"""What `monitor` found as one HTML file, in the style of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hydrasurgeon.files.foreign import visible
from hydrasurgeon.measuring.drift import Drift, DriftTest
from hydrasurgeon.report.charts import picture
from hydrasurgeon.report.page import digest, part, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = 20
"""Classes that are listed at most: those that shifted most."""
ROOM = 2
"""What is drawn goes so many times as far as an alarm: beyond that, evidence is only ever more."""


def page(drift: Drift, *, name: str, source: str, notes: Sequence[str]) -> str:
    """The verdict, its tests, and what changed."""
    answers, seen = drift.answers, drift.validation
    classes = [
        (visible(str(label)), n, n / answers.rows)
        for label, n in zip(drift.labels, answers.predicted, strict=True)
    ]
    before = [None] * len(classes) if seen is None else [n / seen.rows for n in seen.predicted]
    rows = [(*each, then) for each, then in zip(classes, before, strict=True) if each[1] or then]
    rows.sort(key=lambda row: -abs(row[2] - (row[3] or 0.0)))
    style = Markup(part("style.css"))
    environment = Environment(
        autoescape=True, finalize=shown, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.from_string(part("drift.html.j2")).render(
        policy=Markup(
            f"default-src 'none'; img-src data:; style-src '{digest(style)}'; base-uri 'none'; form-action 'none'"
        ),
        style=style,
        drift=drift,
        classes=rows[:CLASSES],
        more=max(0, len(rows) - CLASSES),
        name=name,
        source=source,
        notes=notes,
        paths=[] if drift.bar is None else [_path(test, drift.bar) for test in drift.tests],
    )


def _path(test: DriftTest, bar: float) -> Markup:
    """The e-value of a question after each look."""
    ends = -ROOM * bar, ROOM * bar
    values = [min(max(value, ends[0]), ends[1]) for value in test.log10_e]
    last, most = test.log10_e[-1], max(test.log10_e)
    says = f"After {len(values)} looks it is 10^{last:.1f}, at most it was 10^{most:.1f}."

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlabel="look", ylabel="e-value, power of ten")
        axes.plot(range(1, len(values) + 1), values, "o-")
        axes.axhline(bar, ls="--")

    return Markup(picture(test.name, f"{says} An alarm takes 10^{bar:.1f}.", draw))
