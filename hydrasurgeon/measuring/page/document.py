"""The report as one HTML file that opens anywhere: no library, no network, nothing but a style and forty lines of
script.

A policy in its head names these two by their hashes, so that a browser runs nothing else, whatever a name in the report
holds.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from hydrasurgeon.files.history import command_line
from hydrasurgeon.files.manifest import UNKNOWN, Manifest
from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.measuring.bootstrap import compared, is_paired
from hydrasurgeon.measuring.conditions import unlike
from hydrasurgeon.measuring.page import charts, words
from hydrasurgeon.measuring.page.grids import Cell, Grid, grids, shown_name
from hydrasurgeon.measuring.page.heads import STRIPES, head_maps
from hydrasurgeon.measuring.page.svg import colour, short, text_of
from hydrasurgeon.measuring.results import Report
from hydrasurgeon.measuring.rows import Row


@dataclass(frozen=True)
class Material:
    """What a report is made of."""

    report: Report
    rows: tuple[Row, ...]
    manifests: Mapping[str, Manifest]
    """Of the checkpoints that were measured, by name."""
    reference: int = 0
    """The row that others are compared with."""
    level: float = 0.95
    """Of the intervals."""
    seed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [shown_name(result) for result in self.report.results]

    def verdicts(self) -> list[words.Verdict]:
        """Every other row beside the reference."""
        reference = self.rows[self.reference]
        verdicts = []
        for at, row in enumerate(self.rows):
            if at == self.reference:
                continue
            mine, theirs = row.answers, reference.answers
            differences, conditions = None, {}
            if is_paired(mine, theirs):
                differences = compared(mine, theirs, level=self.level, seed=self.seed)
                conditions = unlike(mine.conditions, theirs.conditions)
            verdicts.append(
                words.verdict(row.result, reference.result, differences, level=self.level, unlike=conditions)
            )
        return verdicts


def document(material: Material) -> str:
    """The whole file."""
    style, script = (_part(name) for name in ("style.css", "script.js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; form-action"
        " 'none'"
    )
    verdicts = material.verdicts()
    reference = material.names[material.reference]
    title = words.headline(verdicts, reference)
    sections = [
        ("tables", "Figures", _tables(material, verdicts)),
        ("heads", "Heads", _heads(material)),
        ("calibration", "Calibration", _calibration(material)),
        ("ood", "Foreign data", _foreign(material)),
        ("selective", "When it may be silent", _selective(material)),
        ("shift", "Under distribution shift", _shift(material)),
        ("cost", "Quality against cost", _cost(material)),
        ("history", "How the models came about", _history(material)),
        ("method", "How it was measured", _method(material)),
    ]
    there = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{key}">{text_of(name)}</a>' for key, name, _ in there)
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-title"><h2'
        f' id="{key}-title">{text_of(name)}</h2>{content}</section>'
        for key, name, content in there
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text_of(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#tables">To the figures</a>
<header>
<p class="eyebrow">hydrasurgeon · evaluation report</p>
<h1>{text_of(title)}.</h1>
<p class="lead">{_lead(material)}</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{_verdicts(verdicts, material)}
{body}
</main>
<footer>Made by hydrasurgeon eval. The numbers behind it: <code>eval --json</code>.</footer>
<div id="tip" role="status" aria-live="polite" hidden></div>
<script>{script}</script>
</body>
</html>
"""


