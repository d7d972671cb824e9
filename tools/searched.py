"""The sections of docs/reference/benchmarks.md on circuits: what the searches take, and how good what they find is."""

from __future__ import annotations

from typing import Any

from tabled import table


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
                    f"{r['fast_ratio']:.1f}",
                    f"{100 * r['fast_in_common']:.0f} %",
                    f"{score['start']:.4f}",
                    f"{score['exact']:.4f}",
                    f"{score['fast']:.4f}",
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
        "`fast`",
        "in common",
        "score before",
        "`exact`",
        "`fast`",
    ]
    lines = [
        "## Circuits (`score --method circuit`)",
        "",
        (
            "CPU seconds of Algorithm 1 as written (`--search naive`) over those of the other searches, float32,"
            f" {results['machine']['threads']} thread, torch"
        ),
        (
            f"{results['machine']['torch']}. `exact` gave naive's order in every run. Naive made the first removals"
            " only; beyond them its"
        ),
        "time follows from its time per evaluation. In common: heads that `fast` and `exact` both removed.",
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


def refine(results: dict[str, Any]) -> list[str]:
    """Swaps and attribution against the greedy loop."""
    sizes, machine = results["sizes"], results["machine"]

    def mean(entries: list[dict[str, Any]], *path: str) -> float:
        total = 0.0
        for entry in entries:
            value: Any = entry
            for key in path:
                value = value[key]
            total += value
        return total / len(entries)

    rows, costs = [], []
    for kind, entries in results["objectives"].items():
        for amount in dict.fromkeys(entry["amount"] for entry in entries):
            of = [entry for entry in entries if entry["amount"] == amount]
            name = f"{kind}, {amount} of {sizes['heads']}"
            for side, said in (("search", "searched on"), ("held_out", "held out")):
                cells = [mean(of, which, side) for which in ("whole", "random")]
                cells += [mean(of, "found", way, side) for way in of[0]["found"]]
                rows.append([name if side == "search" else "", said, *(f"{cell:.4f}" for cell in cells)])
            gains = {
                (side, way): mean(of, "found", way, side) - mean(of, "random", side)
                for side in ("search", "held_out")
                for way in ("attribution", "greedy")
            }
            shares = [100 * gains[side, "attribution"] / gains[side, "greedy"] for side in ("search", "held_out")]
            greedy = mean(of, "units", "greedy")
            costs.append(
                [
                    name,
                    f"{mean(of, 'evaluations', 'greedy'):.0f}",
                    f"{1 + mean(of, 'evaluations', 'swap') / mean(of, 'evaluations', 'greedy'):.2f}x",
                    f"{1 + mean(of, 'units', 'swap') / greedy:.2f}x",
                    f"{mean(of, 'swaps', 'swap'):.1f}",
                    (
                        f"{sum(e['found']['swap']['held_out'] >= e['found']['greedy']['held_out'] for e in of)} of"
                        f" {len(of)}"
                    ),
                    f"{100 * mean(of, 'units', 'attribution') / greedy:.1f} %",
                    f"{shares[0]:.0f} %",
                    f"{shares[1]:.0f} %",
                    f"{100 * mean(of, 'units', 'attribution + swap') / greedy:.0f} %",
                ]
            )
    ways = ["whole", "random", "greedy", "greedy + swap", "attribution", "attribution + swap"]
    return [
        "## Better and cheaper circuits (`--refine swap`, `--search attribution`)",
        "",
        (
            f"The demo's ViT, {machine['processor']}, {machine['threads']} thread, torch {machine['torch']}: circuits"
            f" searched on {sizes['id']} validation images and {sizes['ood']} of the"
        ),
        (
            "near OOD images, measured there and on the test images and the other near OOD images; mean of"
            f" {sizes['splits']} splits. Random: {sizes['random_sets']} sets of that size."
        ),
        "",
        *table(["", "", *ways], rows),
        "",
        (
            "What it takes: evaluations of the greedy loop (`exact`), then evaluations and CPU time with swaps behind"
            " it over those without, swaps made, splits in"
        ),
        (
            "which the held-out objective is at least greedy's; attribution's CPU time over greedy's without measuring"
            " its trace, and its share of greedy's gain over random sets on both"
        ),
        "sides; attribution's with swaps behind it.",
        "",
        *table(
            [
                "",
                "greedy",
                "+ swap",
                "its time",
                "swaps",
                "held out ≥",
                "attribution",
                "gain, searched on",
                "gain, held out",
                "+ swap",
            ],
            costs,
        ),
    ]
