"""Algorithm 1 of the paper, obvious and slow: what every search of circuits is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.criteria.circuits.objective import Held, Objective, Problem, measure
from hydrasurgeon.data import Batches, fit_classes, open_data
from hydrasurgeon.heads import Head
from hydrasurgeon.statistics.scores.on_logits import score_of

HEAD_DIM = 8
"""Architecture of the tiny ViT."""


def everything(
    spec: str, transform: Callable[..., torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    samples = open_data(spec)
    (batch,) = Batches(samples, transform, batch_size=len(samples))
    return batch.inputs, batch.labels


def greedy(
    heads: Sequence[Any], budget: int, worth: Callable[[list[Any]], Any]
) -> tuple[list[Any], list[float]]:
    """Run the paper's Algorithm 1: remove the head without which the rest is `worth` most, again and
    again; return the order and the worth after each removal.
    """
    order: list[Any] = []
    trace: list[float] = []
    for _ in range(budget):
        left = [head for head in heads if head not in order]
        worths = [worth([*order, head]) for head in left]
        order.append(left[worths.index(max(worths))])
        trace.append(float(max(worths)))
    return order, trace


def points(objective: str, right: Fraction, familiar: Tensor, outside: Tensor) -> Fraction:
    """Return the exact value of an objective, from the share of right answers and from OOD scores."""
    above = 2 * int((outside[:, None] > familiar).sum())
    above += int((outside[:, None] == familiar).sum())
    auroc = Fraction(above, 2 * len(outside) * len(familiar))
    return {"acc": right, "ood": auroc, "avg": (right + auroc) / 2}[objective]


def algorithm_1(
    path: Path,
    data: str,
    ood: str,
    objective: str,
    budget: int,
    layers: tuple[int, ...] = (0, 1, 2),
) -> tuple[list[tuple[str, int, int]], list[float]]:
    """Run Algorithm 1 on a tiny ViT by zeroing W_O's columns and restoring them."""
    model = hs.load(path, device="cpu")
    kept = model.manifest.kept["vision"]
    sites = [block.attn.proj.weight for block in model.module.blocks]
    x, y = everything(data, model.transform)
    foreign_x, _ = everything(ood, model.transform)

    @torch.inference_mode()
    def worth(removed: list[tuple[str, int, int]]) -> Fraction:
        saved = [site.data.clone() for site in sites]
        for _, layer, head in removed:
            at = kept[layer].index(head) * HEAD_DIM
            sites[layer].data[:, at : at + HEAD_DIM] = 0
        logits, outside = model.module(x).double(), model.module(foreign_x).double()
        for site, weight in zip(sites, saved, strict=True):
            site.data.copy_(weight)
        right = Fraction(int((logits.argmax(-1) == y).sum()), len(y))
        scores = (torch.from_numpy(score_of("msp", z[:, None].numpy())) for z in (logits, outside))
        return points(objective, right, *scores)

    heads = [("vision", la, h) for la, row in enumerate(kept) for h in row if la in layers]
    return greedy(heads, budget, worth)


def problem_of(
    path: Path,
    data: str,
    ood: str,
    objective: Literal["acc", "ood", "avg"] = "avg",
    *,
    dtype: torch.dtype = torch.float32,
    batch_size: int = 7,
    tower: str | None = None,
) -> Problem:
    """Return a tiny model and its data in the form that the searches take."""
    model = hs.load(path, device="cpu")
    module = model.module.to(dtype)
    samples = fit_classes(open_data(data), model.manifest.model)
    (familiar,) = Batches(samples, model.transform, batch_size=len(samples))
    outside, _ = everything(ood, model.transform)
    anatomy = open_checkpoint(path).family.anatomy(module)
    held = [Held.of([x], torch.device("cpu"), dtype) for x in (familiar.inputs, outside)]
    return Problem(
        module=module,
        anatomy=anatomy,
        id_inputs=held[0],
        labels=familiar.labels,
        ood_inputs=held[1],
        objective=Objective(objective, len(held[0]), len(held[1])),
        candidates=tuple(
            Head(s.tower, s.layer, h)
            for s in anatomy.sites
            if tower in (None, s.tower)
            for h in s.heads
        ),
        batch_size=batch_size,
        together=64,
    )