def _part(name: str) -> str:
    return (files("hydrasurgeon") / "measuring" / "page" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _lead(material: Material) -> str:
    rows = material.report.results
    first = rows[material.reference].id.n
    data = material.report.settings.get("data")
    sets = data if isinstance(data, list) else [data] if data else []
    on = f" of {text_of(', '.join(map(str, sets)))}" if sets else ""
    foreign = {o.name: o.n for r in rows for o in r.ood}
    against = (
        f", with {len(foreign)} foreign set{'s' if len(foreign) > 1 else ''} of {words.samples(sum(foreign.values()))}"
        if foreign
        else ""
    )
    many = f"{len(rows)} models" if len(rows) > 1 else "One model"
    rule = (
        f" A difference is called one where the {100 * material.level:.4g} % interval of a paired bootstrap leaves"
        " out 0."
        if len(rows) > 1
        else ""
    )
    return f"{many} on {words.samples(first, 'labelled')}{on}{against}.{rule}"


def _verdicts(verdicts: Sequence[words.Verdict], material: Material) -> str:
    first = material.report.results[material.reference]
    items = [
        '<li><span class="badge'
        f' reference">{"Reference" if verdicts else "Measured"}</span><h2>{text_of(shown_name(first))}</h2><p>{text_of(words.figures(first))}</p><p'
        f' class="spent">{text_of(words.spent(first))}</p></li>'
    ]
    for verdict in verdicts:
        drawn = ""
        if verdict.differences:
            title = f"{verdict.name} less {material.names[material.reference]}"
            drawn = charts.forest(verdict.differences, words.NAMES, title)
        items.append(
            f'<li><span class="badge {verdict.word}">{verdict.head}</span><h2>{text_of(verdict.name)}</h2>'
            f'<p>{text_of(verdict.sentence)}</p><p class="spent">{text_of(verdict.cost)}</p>{drawn}</li>'
        )
    notes = "".join(f"<li>{text_of(note)}</li>" for note in material.notes)
    warned = f'<ul class="notes" aria-label="Notes">{notes}</ul>' if notes else ""
    return f'<ol class="verdicts" aria-label="Verdicts">{"".join(items)}</ol>{warned}'


def _tables(material: Material, verdicts: Sequence[words.Verdict]) -> str:
    tables = "".join(map(_table, grids(material.report)))
    apart = (
        " Models that are not compared above may have answered for other samples: that a number of theirs is the best"
        " says little."
        if any(v.word == "unknown" for v in verdicts)
        else ""
    )
    return (
        "<p>The best of each column in bold, the second best underlined. ↑: higher is better, ↓: lower is"
        f" better.{apart}</p>{tables}"
    )


ARROWS = {"higher": "&nbsp;↑", "lower": "&nbsp;↓", "": ""}
"""What stands behind a column's name."""


def _table(grid: Grid) -> str:
    """A table in a region of its own that scrolls sideways, by keyboard too."""
    groups: list[tuple[str, int]] = []
    for column in grid.columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    heads = "".join(f'<th scope="col">{text_of(c.name)}{ARROWS[c.better]}</th>' for c in grid.columns)
    above = ""
    first = '<th scope="col">model</th>'
    if any(name for name, _ in groups):
        cells = "".join(f'<th scope="colgroup" colspan="{count}">{_named([name])[0]}</th>' for name, count in groups)
        above, first = f'<tr><th scope="col" rowspan="2">model</th>{cells}</tr>', ""
    rows = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(map(_cell, cells))}</tr>'
        for name, cells in zip(_named(grid.names), grid.rows, strict=True)
    )
    note = f' <span class="note">{text_of(grid.note)}</span>' if grid.note else ""
    return (
        '<div class="table" role="region" tabindex="0" aria-label="Table:'
        f' {text_of(grid.title)}"><table><caption>{text_of(grid.title)}{note}</caption>'
        f"<thead>{above}<tr>{first}{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _named(names: Sequence[str]) -> list[str]:
    """Names that leave room for numbers, and say themselves whole where they are pointed at; whole where they would
    look alike."""
    few = list(map(short, names))
    if len(set(few)) < len(set(names)):
        return list(map(text_of, names))
    return [
        text_of(shown) if shown == name else f'<span title="{text_of(name)}">{text_of(shown)}</span>'
        for name, shown in zip(names, few, strict=True)
    ]


def _cell(cell: Cell) -> str:
    kind = f' class="{cell.rank}"' if cell.rank else ""
    ends = f"<small>{cell.low} – {cell.high}</small>" if cell.low else ""
    # The interval is not underlined with its number.
    number = f"<u>{cell.text}</u>" if cell.rank == "second" else cell.text
    return f"<td{kind}>{number}{ends}</td>"


def _rows(material: Material) -> list[tuple[int, str, Answered]]:
    return [(at, name, row.answers) for at, (name, row) in enumerate(zip(material.names, material.rows, strict=True))]


def _legend(material: Material) -> str:
    items = "".join(
        f'<li><span class="key {colour(at)}">{at + 1}</span>{name}</li>'
        for at, name in enumerate(_named(material.names))
    )
    return f'<ol class="rows" aria-label="Models">{items}</ol>'


def _grid(drawn: Iterable[str]) -> str:
    return f'<div class="charts">{"".join(drawn)}</div>'


def _heads(material: Material) -> str:
    if not material.manifests:
        return ""
    maps = [head_maps(name, manifest) for name, manifest in material.manifests.items()]
    sizes = [len(m.members) for m in material.manifests.values() if m.kind == "hydra"]
    members = max((size for size in sizes if size <= STRIPES), default=0)
    keys = "".join(f'<li><span class="key c{at}">{at}</span>member {at}</li>' for at in range(members))
    striped = " A head of a hydra has a stripe for each member that keeps it." if members else ""
    crowded = (
        f" Of more than {STRIPES} members a head is the stronger in colour the more of them keep it."
        if max(sizes, default=0) > STRIPES
        else ""
    )
    legend = f'<ol class="rows" start="0" aria-label="Members">{keys}</ol>' if keys else ""
    return (
        "<p>Layers from top to bottom, heads from left to right, as they are numbered in the original model; at the"
        " right how many stay; where there is no room for the number of each member, the fewest and the"
        f" most.{striped}{crowded}</p>{legend}{_grid(maps)}"
    )


def _calibration(material: Material) -> str:
    rows = _rows(material)
    if not rows:
        return ""
    return (
        "<p>Of all answers with some confidence, how many are right? Bars on the dashed line are calibrated; red:"
        " surer than right, green: righter than sure. The lines at the foot say how many answers are that"
        f" sure.</p>{_grid(charts.reliability(rows))}"
    )


def _foreign(material: Material) -> str:
    rows = [row for row in _rows(material) if row[2].foreign]
    if not rows:
        return ""
    drawn = [*charts.rocs(rows, material.report.results), *charts.histograms(rows, material.report.results)]
    return (
        "<p>How well scores tell foreign samples from familiar ones: over all thresholds first, then the scores"
        f" themselves.</p>{_legend(material)}{_grid(drawn)}"
    )


def _selective(material: Material) -> str:
    rows = _rows(material)
    if not rows:
        return ""
    return (
        "<p>If only the surest answers are given, how many of these are"
        f" wrong?</p>{_legend(material)}{_grid([charts.risk_coverage(rows, material.report.results)])}"
    )


def _shift(material: Material) -> str:
    drawn = charts.severities(material.report.results)
    return (
        f"<p>A mean over the shifts of each severity; 0 is the data as it is.</p>{_legend(material)}{_grid(drawn)}"
        if drawn
        else ""
    )


def _cost(material: Material) -> str:
    drawn = charts.quality_cost(material.report.results, material.reference)
    return (
        "<p>What is got for how many multiply-adds. ↑: higher is better, ↓: lower is"
        f" better.</p>{_legend(material)}{_grid(drawn)}"
        if drawn
        else ""
    )


def _history(material: Material) -> str:
    """Each checkpoint's steps, with the hashes of what went in and came out."""
    parts = []
    for name, manifest in material.manifests.items():
        rows = "".join(
            f'<tr><th scope="row"><code>{text_of(" ".join(["hydrasurgeon", *command_line(step)]))}</code></th>'
            f"<td>{'<br>'.join(_hashed(each.name, each.sha256) for each in step.inputs) or '–'}</td>"
            f"<td>{'<br>'.join(_hashed(f'{d.spec}, {d.rows:,} rows', d.sha256) for d in step.data) or '–'}</td></tr>"
            for step in manifest.history
        )
        steps = (
            '<div class="table words" role="region" tabindex="0" aria-label="History of'
            f' {text_of(name)}"><table><caption>Steps</caption><thead><tr><th scope="col">command</th><th'
            f' scope="col">made from</th><th scope="col">data</th></tr></thead><tbody>{rows}</tbody></table></div>'
            if rows
            else "<p>Nothing was recorded.</p>"
        )
        parts.append(f"<details><summary>{text_of(name)}</summary><p>{_weights(manifest)}</p>{steps}</details>")
    return "".join(parts)


def _weights(manifest: Manifest) -> str:
    if manifest.weights_sha256 == UNKNOWN:
        return "A checkpoint as it was found: no hash of its weights is recorded."
    return _hashed("weights", manifest.weights_sha256)


def _hashed(what: str, sha256: str) -> str:
    return f'{text_of(what)} <code class="hash">sha256 {text_of(sha256)}</code>'


def _method(material: Material) -> str:
    def plain(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    settings = material.report.settings
    facts = {
        key.replace("_", " "): plain(value) for key, value in settings.items() if value not in (None, [], (), False)
    }
    facts["intervals"] = (
        f"paired bootstrap over samples, {100 * material.level:.4g} %, seed {material.seed}; AUROC by placements, FPR95"
        " on each draw"
    )
    listed = "".join(f"<dt>{text_of(key)}</dt><dd>{text_of(value)}</dd>" for key, value in facts.items())
    return f"<dl>{listed}</dl>"
