"""Objectives of a circuit search as exact integers: accuracy, OOD separability or their mean.

Paper D.1.2.

    S_acc = Acc(ID),   S_ood = AUROC of msp with OOD positive,   S_avg = ½ (S_acc + S_ood)

Scores are compared as whole numbers of points (a right answer, half a pair), so that ties are ties.
Samples are ranked by how familiar they look: the log-odds of the most probable class, which order
them as msp does and do not saturate; of many labels by the likeliest's logit. Where logits are known
up to ±tolerance only, points come as an interval, by how far that moves at most: by 2 for a logit's
1, or by 1.

Of many labels an answer is right where all of them are, so its margin is the least of the labels',
±z.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.parts import Anatomy, Attention
from hydrasurgeon.data import moved
from hydrasurgeon.heads import Head
from hydrasurgeon.runtime.kinds import yes_or_no
from hydrasurgeon.runtime.processes import World

Kind = Literal["acc", "ood", "avg"]
PARTS = ("margin", "familiar", "ood_certainty")
"""Names of the parts of outcomes, in their order."""
# What a tie is won or lost by.
TINY = 1e-30


def margins(
    logits: Float[Tensor, "*any sample klass"], labels: Int[Tensor, " sample *label"]
) -> Float[Tensor, "*any sample"]:
    """Return the true class's logit minus the highest other; positive means right.

    With many labels it is the least of the labels' margins. A tie goes to the first class, as in
    argmax: to no.
    """
    if labels.dim() == 2:
        sign = torch.where(labels > 0, 1.0, -1.0).to(logits)
        return torch.where(logits == 0, -TINY * sign, sign * logits).amin(dim=-1)
    logits = yes_or_no(logits)
    where = labels.expand(logits.shape[:-1])[..., None]
    true = logits.gather(-1, where)
    rival = logits.scatter(-1, where, -torch.inf).amax(dim=-1)
    earlier = torch.arange(logits.shape[-1], device=logits.device) < where
    lost = ((logits == true) & earlier).any(dim=-1)
    margin = true.squeeze(-1) - rival
    return torch.where(margin == 0, torch.where(lost, -TINY, TINY), margin)


def pairs_above(
    high: Float[Tensor, "*any a"], low: Float[Tensor, "*any b"], gap: float = 0.0
) -> Int[Tensor, "*any"]:
    """Count the pairs with `high` > `low` + gap; the shorter side is sorted."""
    if low.shape[-1] <= high.shape[-1]:
        ordered = low.sort(dim=-1).values
        return torch.searchsorted(ordered, (high - gap).contiguous(), right=False).sum(dim=-1)
    ordered = (high - gap).sort(dim=-1).values
    below = torch.searchsorted(ordered, low.contiguous(), right=True)
    return high.shape[-1] * low.shape[-1] - below.sum(dim=-1)


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of every sample, for one circuit or several ([circuit, sample])."""

    margin: Float[Tensor, "*circuit id"]
    familiar: Float[Tensor, "*circuit id"]
    ood_certainty: Float[Tensor, "*circuit ood"]

    def map(self, change: Callable[..., Tensor], *more: Outcomes) -> Outcomes:
        """Apply a function to each part, together with the same part of other outcomes."""
        return Outcomes(*(change(*(getattr(one, name) for one in (self, *more))) for name in PARTS))


class Points(NamedTuple):
    """Lower and upper bound of a circuit's points."""

    low: int
    high: int


@dataclass(frozen=True)
class Objective:
    """An objective on sets of this size."""

    kind: Kind
    id_rows: int
    ood_rows: int
    labels: int = 0
    """Number of labels that a sample may have; 0 if it has one class."""

    def familiarity(self, logits: Float[Tensor, "*any klass"]) -> Float[Tensor, "*any"]:
        """Return how familiar samples look: the value by which pairs are compared."""
        if self.labels:
            return logits.amax(dim=-1)
        logits = yes_or_no(logits)
        best, where = logits.max(dim=-1, keepdim=True)
        rivals = logits.scatter(-1, where, -torch.inf)
        return best.squeeze(-1) - rivals.logsumexp(dim=-1)

    def gap(self, tolerance: float) -> float:
        """Return by how much two samples must differ for a certain order.

        Logits may be off by `tolerance`.
        """
        return (2 if self.labels else 4) * tolerance

    @property
    def per_answer(self) -> int:
        """Points of a right answer; half a concordant pair is worth one point."""
        return {"acc": 1, "ood": 0, "avg": 2 * self.ood_rows}[self.kind]

    @property
    def needs_ood(self) -> bool:
        return self.kind != "acc"

    @property
    def total(self) -> int:
        pairs = 2 * self.id_rows * self.ood_rows if self.needs_ood else 0
        return self.per_answer * self.id_rows + pairs

    def value(self, points: int) -> float:
        return points / self.total

    def points(self, outcomes: Outcomes, tolerance: float = 0.0) -> list[Points]:
        """Return the points of each circuit, with logits that may be off by `tolerance`.

        Margins may be off by twice that, pairs by the gap.
        """
        low = self.per_answer * (outcomes.margin > 2 * tolerance).sum(dim=-1)
        high = self.per_answer * (outcomes.margin >= -2 * tolerance).sum(dim=-1)
        if self.needs_ood:
            gap = self.gap(tolerance)
            pairs = self.id_rows * self.ood_rows
            right = pairs_above(outcomes.familiar, outcomes.ood_certainty, gap)
            wrong = pairs_above(outcomes.ood_certainty, outcomes.familiar, gap)
            if tolerance:  # what is not surely wrong may be right
                low = low + 2 * right
                high = high + 2 * (pairs - wrong)
            else:  # what is neither is a tie, and counts half
                low = low + right + pairs - wrong
                high = low
        return [Points(int(a), int(b)) for a, b in zip(low, high, strict=True)]


