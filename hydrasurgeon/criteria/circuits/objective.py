"""What a circuit is searched for: accuracy, OOD separability or their mean (paper D.1.2), as exact
integers.

    S_acc = Acc(ID),   S_ood = AUROC of an OOD score with OOD positive,   S_avg = ½ (S_acc + S_ood)

Scores are compared as whole numbers of points (a right answer, half a pair), so that ties are ties.
Samples are ranked by how familiar they look: the negative OOD score of one model's logits, in a
form that does not saturate.

    msp         ln p/(1−p) of the most probable class      moves by at most 2 for a logit's 1
    entropy     −ln H(p)                                                     2
    gen         −ln Σ_top-100 p^γ (1−p)^γ                                    2γ
    energy      logsumexp z                                                  1
    max-logit   max z                                                        1

Each orders samples as its score in `decision/scores/on_logits.py` does. Where logits are known up
to ±tolerance only, points come as an interval; for that the last column says how far the number
moves when every logit is off by at most 1. For the entropy it is Σ p_i |ln p_i + H| / H ≤ 2; for
gen each ln p^γ (1−p)^γ moves by γ |1 − 2p| |1 − p|⁻¹ |d ln p| ≤ 2γ, as |d ln p| ≤ 2 (1 − p), and
sorted logits move as logits do; the others have gradients that are shares.

Of many labels an answer is right where all of them are, so its margin is the least of the labels',
±z; a sample looks familiar by its largest logit (msp, max-logit; moves by at most 1), or by Σ ln(1
+ e^z) (energy; by at most 1 a label).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.parts import Anatomy, Attention
from hydrasurgeon.data import moved
from hydrasurgeon.decision.probabilities import yes_or_no
from hydrasurgeon.decision.scores.on_logits import GAMMA, TOP
from hydrasurgeon.heads import Head
from hydrasurgeon.runtime.processes import World

Many = Float[Tensor, "*any klass"]
One = Float[Tensor, "*any"]


def odds(logits: Many) -> One:
    """ln p/(1−p) of the most probable class: higher = looks more familiar."""
    best, where = logits.max(dim=-1, keepdim=True)
    others = logits.scatter(-1, where, -torch.inf)
    return best.squeeze(-1) - others.logsumexp(dim=-1)


def _certainty(logits: Many) -> One:
    """−ln H: of nearly certain samples too, where H itself would be rounded to 0."""
    log_p, against = _log_shares(logits)
    return -(log_p + _log_surprise(log_p, against)).logsumexp(dim=-1)


def _concentration(logits: Many) -> One:
    """−ln of the generalised entropy."""
    if logits.shape[-1] > TOP:
        # The classes that are left out still count in every probability.
        log_p, against = (
            part.gather(-1, logits.topk(TOP, dim=-1).indices) for part in _log_shares(logits)
        )
    else:
        log_p, against = _log_shares(logits)
    return -(GAMMA * (log_p + against)).logsumexp(dim=-1)


def _log_shares(logits: Many) -> tuple[Many, Many]:
    """ln p and ln (1 − p) of every class, each accurate where the other is nearly 0."""
    where = logits.argmax(dim=-1, keepdim=True)
    odd = odds(logits)[..., None]
    log_p = logits - logits.logsumexp(dim=-1, keepdim=True)
    zero = torch.zeros_like(odd)
    against = torch.log1p(-log_p.scatter(-1, where, -torch.inf).exp())
    log_p = log_p.scatter(-1, where, -torch.logaddexp(zero, -odd))
    return log_p, against.scatter(-1, where, -torch.logaddexp(zero, odd))


def _log_surprise(log_p: Many, against: Many) -> Many:
    """ln(−ln p); of p that rounds to 1 it is ln(1 − p)."""
    certain = log_p > -1e-200
    return torch.where(certain, against, (-log_p.clamp(max=-1e-200)).log())


FAMILIARITY: dict[str, tuple[Callable[[Many], One], float]] = {
    "msp": (odds, 2.0),
    "entropy": (_certainty, 2.0),
    "gen": (_concentration, 2 * GAMMA),
    "energy": (lambda logits: logits.logsumexp(dim=-1), 1.0),
    "max-logit": (lambda logits: logits.amax(dim=-1), 1.0),
}
"""OOD score → how familiar one model finds a sample by it (higher = more), and by how much that
moves at most when each logit moves by 1; their names without torch stand in `criteria/__init__.py`.
"""
OF_MANY: dict[str, Callable[[Many], One]] = {
    "msp": lambda logits: logits.amax(dim=-1),
    "max-logit": lambda logits: logits.amax(dim=-1),
    "energy": lambda logits: softplus(logits).sum(dim=-1),
}
"""The same of many labels."""


Kind = Literal["acc", "ood", "avg"]
PARTS = ("margin", "familiar", "foreign")
"""The names of what outcomes hold, in their order."""
# What a tie is won or lost by.
TINY = 1e-30


def margins(
    logits: Float[Tensor, "*any sample klass"], labels: Int[Tensor, " sample *label"]
) -> Float[Tensor, "*any sample"]:
    """Logit of the true class minus the highest other, or the least of many labels': positive =
    right. A tie goes to the first class, as in argmax: to no.
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


