"""One round of the fast search: predictions are corrected by what is seen of samples, until it is clear who is best."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.criteria.circuits.objective import Outcomes, contributions
from hydrasurgeon.criteria.circuits.order import Part, batched
from hydrasurgeon.criteria.circuits.race import Runner
from hydrasurgeon.criteria.circuits.sampling import Drawn, inclusion_probabilities
from hydrasurgeon.heads import Head

OPENING = ((1.0, 0.5), (1 / 3, 1.0))
"""In the first round: share of the candidates that are looked at, and on which share of the samples."""
LOOKED_AT = 1 / 2
"""In later rounds: how many of the candidates are looked at at all,"""
SHARES = (0.1, 0.2, 0.4, 0.7)
"""and on which shares of the samples, before those that are left are measured on all."""
DOUBT = 3.0
"""Who is behind the best by more standard errors than this is left behind."""
FEW = 8
"""So many candidates are never too many to look at; two are always measured."""
SAMPLES = 100
"""At least so many samples are looked at: fewer cannot tell how far off a prediction is."""
EVEN = 0.2
"""Added to the weight of each sample, in average weights: what never mattered may yet."""


def assumptions() -> str:
    """What must hold for the head that is best to be found."""
    (_, half), (third, _) = OPENING
    shares = ", ".join(f"{share:.0%}" for share in SHARES)
    return (
        f"the head to remove is predicted among the best {LOOKED_AT:.0%} of the candidates, and on {shares} of the"
        f" samples is never more than {DOUBT:g} standard errors behind the best; those that are left are measured on"
        f" all samples. In the first round it is among the best {third:.0%} on {half:.0%} of the samples"
    )


class Look:
    """One round: what is predicted of each candidate, and corrected by what is seen of it."""

    def __init__(
        self, runner: Runner, heads: Sequence[Head], present: Outcomes, guessed: Outcomes, number: int
    ) -> None:
        self.runner, self.problem, self.heads = runner, runner.problem, heads
        self.present, self.guessed = present, guessed
        self.seen = guessed.map(torch.clone)
        """What is guessed, where it was not seen yet."""
        self.points = self._points(self.guessed)
        """Points that each candidate is expected to have."""
        self.rows: Int[Tensor, " candidate"] = torch.arange(len(heads))
        """Who is still looked at,"""
        self.apart: Float[Tensor, " candidate"] = torch.zeros(len(heads), dtype=torch.float64)
        """and the standard error of how far each is behind the best of them."""
        objective = self.problem.objective
        samples = objective.id_rows + (objective.ood_rows if objective.needs_ood else 0)
        self.drawn = Drawn.nothing(samples, seed=number)
        self.shares = (0.0, 0.0)
        """Of the samples: what was seen of those that are still looked at, and what will be."""

    def first(self) -> None:
        """Nothing was seen before: all candidates, then the best of them."""
        for share, samples in OPENING:
            self.at(max(FEW, round(share * len(self.heads))), samples)

    def narrow(self) -> float:
        """Fewer candidates on more samples, until those that are left are seen on all; how far off these still were."""
        count = max(FEW, round(LOOKED_AT * len(self.heads)))
        for share in SHARES:
            self.at(count, share)
            count = max(2, self.open())
        predicted = self.points.clone()
        self.at(count, 1.0)
        errors = (self.points - predicted)[self.rows].abs()
        return float(errors.max()) / self.problem.objective.total

    def at(self, count: int, share: float) -> None:
        """The best so many go on to this share of the samples; what is seen corrects their points."""
        best = self.points[self.rows].argsort(descending=True, stable=True)[:count]
        self.rows = self.rows[best].sort().values
        share = max(share, SAMPLES / len(self.drawn.taken))
        self.shares = (self.shares[1], min(share, 1.0))
        self._run(self._draw(share))
        self.problem.tick(self.shares[1])
        if share >= 1:
            outcomes = self.seen.map(lambda part: part[self.rows])
            self.points[self.rows] = self._points(outcomes)
            self.apart = torch.zeros(len(self.rows), dtype=torch.float64)
        else:
            predicted, beyond = self._corrections()
            self.points[self.rows] = predicted + beyond.sum(dim=-1)
            self.apart = self._apart(beyond)

    def open(self) -> int:
        """How many may be the best of those that are looked at."""
        points = self.points[self.rows]
        return int((points.max() - points <= DOUBT * self.apart).sum())

    def _draw(self, share: float) -> Int[Tensor, " new"]:
        samples = len(self.drawn.taken)
        if share >= 1:
            return self.drawn.up_to(torch.ones(samples, dtype=torch.float64), torch.arange(samples))
        weights = self._matters()
        weights = weights + EVEN * weights.mean()
        ids, oods = self.present.familiar.argsort(), self.present.foreign.argsort()
        order = torch.cat([ids, oods + len(ids)])  # alike samples stand together, so few are enough
        return self.drawn.up_to(inclusion_probabilities(weights, share), order)

    def _matters(self) -> Float[Tensor, " sample"]:
        """How much each sample moves the objective when a head goes."""
        objective, present = self.problem.objective, self.present.one()
        before = contributions(objective, present, present)
        moved = contributions(objective, self.guessed, present) - before
        return moved.square().mean(dim=0).sqrt()

    def _run(self, new: Int[Tensor, " new"]) -> None:
        ids = self.problem.objective.id_rows
        size, lengths, stride = self.problem.batch_size, self.problem.lengths, self.runner.stride
        parts: list[Part] = batched(False, new[new < ids], size, lengths)
        parts += batched(True, new[new >= ids] - ids, size, lengths)
        heads = [self.heads[row] for row in self.rows.tolist()]
        rows = self.rows[:, None]
        for at in range(0, len(parts), stride):
            for batch in self.runner.batches(parts[at : at + stride], heads):
                if batch.part.foreign:
                    self.seen.foreign[rows, batch.part.index] = batch.familiar
                else:
                    self.seen.familiar[rows, batch.part.index] = batch.familiar
                    self.seen.margin[rows, batch.part.index] = batch.margin
            before, after = self.shares
            self.problem.tick(before + (after - before) * min(1.0, (at + stride) / len(parts)))

    def _points(self, outcomes: Outcomes) -> Float[Tensor, " candidate"]:
        return torch.tensor([points.low for points in self.problem.objective.points(outcomes)], dtype=torch.float64)

    def _corrections(self) -> tuple[Float[Tensor, " candidate"], Float[Tensor, "candidate sample"]]:
        """What is predicted, and what was seen beyond it, of each drawn sample for all those that it stands for."""
        objective, chance = self.problem.objective, self.drawn.chance.clamp(min=1e-9)
        guessed = self.guessed.map(lambda part: part[self.rows])
        seen = self.seen.map(lambda part: part[self.rows])
        beyond = contributions(objective, seen, guessed) - contributions(objective, guessed, guessed)
        return self._points(guessed), beyond / chance

    def _apart(self, beyond: Float[Tensor, "candidate sample"]) -> Float[Tensor, " candidate"]:
        """All saw the same samples, so it is differences to the best that are sure or not."""
        best = int(self.points[self.rows].argmax())
        variance = ((1 - self.drawn.chance) * (beyond - beyond[best]).square()).sum(dim=-1)
        others = torch.arange(len(variance)) != best
        # A few samples tell the variance of one badly; a point may always be off.
        return ((variance + variance[others].median()) / 2 + 1).sqrt()
