"""What is decided, as rows that people and programs read: plain values, labels by name where there are names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hydrasurgeon.decision.state import Decided, Prediction


def rows_of(
    decided: Prediction, begun: Sequence[dict[str, Any]], *, names: Sequence[str] | None, top: int
) -> list[dict[str, Any]]:
    """One row for each sample, continuing what is `begun`; without a decision state there are no sets and nothing is
    unfamiliar: None."""

    def called(klass: int) -> str | int:
        return klass if names is None else names[klass]

    state = decided if isinstance(decided, Decided) else None
    values, order = decided.probs.topk(min(top, decided.probs.shape[-1]), dim=-1)
    tops = zip(order.tolist(), values.tolist(), strict=True)
    nothing = [None] * len(begun)
    columns = {
        "label": map(called, decided.label.tolist()),
        "probability": _short(decided.probability),
        "top": ([[called(k), _nine(p)] for k, p in zip(*pair, strict=True)] for pair in tops),
        "set": nothing if state is None else ([called(k) for k in _held(state, i)] for i in range(len(begun))),
        "total": _short(decided.total),
        "aleatoric": _short(decided.aleatoric),
        "epistemic": _short(decided.epistemic),
        "ood_score": nothing if state is None else _short(state.ood_score),
        "unfamiliar": nothing if state is None else state.unfamiliar.tolist(),
        "members_run": decided.members_run.tolist(),
        "answer": (called(each) if isinstance(each, int) else each for each in decided.answers()),
    }
    rows = zip(*columns.values(), strict=True)
    return [{**start, **dict(zip(columns, row, strict=True))} for start, row in zip(begun, rows, strict=True)]


def _held(decided: Decided, i: int) -> list[int]:
    """A prediction set, the most probable label first."""
    inside = decided.sets[i].nonzero().flatten()
    order = torch.argsort(decided.probs[i, inside], descending=True, stable=True)
    return list(inside[order].tolist())


def _short(values: torch.Tensor) -> list[float]:
    return [_nine(value) for value in values.tolist()]


def _nine(value: float) -> float:
    """Nine digits: more than the model's float32 has."""
    return float(f"{value:.9g}")
