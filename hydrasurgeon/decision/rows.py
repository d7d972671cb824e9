"""What is decided, as rows that people and programs read: plain values, labels by name where there are names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hydrasurgeon.decision.state import Decided


def rows_of(
    decided: Decided, begun: Sequence[dict[str, Any]], *, names: Sequence[str] | None, top: int, calibrated: bool
) -> list[dict[str, Any]]:
    """One row for each sample, continuing what is `begun`; without a decision state there are no sets and nothing is unfamiliar: None."""
    values, order = decided.probs.topk(min(top, decided.probs.shape[-1]), dim=-1)
    columns = {
        "probability": decided.probability,
        "total": decided.total,
        "aleatoric": decided.aleatoric,
        "epistemic": decided.epistemic,
        "ood_score": decided.ood_score,
    }
    numbers = {name: [_short(value) for value in column.tolist()] for name, column in columns.items()}
    tops, orders, flags = values.tolist(), order.tolist(), decided.unfamiliar.tolist()
    run = decided.members_run.tolist()
    answers = decided.answers()

    def called(klass: int) -> str | int:
        return klass if names is None else names[klass]

    made = []
    for i, (start, label) in enumerate(zip(begun, decided.label.tolist(), strict=True)):
        answer = answers[i]
        row = {
            **start,
            "label": called(label),
            "probability": numbers["probability"][i],
            "top": [[called(k), _short(p)] for k, p in zip(orders[i], tops[i], strict=True)],
            "set": _members_of(decided, i, called) if calibrated else None,
            "total": numbers["total"][i],
            "aleatoric": numbers["aleatoric"][i],
            "epistemic": numbers["epistemic"][i],
            "ood_score": numbers["ood_score"][i] if calibrated else None,
            "unfamiliar": flags[i] if calibrated else None,
            "members_run": run[i],
            "answer": called(answer) if isinstance(answer, int) else answer,
        }
        made.append(row)
    return made


def _members_of(decided: Decided, i: int, called: Any) -> list[str | int]:
    """A prediction set, the most probable label first."""
    inside = decided.sets[i].nonzero().flatten()
    order = torch.argsort(decided.probs[i, inside], descending=True, stable=True)
    return [called(klass) for klass in inside[order].tolist()]


def _short(value: float) -> float:
    """Nine digits: more than the model's float32 has."""
    return float(f"{value:.9g}")
