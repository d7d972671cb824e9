"""What the paper claims, and whether it holds in benchmarks/results/quality.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pages.evidence.seeds import SEEDS, gain, listed, verdict
from pages.probe import insights

TRAINED = ("Packed-Ensemble", "MIMO", "BatchEnsemble")
"""Rivals that benchmarks/quality_rivals_trained.py makes of torch-uncertainty's layers."""


@dataclass(frozen=True)
class Claim:
    """Something the paper says of two rows."""

    where: str
    says: str
    first: str
    second: str
    measures: tuple[str, ...]
    slack: float = 0.0
    """What the first may be worse by: for claims of being level."""
    group: str = "rows"
    """Which of a task's results hold the two: rows, ablations, or shift."""


CLAIMS = (
    Claim(
        "5.1, Table 1",
        "Hydra (Circ) detects OOD data better than a Deep Ensemble",
        "Hydra (Circ), tuned",
        "Deep Ensemble",
        ("auroc_mean", "fpr95_mean"),
    ),
    Claim(
        "5.1, Table 1",
        "Hydra (Circ) is within 1.5 points of a Deep Ensemble's accuracy",
        "Hydra (Circ), tuned",
        "Deep Ensemble",
        ("accuracy",),
        0.015,
    ),
    Claim(
        "5.1, Table 1",
        "Hydra (Circ) detects OOD data better than the single model",
        "Hydra (Circ), tuned",
        "Single",
        ("auroc_mean", "fpr95_mean"),
    ),
    Claim(
        "5.1, Table 1",
        "Hydra (Taylor) detects OOD data better than the single model",
        "Hydra (Taylor), tuned",
        "Single",
        ("auroc_mean",),
    ),
    Claim(
        "5.1, Table 1",
        "Hydra (Taylor) is more accurate than one member pruned by Taylor, with lower NLL and ECE",
        "Hydra (Taylor), tuned",
        "Taylor, tuned",
        ("accuracy", "nll", "ece"),
    ),
    Claim(
        "5.1, Table 1",
        "Hydra (Circ) detects OOD data better than CircAvg alone",
        "Hydra (Circ), tuned",
        "CircAvg, tuned",
        ("auroc_mean", "fpr95_mean"),
    ),
    Claim(
        "5.1, Table 1",
        "MC Dropout detects OOD data worse than Hydra (Circ)",
        "Hydra (Circ), tuned",
        "MC Dropout, 5 passes",
        ("auroc_mean",),
    ),
    Claim(
        "5.1, Table 1",
        "A LoRA-Ensemble detects OOD data worse than Hydra (Circ)",
        "Hydra (Circ), tuned",
        "LoRA-Ensemble",
        ("auroc_mean",),
    ),
    *(
        Claim(
            "5.1, Table 1",
            f"{rival} detects OOD data worse than Hydra (Circ)",
            "Hydra (Circ), tuned",
            rival,
            ("auroc_mean", "fpr95_mean"),
        )
        for rival in TRAINED
    ),
    Claim(
        "5.1, Table 1",
        "A Packed-Ensemble is less accurate than Hydra (Circ)",
        "Hydra (Circ), tuned",
        "Packed-Ensemble",
        ("accuracy",),
    ),
    Claim(
        "3.2, Table 4",
        "Pruning by Taylor without tuning harms accuracy and calibration",
        "Single",
        "Taylor, training-free",
        ("accuracy", "ece"),
    ),
    Claim(
        "B.1, Table 4",
        "Without tuning, CircAvg is better than Taylor in accuracy and in detecting OOD data",
        "CircAvg, training-free",
        "Taylor, training-free",
        ("accuracy", "auroc_mean"),
    ),
    Claim(
        "B.2, Table 6",
        "CircAcc is more accurate than CircOOD",
        "CircAcc, training-free",
        "CircOOD, training-free",
        ("accuracy",),
    ),
    Claim(
        "B.2, Table 6",
        "CircOOD detects OOD data better than CircAcc",
        "CircOOD, training-free",
        "CircAcc, training-free",
        ("auroc_mean", "fpr95_mean"),
    ),
    Claim(
        "B.3, Figure 6",
        "After tuning, Taylor is at least as accurate as CircAvg",
        "Taylor, tuned",
        "CircAvg, tuned",
        ("accuracy",),
    ),
    Claim(
        "B.3, Figure 6",
        "After tuning, CircAvg detects OOD data better than Taylor",
        "CircAvg, tuned",
        "Taylor, tuned",
        ("auroc_mean",),
    ),
    Claim(
        "B.3, Figure 5",
        "Without tuning, CircAvg loses less accuracy than Taylor with half of the heads gone",
        "CircAvg, 4/8 of the heads less, training-free",
        "Taylor, 4/8 of the heads less, training-free",
        ("accuracy",),
        group="ablations",
    ),
    Claim(
        "B.5, Tables 8 and 9",
        "Other heads make members diverse, another order of batches hardly",
        "diversity: heads",
        "diversity: batch order",
        ("mi", "disagreement"),
        group="ablations",
    ),
    Claim(
        "B.6, Table 10",
        "Five members are more accurate than three, and detect OOD data at least as well",
        "5 members",
        "3 members",
        ("accuracy", "auroc_mean"),
        group="ablations",
    ),
    Claim(
        "E.1, Table 13",
        "Under corruptions (images: ImageNet-C's; texts: typos, dropped words) Hydra (Taylor) is more accurate than the"
        " single model",
        "Hydra (Taylor), tuned",
        "Single",
        ("shift_accuracy",),
        group="shift",
    ),
    Claim(
        "E.1, Table 13",
        "… and within a point of a Deep Ensemble",
        "Hydra (Taylor), tuned",
        "Deep Ensemble",
        ("shift_accuracy",),
        0.01,
        group="shift",
    ),
    Claim(
        "E.1, Table 13",
        "… and more accurate than a Deep Ensemble at severities 4 and 5",
        "Hydra (Taylor), tuned",
        "Deep Ensemble",
        ("shift_accuracy_4", "shift_accuracy_5"),
        group="shift",
    ),
    Claim(
        "E.1, Table 14",
        "… with Brier scores within a point of a Deep Ensemble's",
        "Hydra (Taylor), tuned",
        "Deep Ensemble",
        ("shift_brier",),
        0.01,
        group="shift",
    ),
    Claim(
        "B.7, Table 11",
        "Averaging tuned MLPs costs at most half a point of accuracy and of AUROC",
        "MLPs tuned, averaged",
        "MLPs tuned, apart",
        ("accuracy", "auroc_mean"),
        0.005,
        group="ablations",
    ),
)
UNTESTED = (
    (
        "5.1, Table 1",
        "figures of ViT-B/16 on ImageNet-1K and CIFAR-100",
        "neither data nor weights can be had here; `examples/paper/` has the commands",
    ),
    (
        "5.1, Table 1",
        "OBA, which prunes single weights, detects OOD data worse than Hydra (Circ)",
        (
            "no implementation of it is at hand here; [predictions](../../examples/predictions.py) of any method can be"
            " evaluated"
        ),
    ),
    ("5.2, Table 2", "figures of BERT on SST-2 and its OOD sets", "the same"),
    (
        "5.3, Table 3",
        "zero-shot CLIP: better calibrated and better OOD detection without training",
        "no real CLIP weights can be had here",
    ),
    (
        "5.1, Figure 3, Table 7",
        "1.07 times a single model's time in bfloat16 at batch 4",
        "no figure of a GPU is among these; [benchmarks](benchmarks.md) has times of processors",
    ),
)


