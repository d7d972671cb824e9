"""docs/evidence.md: the paper's comparison on our tasks, and each of its claims marked, from benchmarks/results/quality.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inside import insights

__all__ = ["CLAIMS", "Claim", "evidence", "gain", "target"]

Rows = dict[str, dict[str, dict[str, Any]]]
"""Row → seed → what was measured."""
TASKS = ("fashion-mnist", "dinov2", "minilm")
"""All that benchmarks/quality.py knows."""
HYDRAS = ("Hydra", "built")
"""How rows begin that are hydras of the single model."""
BEST = 2.0
"""Two thirds of a Deep Ensemble's multiply-adds, as times the single model's."""
LONGER = "tuned longer"
"""How rows end whose models had more steps than the others."""
TRAINED = ("Packed-Ensemble", "MIMO", "BatchEnsemble")
"""Rivals that benchmarks/rivals_trained.py makes of torch-uncertainty's layers."""
SEEDS = 3
"""Without so many there is no verdict."""
CHOSEN = "chosen_score"
"""Calibrated, and foreign data told by the score that calibration chose, as a calibrated checkpoint does."""
COLUMNS = (
    ("accuracy ↑", "accuracy"), ("NLL ↓", "nll"), ("ECE ↓", "ece"), ("AUROC near ↑", "auroc_near"), ("far ↑", "auroc_far"), ("mean ↑", "auroc_mean"),
    ("FPR95 ↓", "fpr95_mean"),
)  # fmt: skip


@dataclass(frozen=True)
class Gain:
    """How much better one row is than another: the mean over seeds of their differences, and its standard error."""

    mean: float
    error: float
    seeds: int

    @property
    def clear(self) -> bool:
        """By more than its standard error, which one seed does not have."""
        return self.seeds > 1 and self.mean > self.error

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f} ± {100 * self.error:.1f}"


def gain(rows: Rows, first: str, second: str, measure: str, kind: str = "plain") -> Gain | None:
    """In `measure`, higher = better for the first; paired by seed; None where one was not measured."""
    pairs = [
        (rows[first][seed], rows[second][seed]) for seed in rows.get(first, {}) if seed in rows.get(second, {})
    ]  # fmt: skip
    if not pairs:
        return None
    sign = -1 if measure.startswith(("nll", "ece", "brier", "shift_brier", "fpr95")) else 1
    values = [sign * (_value(a, measure, kind) - _value(b, measure, kind)) for a, b in pairs]
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Gain(statistics.mean(values), error, len(values))