MASK = "attention_mask"
"""Name under which texts carry the mask of their real tokens."""


@dataclass(frozen=True)
class Held:
    """All inputs of one set: a tensor, or tensors by name as text models take them."""

    parts: Mapping[str, Tensor]
    named: bool
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, batches: Iterable[Any], device: torch.device, dtype: torch.dtype) -> Held:
        """Collect batches; texts padded to different lengths are padded to one, and masked."""
        inputs = list(batches)
        named = bool(inputs) and isinstance(inputs[0], Mapping)
        rows: list[dict[str, Tensor]] = [dict(b) if named else {"": b} for b in inputs]
        return cls(
            {k: _stacked([row[k] for row in rows]) for k in (rows[0] if rows else ())},
            named,
            device,
            dtype,
        )

    def __len__(self) -> int:
        return len(next(iter(self.parts.values()))) if self.parts else 0

    @property
    def lengths(self) -> Int[Tensor, " sample"] | None:
        """Tokens of each text; None where all inputs are of one size."""
        mask = self.parts.get(MASK)
        return None if mask is None else mask.ne(0).sum(dim=1)

    def take(self, index: Tensor) -> Any:
        """Return these samples as the model's input, on its device, without needless padding."""
        chosen = {name: part[index] for name, part in self.parts.items()}
        if MASK in chosen:
            used = int(chosen[MASK].ne(0).any(dim=0).nonzero().max()) + 1
            chosen = {name: part[:, :used] for name, part in chosen.items()}
        there: Any = moved(chosen, self.device, self.dtype)
        return there if self.named else there[""]

    def indices(self, size: int) -> list[Tensor]:
        """Return the indices of batches in the order of the set, of texts by length.

        Padding costs as much as words do.
        """
        lengths = self.lengths
        order = torch.arange(len(self)) if lengths is None else lengths.argsort(stable=True)
        return [index for index in order.split(size) if len(index)]


def _stacked(parts: list[Tensor]) -> Tensor:
    if parts[0].dim() == 2:
        longest = max(part.shape[1] for part in parts)
        parts = [pad(part, (0, longest - part.shape[1])) for part in parts]
    return torch.cat([part.cpu() for part in parts])


@dataclass(frozen=True)
class Problem:
    """A model, its data and the objective of the search."""

    module: nn.Module
    anatomy: Anatomy
    id_inputs: Held
    labels: Tensor
    ood_inputs: Held
    objective: Objective
    candidates: tuple[Head, ...]
    """Heads that may go, in the order in which ties are decided."""
    batch_size: int
    together: int
    world: World = field(default_factory=World)

    @property
    def sites(self) -> tuple[Attention, ...]:
        return self.anatomy.sites

    @property
    def precise(self) -> bool:
        """True if rounding is small enough to be bounded."""
        return self.id_inputs.dtype in (torch.float32, torch.float64)

    def left(self, removed: Collection[Head]) -> list[Head]:
        return [head for head in self.candidates if head not in removed]


def measure(problem: Problem, off: Sequence[Head]) -> int:
    """Measure the points of the model with these heads masked, as Algorithm 1 does."""
    ((low, _),) = problem.objective.points(outcomes_of(problem, off))
    return low


def outcomes_of(problem: Problem, off: Sequence[Head]) -> Outcomes:
    """Return the model's outcomes with these heads masked."""
    with ablated(problem.sites, off):
        return outcomes(problem, lambda inputs: problem.module(inputs)[None])


@torch.inference_mode()
def outcomes(
    problem: Problem, run: Callable[[Any], Float[Tensor, "circuit batch klass"]]
) -> Outcomes:
    """Return the outcomes of circuits, from their logits on a batch."""
    objective = problem.objective

    def of_batch(batch: Any, labels: Tensor | None) -> list[Tensor]:
        logits = run(batch).double().cpu()
        answers = [objective.familiarity(logits)]
        return answers if labels is None else [margins(logits, labels), *answers]

    margin, familiar, *ood_certainty = over_batches(problem, of_batch)
    return Outcomes(margin, familiar, *(ood_certainty or [margin[:, :0]]))


def over_batches(
    problem: Problem, of_batch: Callable[[Any, Tensor | None], list[Tensor]]
) -> list[Tensor]:
    """Collect tensors [..., sample] of all ID batches, which have labels, and of all OOD batches.

    They come in the order of the sets. Processes share the batches.
    """
    tensors: list[Tensor] = []
    sets: list[tuple[Held, Tensor | None]] = [(problem.id_inputs, problem.labels)]
    if problem.objective.needs_ood:
        sets.append((problem.ood_inputs, None))
    for held, labels in sets:
        batches = held.indices(problem.batch_size)

        def make(index: Tensor, held: Held = held, labels: Tensor | None = labels) -> list[Tensor]:
            return of_batch(held.take(index), None if labels is None else labels[index])

        parts = problem.world.shared(batches, make)
        order = torch.cat(batches).argsort()
        tensors += [torch.cat(pieces, dim=-1)[..., order] for pieces in zip(*parts, strict=True)]
    return tensors
