"""Answers of models that were drawn, for what chooses among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hydrasurgeon.building.answers import MemberOutputs
from hydrasurgeon.building.members import WHOLE, MemberModel
from hydrasurgeon.tasks.base import Outputs

MEMBERS, ROWS, CLASSES = 7, 60, 4


def member(number: int) -> MemberModel:
    """Return a member without a file, of a model of its own."""
    return MemberModel(f"m{number}", Path(f"m{number}.safetensors"), WHOLE)


def answers(seed: int = 0, rows: int = ROWS, count: int = MEMBERS) -> list[MemberOutputs]:
    """Draw models that agree in part, on one familiar set and two OOD sets."""
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> np.ndarray:
        return torch.randn(*shape, generator=random).numpy()

    labels = torch.randint(CLASSES, (rows,), generator=random).numpy()
    truth = np.eye(CLASSES)[labels] * 2.0

    def ood(rows: int, factor: float) -> Outputs:
        return Outputs(factor * drawn(rows, 1, CLASSES), None)

    return [
        MemberOutputs(
            (
                Outputs((truth + 1.5 * drawn(rows, CLASSES))[:, None], None, labels),
                ood(rows // 2, 1),
                ood(rows, 2),
            )
        )
        for _ in range(count)
    ]
