"""What `probe` measured: the two conditions in words, then how far foreign data lies from each layer's heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydrasurgeon.render.console import as_json, show
from hydrasurgeon.render.pieces import notes
from hydrasurgeon.render.tables import Column, Row, Table, show_table

if TYPE_CHECKING:
    from hydrasurgeon.probing.report import ProbeReport, Proposition, Separation

VERDICTS = {True: ("holds", "bold"), False: ("does not hold", "bold")}
"""How a condition is told."""


def probed(report: ProbeReport, *, json: bool, quiet: bool) -> None:
    if not quiet:
        notes(report.notes)
    if json:
        return as_json(report.model_dump(mode="json"))
    if quiet:
        return None
    _proposition(report.proposition)
    for each in report.separation:
        show("")
        show_table(_by_layer(each))
    if report.pictured is not None:
        for title, heads in (("most", report.pictured.most), ("least", report.pictured.least)):
            names = ", ".join(f"{layer}.{head}" for _, layer, head in heads)
            show(f"{title} important by {report.pictured.method} (layer.head): {names}")
    return None


def _proposition(about: Proposition) -> None:
    losses, hessian = about.losses, about.hessian
    show(
        f"Proposition 1, {len(about.removed)} heads removed by {about.method}, {about.samples} samples of {about.clean}"
    )
    show(f"noisy: {about.noisy}")
    rows = (
        Row("clean", (f"{losses.clean:.4f}", f"{losses.clean_pruned:.4f}")),
        Row("noisy", (f"{losses.noisy:.4f}", f"{losses.noisy_pruned:.4f}")),
        Row("gap", (f"{losses.gap:.4f}", f"{losses.gap_pruned:.4f}")),
    )
    show_table(Table("loss", (Column("all heads"), Column("without them")), rows))
    show_table(_conditions(about))
    over = "of 1 draw, which shows no error" if hessian.error is None else f"± over {about.draws} draws"
    show(f"{over}; the mean diagonal is above 0 for {100 * hessian.positive_heads:.0f} % of heads")


def _conditions(about: Proposition) -> Table:
    """The two conditions and the conclusion, each with its number, and what to see it beside."""
    losses, gradient, hessian = about.losses, about.gradient, about.hessian
    rows = (
        ("∇L_noisy·δθ ≥ 0", gradient.holds, f"{gradient.noisy:.4g}", f"clean {gradient.clean:.4g}"),
        (
            "mean diag(H_noisy − H_clean) > 0",
            hessian.mean_holds,
            f"{hessian.mean:.3g}",
            "" if hessian.error is None else f"± {hessian.error:.1g}",
        ),
        ("δθᵀ(H_noisy − H_clean)δθ > 0", hessian.along_holds, f"{hessian.along:.4g}", ""),
        ("so the gap widens", losses.widens, f"{losses.gap_pruned - losses.gap:.4g}", ""),
    )
    columns = (Column("", left=True), Column("value"), Column("beside", left=True))
    return Table(
        "conditions", columns, tuple(Row(name, (VERDICTS[holds], value, beside)) for name, holds, value, beside in rows)
    )


def _by_layer(each: Separation) -> Table:
    """Means over the heads of each layer."""
    rows = []
    for tower, layers in each.euclidean.items():
        for layer, values in enumerate(layers):
            means = [_mean(values), _mean(each.mahalanobis[tower][layer])]
            name = f"{tower} {layer}" if len(each.euclidean) > 1 else f"layer {layer}"
            rows.append(Row(name, tuple("–" if m is None else f"{m:.3f}" for m in means)))
    title = f"distance of {each.name}, {each.samples} samples, from the data: means over heads"
    return Table(title, (Column("Euclidean"), Column("Mahalanobis")), tuple(rows))


def _mean(values: tuple[float | None, ...]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