@dataclass(frozen=True)
class Outcomes:
    """What an objective needs to know of every sample, for one circuit or for several ([circuit,
    sample]).
    """

    margin: Float[Tensor, "*circuit id"]
    familiar: Float[Tensor, "*circuit id"]
    foreign: Float[Tensor, "*circuit ood"]

    def one(self) -> Outcomes:
        """A single circuit's as those of several."""
        return Outcomes(self.margin[None], self.familiar[None], self.foreign[None])

    def map(self, change: Callable[..., Tensor], *others: Outcomes) -> Outcomes:
        """Each part changed, together with the same part of others."""
        return Outcomes(
            *(change(*(getattr(one, name) for one in (self, *others))) for name in PARTS)
        )


class Points(NamedTuple):
    """Between how many and how many points a circuit has."""

    low: int
    high: int


def pairs_above(
    high: Float[Tensor, "circuit a"], low: Float[Tensor, "circuit b"], gap: float = 0.0
) -> Int[Tensor, " circuit"]:
    """How many pairs have `high` > `low` + gap; the shorter side is the one that is sorted."""
    if low.shape[-1] <= high.shape[-1]:
        ordered = low.sort(dim=-1).values
        return torch.searchsorted(ordered, (high - gap).contiguous(), right=False).sum(dim=-1)
    ordered = (high - gap).sort(dim=-1).values
    below = torch.searchsorted(ordered, low.contiguous(), right=True)
    return high.shape[-1] * low.shape[-1] - below.sum(dim=-1)


@dataclass(frozen=True)
class Objective:
    """An objective on sets of this size."""

    kind: Kind
    id_rows: int
    ood_rows: int
    ood_score: str = "msp"
    labels: int = 0
    """How many labels a sample may have; 0 where it has one class."""

    def familiarity(self, logits: Float[Tensor, "*any klass"]) -> Float[Tensor, "*any"]:
        """How familiar samples look: what pairs are compared by."""
        if self.labels:
            return OF_MANY[self.ood_score](logits)
        return FAMILIARITY[self.ood_score][0](yes_or_no(logits))

    def gap(self, tolerance: float) -> float:
        """By how much two samples must differ for the order to be sure, when logits may be off by
        `tolerance`.
        """
        moves = (
            (self.labels if self.ood_score == "energy" else 1)
            if self.labels
            else FAMILIARITY[self.ood_score][1]
        )
        return 2 * moves * tolerance

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
        """Points of each circuit, when logits may be off by `tolerance`: margins by twice that,
        pairs by the gap.
        """
        low = self.per_answer * (outcomes.margin > 2 * tolerance).sum(dim=-1)
        high = self.per_answer * (outcomes.margin >= -2 * tolerance).sum(dim=-1)
        if self.needs_ood:
            gap = self.gap(tolerance)
            pairs = self.id_rows * self.ood_rows
            right = pairs_above(outcomes.familiar, outcomes.foreign, gap)
            wrong = pairs_above(outcomes.foreign, outcomes.familiar, gap)
            if tolerance:  # what is not surely wrong may be right
                low = low + 2 * right
                high = high + 2 * (pairs - wrong)
            else:  # what is neither is a tie, and counts half
                low = low + right + pairs - wrong
                high = low
        return [Points(int(a), int(b)) for a, b in zip(low, high, strict=True)]

    def best_left(
        self, wrong: Int[Tensor, " circuit"], discordant: Int[Tensor, " circuit"]
    ) -> Int[Tensor, " circuit"]:
        """Points a circuit can still reach after that many surely wrong answers and surely
        discordant pairs.
        """
        return self.total - self.per_answer * wrong - (2 * discordant if self.needs_ood else 0)


