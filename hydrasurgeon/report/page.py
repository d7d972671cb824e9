"""The report as one HTML file that opens anywhere: no library, no network, a style and a few lines
of script.

A policy in its head names these two by their hashes: a browser runs nothing else, whatever a name
in the report holds.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from operator import itemgetter
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.lookup import format_number
from hydrasurgeon.measuring.measure import Answered, Row
from hydrasurgeon.measuring.model_differences import Difference
from hydrasurgeon.measuring.results import COMPARED, PairedDifference, Report, Result
from hydrasurgeon.report import charts
from hydrasurgeon.report.classes import class_tables
from hydrasurgeon.report.columns import (
    WORDS,
    ReportTable,
    short,
    shown_name,
    tables,
)
from hydrasurgeon.report.differences import differences, table_of, word_of

PASSED = (
    "names",
    "reference",
    "heads",
    "headline",
    "notes",
    "chances",
)
"""Attributes of the material that the template gets unchanged."""
LEVEL = 0.01
"""Relative difference below which costs count as equal."""
NAMED = 6
"""Number of models that the headline names; the rest is counted."""
WORDS_SHOWN = {"equal": "not distinguishable", "unknown": "not compared"}
"""Words on differences as a sentence shows them, where they differ."""


@dataclass(frozen=True)
class Material:
    """Contents of a report."""

    report: Report
    rows: tuple[Row, ...]
    reference: int = 0
    level: float = 0.95
    seed: int = 0
    notes: tuple[str, ...] = ()
    classes: Sequence[str] = ()
    """Class names, by number."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of weights and of data."""

    @property
    def names(self) -> list[str]:
        return [shown_name(row.result) for row in self.rows]

    @cached_property
    def differing(self) -> list[tuple[Difference, ...]]:
        """Differences of every other row from the reference."""
        reference = self.rows[self.reference]
        other_rows = (row for row in self.rows if row is not reference)
        return [differences(row, reference, level=self.level, seed=self.seed) for row in other_rows]

    @property
    def other_names(self) -> list[str]:
        """Names of the rows besides the reference."""
        return [name for at, name in enumerate(self.names) if at != self.reference]

    @property
    def paired(self) -> tuple[PairedDifference, ...]:
        """Differences as records of the report."""
        reference = self.rows[self.reference]
        other_rows = [row for row in self.rows if row is not reference]
        return tuple(
            PairedDifference(
                name=row.name,
                reference=reference.name,
                metric=difference.metric,
                difference=difference.value,
                low=difference.low,
                high=difference.high,
            )
            for row, differing in zip(other_rows, self.differing, strict=True)
            for difference in differing
        )

    @property
    def heads(self) -> list[tuple[str, str]]:
        """Summary of each row's differences from the reference: the word, and its displayed
        form.
        """
        words = [word_of(differences_of_row) for differences_of_row in self.differing]
        heads = [(word, WORDS_SHOWN.get(word, word)) for word in words]
        heads.insert(self.reference, ("reference", "reference"))
        return heads

    @property
    def tables(self) -> list[ReportTable]:
        """Tables of the report, differences first."""
        first = [table_of(self.other_names, self.differing)] if any(self.differing) else []
        return [*first, *tables([row.result for row in self.rows])]

    @property
    def headline(self) -> str:
        """Sentence that summarizes all rows."""
        reference = short(self.names[self.reference])
        if not self.other_names:
            return f"The quality of {reference}"
        clauses = [clause for _, clause in sorted(self._clauses(), key=itemgetter(0))]
        more = [f"{len(clauses) - NAMED} more in the report"] if len(clauses) > NAMED else []
        return f"Compared with {reference}: {'; '.join([*clauses[:NAMED], *more])}"

    def _clauses(self) -> Iterator[tuple[bool, str]]:
        """Yield a sort key and a clause for each row, such as "half is worse in NLL at 0.71 × the
        cost"; cheaper models that are no worse come first.
        """
        base = _macs(self.rows[self.reference])
        rivals = [row for row in self.rows if row is not self.rows[self.reference]]
        for row, name, differing in zip(rivals, self.other_names, self.differing, strict=True):
            word = word_of(differing)
            macs = _macs(row)
            ratio = macs / base if macs and base else None
            pays = ratio is not None and ratio < 1 - LEVEL and word in ("better", "equal")
            verdict = WORDS_SHOWN.get(word) or _in_what(differing)
            yield not pays, f"{short(name)} is {verdict}{_cost(ratio)}"

    @property
    def chances(self) -> str:
        """Note that some of many intervals exclude 0 by chance."""
        count = sum(map(len, self.differing))
        expected = count * (1 - self.level)
        return (
            f"Of {count} intervals about {format_number(expected, 1)} exclude 0 by chance alone."
            if count
            else ""
        )


