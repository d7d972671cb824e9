"""Answers of models that were drawn, for what chooses among them."""

from __future__ import annotations

from pathlib import Path

import torch

from hydrasurgeon.building.cache import Answers
from hydrasurgeon.building.cost import Part
from hydrasurgeon.building.members import Member

MEMBERS, ROWS, CLASSES = 7, 60, 4


def member(number: int, trunk: int | None = 0) -> Member:
    """One without a file, of a model of its own where it shares nothing."""
    return Member(
        label=f"m{number}",
        file=Path(f"m{number}.safetensors"),
        part=Part({}),
        model=0 if trunk is not None else number,
        trunk=trunk,
    )


def answers(seed: int = 0, rows: int = ROWS, count: int = MEMBERS) -> list[Answers]:
    """Models that agree in part, on one familiar set and two OOD sets; scores that were fitted."""
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
            {"mds": (drawn(rows).double(), drawn(rows // 2).double() + 1, drawn(rows).double())},
        )
        for _ in range(count)
    ]
