"""python -m probing CKPT --data D: measure, and print or write what comes of it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hydrasurgeon import HydraError, render
from hydrasurgeon.options.base import about
from hydrasurgeon.render.console import Part, notes, show
from hydrasurgeon.render.terminal_tables import show_table
from probing.options import ProbeOptions
from probing.probe import probe
from probing.report import ProbeReport, Proposition, Separation

OUTCOMES = {True: "holds", False: "does not hold"}
"""Words for the outcome of a condition."""


def main(words: list[str]) -> int:
    """Run the probe with options as they are typed; its exit code."""
    parser = argparse.ArgumentParser(prog="probing", description=ProbeOptions.__doc__)
    fields = {name: field for name, field in ProbeOptions.ordered().items() if about(field)}
    for name, field in fields.items():
        key = field.alias or name
        if about(field).get("argument"):
            parser.add_argument(key, help=field.description)
            continue
        kind: dict[str, Any] = {"action": "store_true"} if field.default is False else {}
        if field.default == ():
            kind = {"action": "append"}
        parser.add_argument(*ProbeOptions.flags(name), dest=key, help=field.description, **kind)
    arguments = {name: value for name, value in vars(parser.parse_args(words)).items() if value}
    try:
        report = probe(**arguments)
    except HydraError as error:
        render.failed(error)
        return error.exit_code
    notes(report.notes)
    probed(report)
    return 0


def probed(report: ProbeReport) -> None:
    """Print a report."""
    _proposition(report.proposition)
    for separation in report.separation:
        show("")
        _distances(separation)
    if report.pictured is not None:
        for title, heads in (("most", report.pictured.most), ("least", report.pictured.least)):
            names = ", ".join(f"{layer}.{head}" for _, layer, head in heads)
            show(f"{title} important by {report.pictured.method} (layer.head): {names}")


def _proposition(about: Proposition) -> None:
    """Print the losses, the two conditions and the conclusion, each with its number and the number
    to compare.
    """
    losses, gradient, hessian = about.losses, about.gradient, about.hessian
    show(
        f"Proposition 1, {len(about.removed)} heads removed by {about.method}, {about.samples} "
        f"samples of {about.clean}"
    )
    show(f"noisy: {about.noisy}")
    rows = [
        ["clean", f"{losses.clean:.4f}", f"{losses.clean_pruned:.4f}"],
        ["noisy", f"{losses.noisy:.4f}", f"{losses.noisy_pruned:.4f}"],
        ["gap", f"{losses.gap:.4f}", f"{losses.gap_pruned:.4f}"],
    ]
    show_table("loss", ["all heads", "without them"], rows)
    error = "" if hessian.error is None else f"± {hessian.error:.1g}"
    conditions = [
        ("∇L_noisy·δθ ≥ 0", gradient.holds, f"{gradient.noisy:.4g}", f"clean {gradient.clean:.4g}"),
        ("mean diag(H_noisy − H_clean) > 0", hessian.mean_holds, f"{hessian.mean:.3g}", error),
        ("δθᵀ(H_noisy − H_clean)δθ > 0", hessian.along_holds, f"{hessian.along:.4g}", ""),
        ("so the gap widens", losses.widens, f"{losses.gap_pruned - losses.gap:.4g}", ""),
    ]
    rows_shown: list[list[Part]] = [
        [name, (OUTCOMES[holds], "bold"), value, beside]
        for name, holds, value, beside in conditions
    ]
    show_table("conditions", ["", "value", "beside"], rows_shown)
    over = (
        "of 1 draw, which shows no error"
        if hessian.error is None
        else f"± over {about.draws} draws"
    )
    show(f"{over}; the mean diagonal is above 0 for {100 * hessian.positive_heads:.0f} % of heads")


def _distances(separation: Separation) -> None:
    """Print the mean distances over the heads of each layer."""
    rows = []
    for tower, layers in separation.euclidean.items():
        for layer, values in enumerate(layers):
            means = [_mean(values), _mean(separation.mahalanobis[tower][layer])]
            name = f"{tower} {layer}" if len(separation.euclidean) > 1 else f"layer {layer}"
            rows.append([name, *("–" if mean is None else f"{mean:.3f}" for mean in means)])
    title = f"distance of {separation.name}, {separation.samples} samples, from the data: means over heads"
    show_table(title, ["Euclidean", "Mahalanobis"], rows)


def _mean(values: tuple[float | None, ...]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
