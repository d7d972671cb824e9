"""The sections of docs/reference/benchmarks.md on what a choice costs in quality, and docs/trunk.svg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pages.tables import table

MEASURES = ("accuracy", "nll", "near", "far", "macs")
"""Columns of each task's table."""


def trunk(results: dict[str, Any]) -> list[str]:
    def row(p: dict[str, Any]) -> list[str]:
        what = (
            p["what"]
            if p["trunk"] is None
            else f"hydra, trunk of {p['trunk']}, {'tuned' if p['tuned'] else 'not tuned'}"
        )
        return [
            what,
            f"{p['macs_ratio']:.2f}",
            f"{p['params_ratio']:.2f}",
            f"{p['accuracy']:.3f}",
            f"{p['nll']:.3f}",
            f"{p['ece']:.3f}",
            f"{p['auroc_near']:.3f}",
            f"{p['auroc_far']:.3f}",
            f"{p['mi']:.4f}",
        ]

    return [
        "## Quality against cost over the trunk's length",
        "",
        (
            "A ViT trained from random weights (6 layers × 8 heads) on the demo's test images. Three members lose a quarter of the heads of"
            " the layers after"
        ),
        (
            "the trunk, drawn from the half with the lowest taylor scores (`--sample`, `--layers`); means over"
            f" {results['seeds']} seeds."
        ),
        "",
        "![Quality against multiply-adds](../trunk.svg)",
        "",
        *table(
            [
                "",
                "multiply-adds",
                "parameters",
                "accuracy ↑",
                "NLL ↓",
                "ECE ↓",
                "AUROC near ↑",
                "AUROC far ↑",
                "MI",
            ],
            [row(p) for p in results["points"]],
        ),
    ]


def trunk_plot(results: dict[str, Any], path: Path) -> None:
    from hydrasurgeon.files.plots import figure, save_figure

    drawn = figure(9, 3.6)
    for axes, (key, title) in zip(
        drawn.subplots(1, 2),
        (("nll", "NLL (lower is better)"), ("auroc_near", "AUROC, near-OOD")),
        strict=True,
    ):
        for tuned in (False, True):
            mine = [p for p in results["points"] if p["tuned"] is tuned]
            xs, ys = [p["macs_ratio"] for p in mine], [p[key] for p in mine]
            axes.plot(xs, ys, marker="o", label=f"hydra, {'tuned' if tuned else 'not tuned'}")
            for p in mine:
                axes.annotate(
                    str(p["trunk"]),
                    (p["macs_ratio"], p[key]),
                    textcoords="offset points",
                    xytext=(4, 4),
                    fontsize=7,
                )
        for p in results["points"]:
            if p["trunk"] is None:
                axes.scatter(p["macs_ratio"], p[key], marker="*", s=90, label=p["what"], zorder=3)
        axes.set(xlabel="multiply-adds / single model", title=title)
    axes.legend(fontsize=7, frameon=False)
    save_figure(drawn, path)


def compensation(results: dict[str, Any]) -> list[str]:
    rows, foreign = [], []
    for name, model in results["models"].items():
        for selection, found in model["selections"].items():
            rows.append(
                [
                    f"{name}, {selection}",
                    f"{model['backbone']['accuracy']:.3f}",
                    f"{found['pruned']['accuracy']:.3f}",
                    *(f"{found[how]['mean']['accuracy']:.3f}" for how in ("mean", "lstsq")),
                    *(
                        (
                            f"{100 * found['lstsq']['mean']['accuracy_recovered']:.0f} %",
                            " / ".join(
                                f"{100 * s['accuracy_recovered']:.0f}"
                                for s in found["lstsq"]["seeds"]
                            ),
                        )
                        if model["backbone"]["accuracy"] - found["pruned"]["accuracy"] > 0.01
                        else ("–", "–")
                    ),
                ]
            )
            if "near" in model["backbone"]:
                of = (
                    model["backbone"],
                    found["pruned"],
                    found["mean"]["mean"],
                    found["lstsq"]["mean"],
                )
                foreign.append(
                    [
                        f"{name}, {selection}",
                        *(f"{each[group]:.3f}" for group in ("near", "far") for each in of),
                    ]
                )
    return [
        "## Repair without training (`prune --compensate`)",
        "",
        (
            "Heads chosen by taylor, a third of all; accuracy on test data, calibrated on inputs without labels;"
            " recovered is the"
        ),
        (
            "fraction of the lost accuracy that comes back, mean and for each calibration seed (– where a point or less"
            " was lost)."
        ),
        "",
        *table(
            ["", "backbone", "pruned", "`mean`", "`lstsq`", "`lstsq` recovers", "by seed, %"], rows
        ),
        "",
        "AUROC of near and of far OOD data by msp, mean over the calibration seeds:",
        "",
        *table(
            [
                "",
                "near: backbone",
                "pruned",
                "`mean`",
                "`lstsq`",
                "far: backbone",
                "pruned",
                "`mean`",
                "`lstsq`",
            ],
            foreign,
        ),
    ]


def circuits(results: dict[str, Any]) -> list[str]:
    rows = []
    for name, objectives in results["searches"].items():
        for kind, r in objectives.items():
            score = r["score"]
            rows.append(
                [
                    f"{name}, {kind}",
                    f"{r['budget']} of {r['heads']}",
                    f"{r['id_samples']} + {r['ood_samples']}",
                    f"{r['naive_removals']}",
                    f"{r['exact_ratio_same_removals']:.1f}",
                    f"{r['exact_ratio']:.1f}",
                    f"{score['start']:.4f}",
                    f"{score['exact']:.4f}",
                ]
            )
    drift = [
        [
            f"{name}, {kind}",
            f"{r['budget']}",
            f"{r['same_removals']}",
            f"{100 * r['in_common']:.0f} %",
            f"{r['score']['float32']:.4f}",
            f"{r['score']['bfloat16']:.4f}",
        ]
        for name, objectives in results.get("bfloat16", {}).items()
        for kind, r in objectives.items()
    ]
    head = [
        "",
        "removed",
        "samples, ID + OOD",
        "by naive",
        "`exact`, same removals",
        "`exact`",
        "score before",
        "and after",
    ]
    lines = [
        "## Circuits (`score --method circuit`)",
        "",
        (
            "CPU seconds of Algorithm 1 as written over those of the searches, float32,"
            f" {results['machine']['threads']} thread, torch"
        ),
        (
            f"{results['machine']['torch']}. `exact` gave naive's order in every run. Naive made the first removals"
            " only; beyond them its"
        ),
        "time follows from its time per evaluation.",
        "",
        *table(head, rows),
    ]
    for name, faster in results.get("by_length", {}).items():
        lines += [
            "",
            (
                "The searches put texts of like length into a batch, naive takes them as they come: sorted too, an"
                f" evaluation of {name},"
            ),
            f"would take {faster:.2f} of its time.",
        ]
    if drift:
        lines += [
            "",
            (
                "The same search in bfloat16: removals until its order first differs from float32, heads in common at"
                " the end, and the"
            ),
            "scores of both circuits in float32.",
            "",
            *table(["", "removed", "same order for", "in common", "float32", "bfloat16"], drift),
        ]
    return lines