def slow_order(problem: Problem, budget: int) -> list[Head]:
    """Mask each candidate in turn, and run the model's own forward pass over all the data."""
    return greedy(problem.candidates, budget, lambda heads: measure(problem, tuple(heads)))[0]


class Slow:
    """Answers of a tiny model one sample at a time, and points counted one by one."""

    def __init__(self, path: Path, data: str, ood: str, objective: str) -> None:
        model = hs.load(path, device="cpu")
        self.module, self.objective = model.module.requires_grad_(False), objective
        self.x, self.y = everything(data, model.transform)
        self.ood, _ = everything(ood, model.transform)
        self.heads = [
            ("vision", la, h) for la, row in enumerate(model.manifest.kept["vision"]) for h in row
        ]

    def logits(self, x: Tensor, factors: Tensor) -> Tensor:
        """Return the logits when each head's output is multiplied by its factor."""
        hooks = []
        for layer, block in enumerate(self.module.blocks):
            kept_mask = torch.cat(
                [
                    factors[i].expand(HEAD_DIM)
                    for i, (_, la, _) in enumerate(self.heads)
                    if la == layer
                ]
            )
            hooks.append(
                block.attn.proj.register_forward_pre_hook(
                    lambda _, args, kept_mask=kept_mask: (args[0] * kept_mask,)
                )
            )
        try:
            return self.module(x).double()
        finally:
            for hook in hooks:
                hook.remove()

    def answers(self) -> list[list[float]]:
        """Return margins, familiarity of ID samples, and familiarity of OOD samples."""
        ones = torch.ones(len(self.heads))
        with torch.no_grad():
            inside, outside = self.logits(self.x, ones), self.logits(self.ood, ones)
        return [
            [float(_margin(z, int(y))) for z, y in zip(inside, self.y, strict=True)],
            [float(_odds(z)) for z in inside],
            [float(_odds(z)) for z in outside],
        ]

    def effects(self) -> list[list[list[float]]]:
        """Return [margin, ID, OOD][sample][head]: the first-order effect of removing one head."""

        def gradient(x: Tensor, answer: Callable[[Tensor], Tensor]) -> list[float]:
            factors = torch.ones(len(self.heads)).requires_grad_()
            (slope,) = torch.autograd.grad(answer(self.logits(x[None], factors)[0]), factors)
            return (-slope).tolist()

        return [
            [
                gradient(x, lambda z, y=y: _margin(z, int(y)))
                for x, y in zip(self.x, self.y, strict=True)
            ],
            [gradient(x, _odds) for x in self.x],
            [gradient(x, _odds) for x in self.ood],
        ]

    def points(self, answers: list[list[float]]) -> Fraction:
        margin, familiar, ood = (torch.tensor(part, dtype=torch.float64) for part in answers)
        right = Fraction(int((margin > 0).sum()), len(margin))
        return points(self.objective, right, -familiar, -ood)

    def predicted(
        self, answers: list[list[float]], effects: list[list[list[float]]], head: Any
    ) -> list[list[float]]:
        """Add the effects of this head to these answers."""
        at = self.heads.index(head)
        return [
            [now + changes[at] for now, changes in zip(part, effect, strict=True)]
            for part, effect in zip(answers, effects, strict=True)
        ]


def _margin(logits: Tensor, label: int) -> Tensor:
    return logits[label] - torch.stack([z for k, z in enumerate(logits) if k != label]).max()


def _odds(logits: Tensor) -> Tensor:
    p = logits.softmax(-1).max()
    return p.log() - (1 - p).log()


def slow_attribution(path: Path, data: str, ood: str, objective: str, amount: int) -> list[Any]:
    """Run the greedy loop over predicted answers."""
    slow = Slow(path, data, ood, objective)
    answers, effects = slow.answers(), slow.effects()

    def worth(heads: list[Any]) -> Fraction:
        predicted = answers
        for head in heads:
            predicted = slow.predicted(predicted, effects, head)
        return slow.points(predicted)

    return greedy(slow.heads, amount, worth)[0]
