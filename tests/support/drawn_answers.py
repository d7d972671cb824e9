"""Answers of models that were drawn, for what chooses among them."""

from __future__ import annotations

import torch
from hydrasurgeon.stages.build.choice import Answers

CANDIDATES, ROWS, CLASSES = 7, 60, 4


def answers(seed: int = 0, rows: int = ROWS, count: int = CANDIDATES) -> list[Answers]:
    """Models that agree in part, on one familiar set and two foreign ones."""
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    labels = torch.randint(CLASSES, (rows,), generator=random)
    truth = torch.nn.functional.one_hot(labels, CLASSES) * 2.0
    return [
        Answers(
            truth + 1.5 * drawn(rows, CLASSES),
            labels,
            (drawn(rows // 2, CLASSES), 2 * drawn(rows, CLASSES)),
        )
        for _ in range(count)
    ]
