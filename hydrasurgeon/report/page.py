"""The report as one HTML file that opens anywhere: no library, no network, a style and a few lines
of script.

A policy in its head names these two by their hashes: a browser runs nothing else, whatever a name
in the report holds.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.history import command_line
from hydrasurgeon.files.manifest import UNKNOWN, DataRecord, Manifest
from hydrasurgeon.measuring.bootstrap import compared, is_paired, unlike
from hydrasurgeon.measuring.measure import Row
from hydrasurgeon.measuring.results import Report, Result
from hydrasurgeon.problems.entities import JudgedTokens
from hydrasurgeon.report import charts, entities
from hydrasurgeon.report.classes import balance, class_tables
from hydrasurgeon.report.columns import (
    NARROW,
    WIDEST,
    WORDS,
    Table,
    short,
    shown_name,
    tables,
)
from hydrasurgeon.report.verdicts import (
    Verdict,
    calibration_words,
    figures,
    headline,
    spent,
    verdict,
)

PASSED = (
    "names",
    "reference",
    "verdicts",
    "numbered",
    "notes",
    "manifests",
    "uses",
    "chances",
)
"""What the template gets of the material as it is."""


@dataclass(frozen=True)
class Material:
    """What a report is made of."""

    report: Report
    rows: tuple[Row, ...]
    manifests: Mapping[str, Manifest]
    reference: int = 0
    level: float = 0.95
    seed: int = 0
    notes: tuple[str, ...] = ()
    classes: Sequence[str] = ()
    """The names of the classes, by number."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What else the figures rest on: versions, the device, how many samples ran at a time."""
    uses: Mapping[str, DataRecord] = field(default_factory=dict)
    """What data was used for what."""

    @property
    def names(self) -> list[str]:
        return [shown_name(row.result) for row in self.rows]

    @property
    def numbered(self) -> list[tuple[int, Verdict]]:
        """Verdicts with the numbers of their rows."""
        return list(
            zip(
                [at for at in range(len(self.rows)) if at != self.reference],
                self.verdicts,
                strict=True,
            )
        )

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Every other row compared with the reference."""
        first = self.rows[self.reference]
        verdicts = []
        for row in self.rows[: self.reference] + self.rows[self.reference + 1 :]:
            mine, theirs = row.answers, first.answers
            differences, conditions = None, {}
            if is_paired(mine, theirs):
                differences = compared(mine, theirs, level=self.level, seed=self.seed)
                conditions = unlike(mine, theirs)
            verdicts.append(verdict(row.result, first.result, differences, unlike=conditions))
        return verdicts

    @property
    def headline(self) -> str:
        return headline(self.verdicts, self.names[self.reference])

    @property
    def chances(self) -> str:
        """Many intervals are many chances to exclude 0 where nothing differs."""
        count = sum(len(each.differences) for each in self.verdicts)
        expected = count * (1 - self.level)
        return f"Of these {count} intervals about {expected:.1g} exclude 0 by chance alone."


def document(material: Material) -> str:
    """The whole file."""
    environment = Environment(
        autoescape=True, finalize=shown, undefined=StrictUndefined, keep_trailing_newline=True
    )
    style, script = (Markup(part(name)) for name in ("style.css", "script.js"))
    sources = f"img-src data:; style-src '{digest(style)}'; script-src '{digest(script)}'"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    results, reference = [row.result for row in material.rows], material.rows[material.reference]
    data = material.report.settings.get("data")
    listed = [_untimed(each) for each in tables(results)]

    def named(name: str, widest: int = WIDEST) -> str:
        """Names leave room for numbers, and are whole where they would look alike."""
        alike = len({short(each, widest) for each in material.names}) < len(set(material.names))
        if alike or short(name, widest) == visible(name):
            return name
        return Markup('<span title="{}">{}</span>').format(visible(name), short(name, widest))

    return environment.from_string(part("page.html.j2")).render(
        **{name: getattr(material, name) for name in PASSED},
        **_charts(material, results),
        headline=material.headline,
        policy=Markup(policy),
        style=style,
        script=script,
        first=reference,
        figures=figures(reference.result),
        spent=spent(reference.result),
        decided=[calibration_words(row.answers) for row in material.rows],
        data=data if isinstance(data, list) else [data] if data else [],
        ood_sizes={o.name: o.n for r in results for o in r.ood},
        level=f"{100 * material.level:.4g}",
        tables=listed,
        glossary=_glossary(listed),
        facts=_facts(material),
        unknown=UNKNOWN,
        command_line=command_line,
        colour=charts.colour,
        named=named,
        narrow=NARROW,
    )


def _charts(material: Material, results: Sequence[Result]) -> dict[str, Any]:
    """What is drawn, by section."""
    drawn = [
        (at, name, row.answers)
        for at, (name, row) in enumerate(zip(material.names, material.rows, strict=True))
    ]
    detecting = [row for row in drawn if row[2].foreign]
    return {
        "differences": charts.differences(material.numbered, material.names[material.reference]),
        **_classes(material, drawn),
        "reliability": charts.reliability(drawn),
        "ood": [*charts.rocs(detecting, results), *charts.histograms(detecting)],
        "selective": charts.risk_coverage(drawn, results),
        "cost": charts.quality_cost(results, material.reference),
    }


def _classes(material: Material, drawn: charts.Drawn) -> dict[str, Any]:
    """Tables by class, or by type of entity."""
    answers, names = material.rows[material.reference].answers, material.classes
    if isinstance(answers.inside, JudgedTokens):
        listed = entities.entity_tables(drawn, material.reference, names)
        balanced = entities.balance(answers.inside, names)
    else:
        listed = class_tables(drawn, material.reference, names)
        balanced = balance(answers.choices)
    by_entity = isinstance(answers.inside, JudgedTokens)
    return {"balance": balanced, "by_class": listed, "by_entity": by_entity}


def shown(value: object) -> object:
    """Names from anywhere show what is in them; what we wrote ourselves stays as it is."""
    return value if isinstance(value, Markup) else visible(value)


def _glossary(listed: Iterable[Table]) -> dict[str, str]:
    """The words of this report that are explained, metrics first."""
    metrics = [column.metric for each in listed for column in each.columns]
    return {metric.name: metric.meaning for metric in metrics if metric.meaning} | WORDS


def _untimed(of: Table) -> Table:
    """Without times, which are others in the next run: the page of the same inputs is the same."""
    return replace(
        of, columns=tuple(column for column in of.columns if column.metric.key != "latency_ms")
    )


def part(name: str) -> str:
    """A file of this folder."""
    return (files("hydrasurgeon") / "report" / name).read_text(encoding="utf-8")


def digest(content: str) -> str:
    """As a policy names it."""
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _facts(material: Material) -> dict[str, Any]:
    """How it was measured."""
    settings = {**material.report.settings, **material.facts}
    facts = {
        key.replace("_", " "): ", ".join(map(str, value))
        if isinstance(value, list | tuple)
        else str(value)
        for key, value in settings.items()
        if value not in (None, [], (), False)
    }
    facts["intervals"] = (
        f"paired bootstrap over samples, {100 * material.level:.4g} %, seed {material.seed}"
    )
    return facts