MASK = "attention_mask"
"""Under which name texts say which of their tokens are real."""


@dataclass(frozen=True)
class Held:
    """All inputs of one set: a tensor, or tensors by name as text models take them."""

    parts: Mapping[str, Tensor]
    named: bool
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, batches: Iterable[Any], device: torch.device, dtype: torch.dtype) -> Held:
        """Batches may be padded to different lengths; the shorter ones are padded on (and masked)."""
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
        """These samples as the model's input, on its device, without padding that none of them
        needs.
        """
        chosen = {name: part[index] for name, part in self.parts.items()}
        if MASK in chosen:
            used = int(chosen[MASK].ne(0).any(dim=0).nonzero().max()) + 1
            chosen = {name: part[:, :used] for name, part in chosen.items()}
        there: Any = moved(chosen, self.device, self.dtype)
        return there if self.named else there[""]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Any]]:
        """(index, inputs) in the order of the set."""
        for index in torch.arange(len(self)).split(size):
            if len(index):
                yield index, self.take(index)


def _stacked(parts: list[Tensor]) -> Tensor:
    if parts[0].dim() == 2:
        longest = max(part.shape[1] for part in parts)
        parts = [pad(part, (0, longest - part.shape[1])) for part in parts]
    return torch.cat([part.cpu() for part in parts])


@dataclass(frozen=True)
class Problem:
    """A model, its data and what is to be found."""

    module: nn.Module
    anatomy: Anatomy
    id_inputs: Held
    labels: Tensor
    ood_inputs: Held
    objective: Objective
    candidates: tuple[Head, ...]
    """In the order in which ties are decided."""
    batch_size: int
    together: int
    world: World = field(default_factory=World)
    tick: Callable[[float], None] = lambda _: None

    @property
    def sites(self) -> tuple[Attention, ...]:
        return self.anatomy.sites

    @property
    def precise(self) -> bool:
        """Whether rounding is small enough to be bounded."""
        return self.id_inputs.dtype in (torch.float32, torch.float64)

    @property
    def lengths(self) -> tuple[Tensor | None, Tensor | None]:
        """How long ID and OOD texts are."""
        return self.id_inputs.lengths, self.ood_inputs.lengths

    def left(self, removed: Sequence[Head]) -> list[Head]:
        gone = set(removed)
        return [head for head in self.candidates if head not in gone]


def measure(problem: Problem, off: Sequence[Head]) -> int:
    """Points of the model with these heads masked, as Algorithm 1 measures them."""
    ((low, _),) = problem.objective.points(outcomes_of(problem, off).one())
    return low


@torch.inference_mode()
def outcomes_of(problem: Problem, off: Sequence[Head]) -> Outcomes:
    """What the model predicts with these heads masked. Processes share the batches."""
    objective = problem.objective
    with ablated(problem.sites, off):
        logits = _logits(problem, problem.id_inputs)
        foreign = torch.zeros(0)
        if objective.needs_ood:
            foreign = objective.familiarity(_logits(problem, problem.ood_inputs))
    return Outcomes(margins(logits, problem.labels), objective.familiarity(logits), foreign)


def _logits(problem: Problem, inputs: Held) -> Tensor:
    world = problem.world
    mine = []
    for number, (_, batch) in enumerate(inputs.batches(problem.batch_size)):
        if number % world.size == world.rank:
            mine.append((number, problem.module(batch).double().cpu()))
    everyone = [pair for part in world.gather(mine) for pair in part]
    return torch.cat([logits for _, logits in sorted(everyone, key=lambda pair: pair[0])])
