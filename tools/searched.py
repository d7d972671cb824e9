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
            "CPU seconds of Algorithm 1 as written over those of the searches, float32,"
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
