"""docs/guide/cascade.md: what cascades lose and cost, from benchmarks/results/cascade.json."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

MARKS = (
    "<!-- cascades: tools/render_docs.py writes them from benchmarks/results/cascade.json -->",
    "<!-- end of cascades -->",
)
TASKS = {
    "fashion-mnist": "Fashion-MNIST ViTs, no trunk",
    "trunk": "ViT from scratch, a trunk of half the layers",
    "minilm": "MiniLM, no trunk",
}
ASKED = {
    "max_drop 0.5": "`--max-drop 0.5`",
    **{f"budget {b}": f"`--budget {b}`" for b in ("1", "1.1", "1.2", "1.35", "1.5", "1.75", "2")},
}
# What was aimed at: points that may be lost, and single models' multiply-adds without a trunk and with one.
MOST, COSTS = 0.5, {"fashion-mnist": 1.20, "trunk": 1.10, "minilm": 1.20}
MEASURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "accuracy": lambda c: c["accuracy"],
    "near AUROC": lambda c: c["near"]["auroc"],
    "far AUROC": lambda c: c["far"]["auroc"],
    "near FPR95": lambda c: c["near"]["fpr95"],
    "far FPR95": lambda c: c["far"]["fpr95"],
    "coverage at 5 % risk": lambda c: c["cov5"],
}
SIZES = ("1", "16", "64")


def passage(results: dict[str, Any]) -> str:
    """Every piece that was measured."""
    parts = []
    pieces = results["pieces"]
    for name, title in TASKS.items():
        if name in pieces:
            parts += _quality(name, title, pieces[name])
    if "timing" in pieces:
        parts += _time(pieces["timing"])
    return "\n".join(parts)


def _quality(name: str, title: str, piece: dict[str, Any]) -> list[str]:
    lines = [
        f"**{title}** (full hydra: {mean(m['full'] for m in piece['models']):.2f} single models)",
        "",
    ]
    head = ["asked for", "OOD score", "cost", "fraction", *MEASURES]
    lines += [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
    reached, asked_for = 0, 0
    for key, asked in ASKED.items():
        for score in dict.fromkeys(model["score"] for model in piece["models"]):
            models = [m for m in piece["models"] if m["score"] == score]
            made = [m["cascades"][key] for m in models if m["cascades"][key] is not None]
            if not made:
                lines.append(
                    f"| {asked} | {_kinds(models)} | none costs so little |"
                    + " |" * (len(MEASURES) + 1)
                )
                continue
            cells = [f"{mean(get(c) for c in made):+.1f}" for get in MEASURES.values()]
            some = "" if len(made) == len(models) else f" ({len(made)} of {len(models)} seeds)"
            cost = mean(c["expected"] for c in made)
            share = 100 * mean(c["share"] for c in made)
            lines.append(
                f"| {asked}{some} | {_kinds(models)} | {cost:.2f} | {share:.0f} % | {' | '.join(cells)} |"
            )
    for model in piece["models"]:
        asked_for += 1
        kept = [
            c
            for c in model["cascades"].values()
            if c is not None
            and c["expected"] <= COSTS[name]
            and all(MEASURES[m](c) <= MOST for m in MEASURES if m != "coverage at 5 % risk")
        ]
        reached += bool(kept)
    lines += [
        "",
        (
            f"Within {MOST} points of accuracy, AUROC and FPR95 (near and far) at {COSTS[name]:.2f} single models or"
            f" less: {reached} of {asked_for} models, whichever row one takes."
        ),
        "",
    ]
    return lines


def _kinds(models: list[dict[str, Any]]) -> str:
    kinds = [m["kind"] for m in models]
    label = "`auto`: " if models[0]["score"] == "auto" else ""
    return label + ", ".join(f"`{kind}`" for kind in dict.fromkeys(kinds))


def _time(piece: dict[str, Any]) -> list[str]:
    about = f"{piece['machine']['cpu']}, torch {piece['torch']}, {piece['threads']} threads"
    lines = [
        f"**Time** of batches of real data, in single models' ({about})",
        "",
        "| hydra | batch | fraction | full hydra | cascade | no gate | all go on |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, points in piece["models"].items():
        for size in SIZES:
            point = points[size]
            cells = [
                f"{point['of_single'][key]:.2f}"
                for key in ("full", "cascade", "no gate", "all go on")
            ]
            lines.append(
                f"| {TASKS[name]} | {size} | {100 * point['share']:.0f} % | {' | '.join(cells)} |"
            )
    return [*lines, ""]
