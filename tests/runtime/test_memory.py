"""What `calibrate` holds at a time: the answers once, not once more in the pieces they came in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from peak import Peak

from hydrasurgeon.data.samples import Arrays
from hydrasurgeon.run import Run
from hydrasurgeon.runtime import outputs

ROWS, CLASSES = 4000, 50


def answers() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(ROWS) % CLASSES
    logits = torch.randn(ROWS, 1, CLASSES, generator=torch.Generator().manual_seed(0))
    logits[torch.arange(ROWS), 0, labels] += 3
    return logits, labels


def test_collected_answers_are_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces come in any order, and rows that could not be read leave no gap."""
    logits, labels = answers()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))

    def pieces(*_: Any, left_out: int = 0, **__: Any) -> Iterator[outputs.Piece]:
        for index in order[: ROWS - left_out].split(40):
            yield outputs.Piece(index, logits[index], logits[index] + 1, labels[index])

    samples = Arrays("x", np.zeros((ROWS, 1, 1), np.uint8))
    monkeypatch.setattr(outputs, "pieces", pieces)
    with Peak() as peak:
        whole = outputs.collected(None, samples, Run(), features=True)  # type: ignore[arg-type]
    assert torch.equal(whole.logits, logits)
    assert whole.features is not None
    assert torch.equal(whole.features, logits + 1)
    assert torch.equal(whole.labels, labels)
    assert torch.equal(whole.index, torch.arange(ROWS))
    assert peak.bytes < 1.3 * 2 * logits.nbytes
    monkeypatch.setattr(outputs, "pieces", lambda *_, **__: pieces(left_out=300))
    part = outputs.collected(None, samples, Run(), features=True)  # type: ignore[arg-type]
    kept = order[:-300].sort().values
    assert torch.equal(part.index, kept)
    assert torch.equal(part.logits, logits[kept])