def _in_what(differing: Sequence[Difference]) -> str:
    """Name the metrics that differ: "worse in AUROC and FPR95"; none if all of them do."""
    parts = []
    for word in ("better", "worse"):
        metrics = [d.metric for d in differing if d.judgement == word]
        if len(metrics) == len(differing):
            return word
        if metrics:
            *first, last = (COMPARED[metric].brief for metric in metrics)
            names = f"{', '.join(first)} and {last}" if first else last
            parts.append(f"{word} in {names}")
    return " but ".join(parts)


def _macs(row: Row) -> int | None:
    """Return the average multiply-adds of a sample."""
    cost = row.result.cost
    return None if cost is None else cost.expected_macs or cost.macs


def _cost(ratio: float | None) -> str:
    if ratio is None:
        return ""
    if abs(ratio - 1) < LEVEL:
        return " at the same cost"
    return f" at {ratio:.2f} × the cost" if ratio >= 0.095 else f" at {ratio:.1g} × the cost"


def state_line(row: Answered) -> str:
    """Return a line on calibration and on OOD detection."""
    calibrated = f"Calibrated: {'yes' if row.calibrated else 'no'}."
    if not row.scores:
        return calibrated
    threshold = (
        "no threshold" if row.threshold is None else f"threshold {format_number(row.threshold)}"
    )
    return f"{calibrated} OOD by {row.used}, {threshold}."


def document(material: Material) -> str:
    """Return the HTML file."""
    environment = Environment(
        autoescape=True, finalize=shown, undefined=StrictUndefined, keep_trailing_newline=True
    )
    style, script = (Markup(part(name)) for name in ("style.css", "script.js"))
    sources = f"img-src data:; style-src '{digest(style)}'; script-src '{digest(script)}'"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    results, reference = [row.result for row in material.rows], material.rows[material.reference]
    data = material.report.settings.get("data")
    metrics = [column.metric for table in material.tables for column in table.columns]

    def named(name: str) -> str:
        """Shorten a name, to leave room for numbers, unless shortened names would look alike."""
        alike = len({short(other) for other in material.names}) < len(set(material.names))
        if alike or short(name) == visible(name):
            return name
        return Markup('<span title="{}">{}</span>').format(visible(name), short(name))

    return environment.from_string(part("page.html.j2")).render(
        **{name: getattr(material, name) for name in PASSED},
        **_charts(material, results),
        policy=Markup(policy),
        style=style,
        script=script,
        first=reference,
        states=[state_line(row.answers) for row in material.rows],
        data=data if isinstance(data, list) else [data] if data else [],
        ood_sizes={o.name: o.n for r in results for o in r.ood},
        level=f"{100 * material.level:.4g}",
        tables=material.tables,
        glossary={metric.name: metric.meaning for metric in metrics if metric.meaning} | WORDS,
        facts=_facts(material),
        colour=charts.colour,
        named=named,
    )


def _charts(material: Material, results: Sequence[Result]) -> dict[str, Any]:
    """Return the charts by section."""
    drawn = [
        (at, name, row.answers)
        for at, (name, row) in enumerate(zip(material.names, material.rows, strict=True))
    ]
    return {
        "by_class": class_tables(drawn, material.reference, material.classes),
        "reliability": charts.reliability(drawn),
        "ood": charts.histograms([row for row in drawn if row[2].ood_scores]),
        "selective": charts.risk_coverage(drawn, results),
    }


def shown(value: object) -> object:
    """Escape invisible characters of foreign text; our own markup stays unchanged."""
    return value if isinstance(value, Markup) else visible(value)


def part(name: str) -> str:
    """Return the text of a file of this folder."""
    return (files("hydrasurgeon") / "report" / name).read_text(encoding="utf-8")


def digest(content: str) -> str:
    """Return the hash of a script or a style in the form of a policy."""
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _facts(material: Material) -> dict[str, Any]:
    """Return the settings of the measurement, for display."""
    facts = {
        key.replace("_", " "): ", ".join(map(str, value))
        if isinstance(value, list | tuple)
        else str(value)
        for key, value in material.report.settings.items()
        if value not in (None, [], (), False)
    }
    facts["intervals"] = (
        f"paired bootstrap over samples, {100 * material.level:.4g} %, seed {material.seed}"
    )
    return facts | {f"content hash of {name}": sha256 for name, sha256 in material.hashes.items()}
