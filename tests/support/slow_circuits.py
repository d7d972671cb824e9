"""Algorithm 1 of the paper, obvious and slow: what every search of circuits is held against."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import torch

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.decision.scores.on_logits import ON_LOGITS

__all__ = ["algorithm_1", "everything"]

HEAD_DIM = 8
"""Of the tiny ViT."""


def everything(
    spec: str, transform: Callable[..., torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    samples = open_data(spec)
    (batch,) = Batches(samples, transform, batch_size=len(samples))
    return batch.inputs, batch.labels


def algorithm_1(
    path: Path,
    data: str,
    ood: str,
    objective: str,
    budget: int,
    layers: tuple[int, ...] = (0, 1, 2),
    ood_score: str = "msp",
) -> tuple[list[tuple[str, int, int]], list[float]]:
    """Written out from the paper: zero W_O's columns, evaluate, restore; scores as exact fractions."""
    model = hs.load(path, device="cpu")
    kept = model.manifest.kept["vision"]
    sites = [block.attn.proj.weight for block in model.module.blocks]
    left = [(la, h) for la, row in enumerate(kept) for h in row if la in layers]
    x, y = everything(data, model.transform)
    foreign_x, _ = everything(ood, model.transform)

    @torch.inference_mode()
    def score() -> Fraction:
        logits, outside = model.module(x).double(), model.module(foreign_x).double()
        acc = Fraction(int((logits.argmax(-1) == y).sum()), len(y))
        foreign, familiar = (ON_LOGITS[ood_score](z[:, None], 1.0) for z in (outside, logits))
        above = int((foreign[:, None] > familiar).sum()) * 2 + int(
            (foreign[:, None] == familiar).sum()
        )
        auroc = Fraction(above, 2 * len(foreign) * len(familiar))
        return {"acc": acc, "ood": auroc, "avg": (acc + auroc) / 2}[objective]

    order, trace = [], []
    for _ in range(budget):
        best, winner = Fraction(-1), (-1, -1)
        for la, h in left:
            at = kept[la].index(h) * HEAD_DIM
            columns = sites[la].data[:, at : at + HEAD_DIM]
            saved = columns.clone()
            columns.zero_()
            if (s := score()) > best:
                best, winner = s, (la, h)
            columns.copy_(saved)
        at = kept[winner[0]].index(winner[1]) * HEAD_DIM
        sites[winner[0]].data[:, at : at + HEAD_DIM] = 0
        left.remove(winner)
        order.append(("vision", *winner))
        trace.append(float(best))
    return order, trace