def _value(cell: dict[str, Any], measure: str, kind: str) -> float:
    if kind == CHOSEN:
        kind = "chosen_score" if measure in cell[CHOSEN] else "calibrated"
    return float(cell[measure] if measure in cell else cell[kind][measure])


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
    Claim("5.1, Table 1", "Hydra (Circ) tells foreign data better than a Deep Ensemble", "Hydra (Circ), tuned", "Deep Ensemble", ("auroc_mean", "fpr95_mean")),
    Claim("5.1, Table 1", "Hydra (Circ) is within 1.5 points of a Deep Ensemble's accuracy", "Hydra (Circ), tuned", "Deep Ensemble", ("accuracy",), 0.015),
    Claim("5.1, Table 1", "Hydra (Circ) tells foreign data better than the single model", "Hydra (Circ), tuned", "Single", ("auroc_mean", "fpr95_mean")),
    Claim("5.1, Table 1", "Hydra (Taylor) tells foreign data better than the single model", "Hydra (Taylor), tuned", "Single", ("auroc_mean",)),
    Claim("5.1, Table 1", "Hydra (Taylor) is more accurate than one member pruned by Taylor, with lower NLL and ECE", "Hydra (Taylor), tuned", "Taylor, tuned", ("accuracy", "nll", "ece")),
    Claim("5.1, Table 1", "Hydra (Circ) tells foreign data better than CircAvg alone", "Hydra (Circ), tuned", "CircAvg, tuned", ("auroc_mean", "fpr95_mean")),
    Claim("5.1, Table 1", "MC Dropout tells foreign data worse than Hydra (Circ)", "Hydra (Circ), tuned", "MC Dropout, 5 passes", ("auroc_mean",)),
    Claim("5.1, Table 1", "A LoRA-Ensemble tells foreign data worse than Hydra (Circ)", "Hydra (Circ), tuned", "LoRA-Ensemble", ("auroc_mean",)),
    *(Claim("5.1, Table 1", f"{rival} tells foreign data worse than Hydra (Circ)", "Hydra (Circ), tuned", rival, ("auroc_mean", "fpr95_mean")) for rival in TRAINED),
    Claim("5.1, Table 1", "A Packed-Ensemble is less accurate than Hydra (Circ)", "Hydra (Circ), tuned", "Packed-Ensemble", ("accuracy",)),
    Claim("3.2, Table 4", "Pruning by Taylor without tuning harms accuracy and calibration", "Single", "Taylor, training-free", ("accuracy", "ece")),
    Claim("B.1, Table 4", "Without tuning, CircAvg is better than Taylor in accuracy and in telling foreign data", "CircAvg, training-free", "Taylor, training-free", ("accuracy", "auroc_mean")),
    Claim("B.2, Table 6", "CircAcc is more accurate than CircOOD", "CircAcc, training-free", "CircOOD, training-free", ("accuracy",)),
    Claim("B.2, Table 6", "CircOOD tells foreign data better than CircAcc", "CircOOD, training-free", "CircAcc, training-free", ("auroc_mean", "fpr95_mean")),
    Claim("B.3, Figure 6", "After tuning, Taylor is at least as accurate as CircAvg", "Taylor, tuned", "CircAvg, tuned", ("accuracy",)),
    Claim("B.3, Figure 6", "After tuning, CircAvg tells foreign data better than Taylor", "CircAvg, tuned", "Taylor, tuned", ("auroc_mean",)),
    Claim("B.3, Figure 5", "Without tuning, CircAvg loses less accuracy than Taylor with half of the heads gone", "CircAvg, 4/8 of the heads less, training-free", "Taylor, 4/8 of the heads less, training-free", ("accuracy",), group="ablations"),
    Claim("B.5, Tables 8 and 9", "Other heads make members diverse, another order of batches hardly", "diversity: heads", "diversity: batch order", ("mi", "disagreement"), group="ablations"),
    Claim("B.6, Table 10", "Five members are more accurate than three, and tell foreign data at least as well", "5 members", "3 members", ("accuracy", "auroc_mean"), group="ablations"),
    Claim("E.1, Table 13", "Under ImageNet-C's corruptions Hydra (Taylor) is more accurate than the single model", "Hydra (Taylor), tuned", "Single", ("shift_accuracy",), group="shift"),
    Claim("E.1, Table 13", "… and within a point of a Deep Ensemble", "Hydra (Taylor), tuned", "Deep Ensemble", ("shift_accuracy",), 0.01, group="shift"),
    Claim("E.1, Table 13", "… and more accurate than a Deep Ensemble at severities 4 and 5", "Hydra (Taylor), tuned", "Deep Ensemble", ("shift_accuracy_4", "shift_accuracy_5"), group="shift"),
    Claim("E.1, Table 14", "… with Brier scores within a point of a Deep Ensemble's", "Hydra (Taylor), tuned", "Deep Ensemble", ("shift_brier",), 0.01, group="shift"),
    Claim("B.7, Table 11", "Averaging tuned MLPs costs at most half a point of accuracy and of AUROC", "MLPs tuned, averaged", "MLPs tuned, apart", ("accuracy", "auroc_mean"), 0.005, group="ablations"),
)  # fmt: skip
UNTESTED = (
    (
        "5.1, Table 1",
        "figures of ViT-B/16 on ImageNet-1K and CIFAR-100",
        "neither data nor weights can be had here; `examples/paper/` has the commands",
    ),
    (
        "5.1, Table 1",
        "OBA, which prunes single weights, tells foreign data worse than Hydra (Circ)",
        "no implementation of it is at hand here; [predictions](../examples/predictions.py) of any method can be evaluated",
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


def evidence(results: dict[str, Any], looked: dict[str, Any] | None = None) -> str:
    """The page: the goal, the claims, each task's tables; `looked` is what benchmarks/probe.py found."""
    lines = [
        "# Evidence",
        "",
        "Written by `tools/render_docs.py` from `benchmarks/results/quality.json`, which `benchmarks/quality.py` makes. What the paper claims was tried on small models and data; a claim",
        "that holds there may fail elsewhere, and the other way round. Heads, members and scores were chosen by foreign data that are not among those reported. All is msp",
        "unless a column says otherwise.",
    ]  # fmt: skip
    tasks = results["tasks"]
    lines += [
        "",
        "## In short",
        "",
        *_short(tasks),
        "",
        "## The goal",
        "",
        *_goal(tasks),
        "",
        "## The paper's claims",
        "",
        *_claims(tasks, looked),
    ]
    for name, task in tasks.items():
        lines += ["", f"## {name}", "", *_about(name, task), "", *_table(task["rows"])]
        if any(rival in task["rows"] for rival in TRAINED):
            lines += ["", *_trained()]
        lines += ["", *_scores(task["rows"])]
    for name, task in tasks.items():
        if "shift" in task:
            lines += ["", f"## Corruptions of {name}", "", *_shifts(task["shift"])]
    for name, task in tasks.items():
        if "ablations" in task:
            lines += ["", f"## Ablations on {name}", "", *_ablations(task["ablations"])]
    return "\n".join(lines) + "\n"


def _about(name: str, task: dict[str, Any]) -> list[str]:
    about, machine = task["about"], task["machine"]
    sizes = ", ".join(f"{kind} {count}" for kind, count in about["samples"].items())
    tuned = "all training data" if about["tuned_on"] is None else f"{about['tuned_on']} training samples each"  # fmt: skip
    single = "" if about["bases"] > 3 else " All seeds have one and the same Deep Ensemble, of all three trainings, so it has no spread of its own."  # fmt: skip
    return [
        f"Seed s starts from the s-th of {about['bases']} independent trainings.{single} Members lose {about['removed']} heads (drawn from the first {about['pool']}), scored on {about['score_limit']} samples, circuits",
        f"by `--search {about['search']}`; tuning is the recipe {about['recipe']} on {tuned}, MLPs and embeddings frozen. Near: {', '.join(about['near'])}; far: {', '.join(about['far'])};",
        f"choosing: {about['chooses']} and perturbed validation data. Samples: {sizes}. {machine['cpu']}, torch {machine['torch']}{', bfloat16 autocast' if about['bfloat16'] else ''}.",
    ]  # fmt: skip


def _trained() -> list[str]:
    """What is to be known of the rivals that are not made of the base."""
    return [
        f"{', '.join(TRAINED)}: three members each, trained from random weights on the base's images, augmentations and number of steps, of torch-uncertainty's layers",
        "(it is among the development packages; without it these rows are left out). Settings as in the paper's C.1.4: α = 2 and γ = 1, members of 48 channels (42.7, rounded up to what eight heads",
        "divide); ρ = 0.5, each batch mixed four times; BatchEnsemble's members see every image, and start from random weights where the paper tunes a trained checkpoint. The packed layers were kept from",
        "mixing members: in torch-uncertainty 0.13 their layer norm and self-attention do. `benchmarks/rivals_trained.py`.",
    ]  # fmt: skip


def _spread(cells: dict[str, dict[str, Any]], get: Callable[[dict[str, Any]], float | None]) -> str:
    values = [value for value in map(get, cells.values()) if value is not None]
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def _table(rows: Rows) -> list[str]:
    """Calibrated by a temperature; ECE also as it was."""
    head = ["calibrated", "seeds", "multiply-adds", *(label for label, _ in COLUMNS), "ECE before"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, cells in rows.items():
        macs = statistics.mean(cell["macs"] for cell in cells.values())
        values = [_spread(cells, lambda c, m=measure: c["calibrated"][m]) for _, measure in COLUMNS]  # type: ignore[misc]  # fmt: skip
        before = _spread(cells, lambda cell: cell["plain"]["ece"])
        lines.append(f"| {' | '.join([name, str(len(cells)), f'{macs:.2f}', *values, before])} |")
    return lines


def _scores(rows: Rows) -> list[str]:
    """By the score that calibration chose."""
    lines = ["| score chosen by `calibrate` | near ↑ | far ↑ | mean ↑ | msp: mean ↑ | scores |", "|---|---:|---:|---:|---:|---|"]  # fmt: skip
    for name, cells in rows.items():
        chosen = {seed: cell for seed, cell in cells.items() if "chosen_score" in cell}
        if chosen:
            values = [_spread(chosen, lambda c, m=m: c["chosen_score"][f"auroc_{m}"]) for m in ("near", "far", "mean")]  # type: ignore[misc]  # fmt: skip
            msp = _spread(chosen, lambda cell: cell["calibrated"]["auroc_mean"])
            kinds = ", ".join(cell["chosen_score"]["kind"] for cell in chosen.values())
            lines.append(f"| {' | '.join([name, *values, msp, kinds])} |")
    return lines


def target(
    rows: Rows, kind: str = "calibrated"
) -> tuple[str, int, dict[str, Gain | None], dict[str, Gain | None]] | None:
    """The hydra of highest mean AUROC within the cost, of how many; its gains over the Deep Ensemble and over the single model."""
    if kind == CHOSEN:
        rows = {name: cells for name, cells in rows.items() if all(CHOSEN in cell for cell in cells.values())}  # fmt: skip
    hydras = {
        name: statistics.mean(_value(c, "auroc_mean", kind) for c in cells.values())
        for name, cells in rows.items()
        if name.startswith(HYDRAS) and len(cells) >= SEEDS and statistics.mean(c["macs"] for c in cells.values()) <= BEST + 0.005
    }  # fmt: skip
    if not hydras or "Deep Ensemble" not in rows or "Single" not in rows:
        return None
    best = max(hydras, key=lambda name: hydras[name])
    others = {m: gain(rows, best, "Deep Ensemble", m, kind) for m in ("auroc_mean", "fpr95_mean", "accuracy")}  # fmt: skip
    single = {m: gain(rows, best, "Single", m, kind) for m in ("accuracy", "nll", "ece", "auroc_mean")}  # fmt: skip
    return best, len(hydras), others, single


SHORT = (
    "Single", "built within 2x", "Deep Ensemble", "Single, tuned longer", "built within 2x of the single tuned longer",
    "Hydra (Taylor) behind a trunk, tuned longer", "Deep Ensemble, tuned longer",
)  # fmt: skip
"""What someone chooses from who has one model, and data to train it further or not."""


def _short(tasks: dict[str, Any]) -> list[str]:
    """Calibrated; foreign data by msp and by the chosen score."""
    lines = [
        "What is to be had for which cost, calibrated; foreign data told by msp and by the score that `calibrate` chose. Tuned longer: about as many further steps as the base took, on all of its",
        "training data. Steps are paid once, multiply-adds with every answer, and whether they help differs between tasks: try them on the single model before you build anything.",
        "How many steps fashion-mnist takes was settled after a trial whose figures of seed 1 on the reported data were seen; the other two take the recipe of their bases.",
    ]  # fmt: skip
    for task in (name for name in TASKS if name in tasks):
        rows = tasks[task]["rows"]
        lines += ["", f"| {task} | seeds | multiply-adds | accuracy ↑ | NLL ↓ | AUROC by msp ↑ | by the chosen score ↑ |", "|---|" + "---:|" * 6]  # fmt: skip
        for name in (each for each in SHORT if each in rows):
            cells = rows[name]
            macs = statistics.mean(cell["macs"] for cell in cells.values())
            values = [_spread(cells, lambda c, m=m: c["calibrated"][m]) for m in ("accuracy", "nll", "auroc_mean")]  # type: ignore[misc]  # fmt: skip
            chosen = _spread(cells, lambda cell: cell[CHOSEN]["auroc_mean"] if CHOSEN in cell else None)  # fmt: skip
            lines.append(f"| {' | '.join([name, str(len(cells)), f'{macs:.2f}', *values, chosen])} |")  # fmt: skip
    return lines


def _goal(tasks: dict[str, Any]) -> list[str]:
    usual = {name: {row: cells for row, cells in task["rows"].items() if not row.endswith(LONGER)} for name, task in tasks.items()}  # fmt: skip
    longer = {name: _longer(task["rows"]) for name, task in tasks.items()}
    return [
        "The best hydra that costs at most two thirds of a Deep Ensemble's multiply-adds should be level with it on mean AUROC and FPR95 and within one point of its accuracy; and beat the",
        "single model on accuracy, NLL, ECE and AUROC (all calibrated). The best is named by the very figures reported, which flatters it. Differences in points (NLL: hundredths), mean",
        "over seeds ± standard error, positive where the hydra is better:",
        "",
        *_reached(usual, "msp", "calibrated"),
        "",
        "The same where each model, the ensemble too, tells foreign data by the score that `calibrate` chose for it, as a calibrated checkpoint does:",
        "",
        *_reached(usual, "the chosen score", CHOSEN),
        "",
        "And where every model had about as many further steps as the base took, on all of its training data (msp): the single model itself, each model of the ensemble, and the hydra's members or what they",
        "were pruned from:",
        "",
        *_reached(longer, "tuned longer", "calibrated"),
    ]  # fmt: skip


def _longer(rows: Rows) -> Rows:
    """Those that were tuned longer, the two they are compared with by their plain names."""
    names = {"Single, tuned longer": "Single", "Deep Ensemble, tuned longer": "Deep Ensemble"}
    return {names.get(name, name): cells for name, cells in rows.items() if name.endswith(LONGER)}


def _reached(tasks: dict[str, Rows], by: str, kind: str) -> list[str]:
    lines = [f"| {by} | hydra | against the Deep Ensemble | | against the single model | |", "|---|---|---|---|---|---|"]  # fmt: skip
    for name in TASKS:
        reached = target(tasks[name], kind) if name in tasks else None
        if reached is None:
            lines.append(f"| {name} | not measured yet | | | | |")
            continue
        best, count, others, single = reached
        level = all(each is not None and each.mean >= (-0.01 if measure == "accuracy" else 0) for measure, each in others.items())  # fmt: skip
        beats = all(each is not None and each.mean > 0 for each in single.values())
        cells = [
            name,
            f"{best} (of {count} measured)",
            _gains(others),
            _verdict(level, "reached", "missed"),
            _gains(single),
            _verdict(beats, "reached", "missed"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _verdict(holds: bool, yes: str, no: str) -> str:
    return f"**{yes if holds else no}**"


def _gains(gains: dict[str, Gain | None]) -> str:
    return ", ".join(
        f"{name.removesuffix('_mean').replace('_', ' ')} {value}" for name, value in gains.items()
    )


def _claims(tasks: dict[str, Any], looked: dict[str, Any] | None) -> list[str]:
    lines = [
        "Held: on each task that was measured, the mean over seeds of the paired difference has the claimed sign and exceeds its standard error (for claims of being level: stays within the",
        "margin). Uncalibrated, as in the paper. Differences in points, positive where they speak for the claim.",
        "",
        "| paper | claim | verdict | differences |",
        "|---|---|---|---|",
    ]  # fmt: skip
    for claim in CLAIMS:
        verdicts, shown, seeds = [], [], SEEDS
        for name, task in tasks.items():
            rows = task.get(claim.group, {})
            gains = {m: gain(rows, claim.first, claim.second, m) for m in claim.measures}
            present = {m: g for m, g in gains.items() if g is not None}
            if len(present) < len(gains):
                continue
            seeds = min(seeds, *(g.seeds for g in present.values()))
            verdicts.append(all(g.mean >= -claim.slack if claim.slack else g.clear for g in present.values()))  # fmt: skip
            shown.append(f"{name}: {_gains(dict(present))}")
        verdict = _verdict(all(verdicts), "held", "not held")
        if not verdicts or seeds < SEEDS:
            verdict = "not measured yet"
        lines.append(f"| {claim.where} | {claim.says} | {verdict} | {'; '.join(shown)} |")
    for where, says, holds, shown_in in [] if looked is None else insights(looked):
        lines.append(f"| {where} | {says} | {_verdict(holds, 'held', 'not held')} | {shown_in} |")
    for where, says, why in UNTESTED:
        lines.append(f"| {where} | {says} | cannot be tested here | {why} |")
    return lines


def _shifts(rows: Rows) -> list[str]:
    """Means over all corruptions, by severity; uncalibrated."""
    lines = ["`benchmarks/quality_shift.py`: all fifteen corruptions at five severities of 300 test samples, uncalibrated.", ""]  # fmt: skip
    lines += ["| accuracy ↑ | 1 | 2 | 3 | 4 | 5 | mean | Brier: mean ↓ |", "|---|" + "---:|" * 7]
    for name, cells in rows.items():
        measures = [*(f"shift_accuracy_{severity}" for severity in range(1, 6)), "shift_accuracy", "shift_brier"]  # fmt: skip
        lines.append(f"| {' | '.join([name, *(_spread(cells, lambda c, m=m: c[m]) for m in measures)])} |")  # type: ignore[misc]  # fmt: skip
    return lines


def _ablations(rows: Rows) -> list[str]:
    """As they are, uncalibrated, as in the paper."""
    head = ["uncalibrated", "seeds", "multiply-adds", "accuracy ↑", "NLL ↓", "ECE ↓", "AUROC ↑", "FPR95 ↓", "MI", "DI", "MI, foreign", "DI, foreign"]  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, cells in rows.items():
        macs = statistics.mean(cell["macs"] for cell in cells.values())
        plain = [_spread(cells, lambda c, m=m: c["plain"][m]) for m in ("accuracy", "nll", "ece", "auroc_mean", "fpr95_mean")]  # type: ignore[misc]  # fmt: skip
        spread = [_spread(cells, lambda c, m=m: c[m]) for m in ("mi", "disagreement", "ood_mi", "ood_disagreement")]  # type: ignore[misc]  # fmt: skip
        lines.append(f"| {' | '.join([name, str(len(cells)), f'{macs:.2f}', *plain, *spread])} |")
    return lines