def _searched(tasks: dict[str, Any]) -> list[str]:
    """Where circuits are not the paper's."""
    names = [
        name for name, task in tasks.items() if task.get("about", {}).get("search") == "attribution"
    ]
    if not names:
        return []
    return [
        (
            f"Circuits on {' and '.join(names)} are found by `--search attribution`: one backward pass in place of the"
            " paper's greedy loop. Where half of the heads go it loses much of"
        ),
        "what that loop gains ([measured](benchmarks.md)): what is said of circuits there is said of that search.",
    ]


def claims(tasks: dict[str, Any], looked: dict[str, Any] | None) -> list[str]:
    lines = [
        (
            "Held: on each task of which there are three seeds, the mean over seeds of the paired difference has the"
            " claimed sign and exceeds its standard error (for claims of being level: stays within the"
        ),
        "margin). Uncalibrated, as in the paper. Differences in points, positive where they speak for the claim.",
        *_searched(tasks),
        "",
        "| paper | claim | verdict | differences |",
        "|---|---|---|---|",
    ]
    for claim in CLAIMS:
        verdicts: dict[str, bool] = {}
        shown = []
        for name, task in tasks.items():
            rows = task.get(claim.group, {})
            gains = {m: gain(rows, claim.first, claim.second, m) for m in claim.measures}
            present = {m: g for m, g in gains.items() if g is not None}
            if len(present) < len(gains) or any(g.seeds < SEEDS for g in present.values()):
                continue
            verdicts[name] = all(
                g.mean >= -claim.slack if claim.slack else g.clear for g in present.values()
            )
            shown.append(f"{name}: {listed(dict(present))}")
        judged = verdict(all(verdicts.values()), "held", "not held")
        if len(set(verdicts.values())) > 1:
            judged += f" (only on {', '.join(name for name, holds in verdicts.items() if holds)})"
        if not verdicts:
            judged = "not measured yet"
        lines.append(f"| {claim.where} | {claim.says} | {judged} | {'; '.join(shown)} |")
    for where, says, holds, shown_in in [] if looked is None else insights(looked):
        lines.append(f"| {where} | {says} | {verdict(holds, 'held', 'not held')} | {shown_in} |")
    for where, says, why in UNTESTED:
        lines.append(f"| {where} | {says} | cannot be tested here | {why} |")
    return lines
