"""The sections of docs/reference/benchmarks.md on what a choice costs in quality: a trunk, repair without training, members'
weights; and docs/trunk.svg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tabled import table


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
            "The demo's backbone (6 layers × 8 heads) on its test images. Three members lose a quarter of the heads of"
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
            ["", "multiply-adds", "parameters", "accuracy ↑", "NLL ↓", "ECE ↓", "AUROC near ↑", "AUROC far ↑", "MI"],
            [row(p) for p in results["points"]],
        ),
    ]


def trunk_plot(results: dict[str, Any], path: Path) -> None:
    from hydrasurgeon.files.plots import figure, save_figure

    drawn = figure(9, 3.6)
    for axes, (key, title) in zip(
        drawn.subplots(1, 2), (("nll", "NLL (lower is better)"), ("auroc_near", "AUROC, near-OOD")), strict=True
    ):
        for tuned in (False, True):
            mine = [p for p in results["points"] if p["tuned"] is tuned]
            xs, ys = [p["macs_ratio"] for p in mine], [p[key] for p in mine]
            axes.plot(xs, ys, marker="o", label=f"hydra, {'tuned' if tuned else 'not tuned'}")
            for p in mine:
                axes.annotate(
                    str(p["trunk"]), (p["macs_ratio"], p[key]), textcoords="offset points", xytext=(4, 4), fontsize=7
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
                            " / ".join(f"{100 * s['accuracy_recovered']:.0f}" for s in found["lstsq"]["seeds"]),
                        )
                        if model["backbone"]["accuracy"] - found["pruned"]["accuracy"] > 0.01
                        else ("–", "–")
                    ),
                ]
            )
            if "near" in model["backbone"]:
                of = (model["backbone"], found["pruned"], found["mean"]["mean"], found["lstsq"]["mean"])
                foreign.append(
                    [f"{name}, {selection}", *(f"{each[group]:.3f}" for group in ("near", "far") for each in of)]
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
        *table(["", "backbone", "pruned", "`mean`", "`lstsq`", "`lstsq` recovers", "by seed, %"], rows),
        "",
        "AUROC of near and of far OOD data by msp, mean over the calibration seeds:",
        "",
        *table(
            ["", "near: backbone", "pruned", "`mean`", "`lstsq`", "far: backbone", "pruned", "`mean`", "`lstsq`"],
            foreign,
        ),
    ]


def weights(results: dict[str, Any]) -> list[str]:
    ways = (
        "equal",
        "fitted",
        "guarded by nll",
        "guarded by avg",
        "fitted on 200",
        "guarded by nll on 200",
        "guarded by avg on 200",
    )
    models = {f"{task}, {name}": r for task, of in results["tasks"].items() for name, r in of.items()}
    rows = [
        [
            name,
            " / ".join(f"{w:.2f}" for w in r["weights"]),
            *(f"{r[way]['nll']:.4f}" for way in ways),
            *(f"{100 * r[way]['near']:.1f}" for way in ways[:4]),
        ]
        for name, r in models.items()
    ]

    def worse(way: str) -> str:
        count = sum(r[way]["nll"] > r["equal"]["nll"] for r in models.values())
        return f"{count} of {len(models)}"

    def taken(guard: str) -> str:
        whole = sum(r[f"guarded by {guard}"]["taken"] for r in models.values())
        few = sum(r[f"guarded by {guard} on 200"]["taken"] for r in models.values()) / len(models)
        return f"{guard} takes them in {whole} of {len(models)} and, fitted on 200, in {100 * few:.0f} % of the draws"

    return [
        "## Members that count differently",
        "",
        (
            "Weights of the members in the mean of their probabilities, with the smallest NLL on 1,000 validation"
            " samples (or on 200 of them, the mean of five draws), against equal ones: NLL on test"
        ),
        (
            "data, AUROC of near OOD data by msp. Guarded weights are those of `build --weights fit`: taken where"
            " each half of the samples says of the other's that they are worth more than a"
        ),
        (
            f"standard error. Without the guard NLL on test data is worse in {worse('fitted')}, on 200 in"
            f" {worse('fitted on 200')}; {taken('nll')}, {taken('avg')}."
        ),
        "",
        *table(["", "fitted", *(f"NLL {way}" for way in ways), *(f"near {way}" for way in ways[:4])], rows),
    ]
