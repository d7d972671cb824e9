"""The report as one HTML file that opens anywhere: no library, no network, a style and forty lines of script.

A policy in its head names these two by their hashes: a browser runs nothing else, whatever a name in the report holds.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.history import command_line
from hydrasurgeon.files.manifest import UNKNOWN, Manifest
from hydrasurgeon.measuring.bootstrap import compared, is_paired
from hydrasurgeon.measuring.results import Report, unlike
from hydrasurgeon.measuring.rows import Row
from hydrasurgeon.report import charts
from hydrasurgeon.report.columns import short, shown_name, tables
from hydrasurgeon.report.heads import STRIPES, head_maps
from hydrasurgeon.report.svg import colour
from hydrasurgeon.report.verdicts import Verdict, figures, headline, spent, verdict


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

    @property
    def names(self) -> list[str]:
        return [shown_name(row.result) for row in self.rows]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Every other row compared with the reference."""
        reference, made = self.rows[self.reference], []
        for row in (row for at, row in enumerate(self.rows) if at != self.reference):
            differences, conditions = None, {}
            if is_paired(row.answers, reference.answers):
                differences = compared(row.answers, reference.answers, level=self.level, seed=self.seed)
                conditions = unlike(row.answers.conditions, reference.answers.conditions)
            made.append(verdict(row.result, reference.result, differences, level=self.level, unlike=conditions))
        return made


def document(material: Material) -> str:
    """The whole file."""
    environment = Environment(autoescape=True, finalize=_shown, undefined=StrictUndefined, keep_trailing_newline=True)
    style, script = (Markup(_part(name)) for name in ("style.css", "script.js"))
    sources = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    results, reference = [row.result for row in material.rows], material.rows[material.reference]
    data = material.report.settings.get("data")
    members = [len(m.members) for m in material.manifests.values() if m.kind == "hydra"]
    drawn = [(at, name, row.answers) for at, (name, row) in enumerate(zip(material.names, material.rows, strict=True))]
    detecting = [row for row in drawn if row[2].foreign]
    # Names leave room for numbers, and are whole where they would look alike.
    shorten = len(set(map(short, material.names))) == len(set(material.names))

    def named(name: str) -> str:
        if not shorten or short(name) == visible(name):
            return name
        return Markup('<span title="{}">{}</span>').format(visible(name), short(name))

    def forest(each: Verdict) -> str:
        title = f"{each.name} less {material.names[material.reference]}"
        return Markup(charts.forest(each.differences, title) if each.differences else "")

    return environment.from_string(_part("page.html.j2")).render(
        headline=headline(material.verdicts, material.names[material.reference]),
        policy=Markup(policy),
        style=style,
        script=script,
        names=material.names,
        first=reference,
        reference=material.reference,
        figures=figures(reference.result),
        spent=spent(reference.result),
        verdicts=material.verdicts,
        notes=material.notes,
        data=data if isinstance(data, list) else [data] if data else [],
        ood_sizes={o.name: o.n for r in results for o in r.ood},
        level=f"{100 * material.level:.4g}",
        tables=tables(results),
        maps=[head_maps(name, manifest) for name, manifest in material.manifests.items()],
        stripes=max((count for count in members if count <= STRIPES), default=0),
        crowded=max(members, default=0) > STRIPES,
        most_stripes=STRIPES,
        reliability=charts.reliability(drawn),
        ood=[*charts.rocs(detecting, results), *charts.histograms(detecting, results)],
        selective=[charts.risk_coverage(drawn, results)],
        shift=charts.severities(results),
        cost=charts.quality_cost(results, material.reference),
        manifests=material.manifests,
        unknown=UNKNOWN,
        facts=_facts(material),
        command_line=command_line,
        colour=colour,
        named=named,
        forest=forest,
    )


def _shown(value: object) -> object:
    """Names from anywhere show what is in them; what we wrote ourselves stays as it is."""
    return value if isinstance(value, Markup) else visible(value)


def _part(name: str) -> str:
    return (files("hydrasurgeon") / "report" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _facts(material: Material) -> dict[str, Any]:
    """How it was measured."""
    settings = material.report.settings
    facts = {
        key.replace("_", " "): ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for key, value in settings.items()
        if value not in (None, [], (), False)
    }
    facts["intervals"] = f"paired bootstrap over samples, {100 * material.level:.4g} %, seed {material.seed}"
    return facts
