"""What `monitor` found as one HTML file, in the style of the report."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hydrasurgeon.files.foreign import visible
from hydrasurgeon.measuring.drift import Drift
from hydrasurgeon.report.page import digest, part, shown

CLASSES = 20
"""Classes that are listed at most: those that shifted most."""


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
            f"default-src 'none'; style-src '{digest(style)}'; base-uri 'none'; form-action 'none'"
        ),
        style=style,
        drift=drift,
        classes=rows[:CLASSES],
        more=max(0, len(rows) - CLASSES),
        name=name,
        source=source,
        notes=notes,
    )
