"""build's cascades: a dearer hydra of which one member answers alone where it is sure, for the
price of a cheaper one.

The member that is right most often answers first. As many rows as the budget pays for go on to all
members, those of which the first is least sure, of many labels of any one: c_first + share · (c_all
− c_first) = budget. Each half of the samples chooses the members, the first of them and the
threshold for the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hydrasurgeon.files.decided import LOGITS
from hydrasurgeon.stages.build.choice import Answers, Choice, Estimate
from hydrasurgeon.stages.build.comparing import Choosing, at_its_temperature
from hydrasurgeon.stages.build.cost import Budget
from hydrasurgeon.statistics.metrics import accuracy
from hydrasurgeon.statistics.probabilities import TINY


@dataclass(frozen=True)
class Cascaded:
    """What a hydra answers as a cascade."""

    answers: Answers
    """ln of its probabilities, as if one member had said it."""
    macs: float
    """On average, times the backbone's."""
    judged: Estimate
    within: Budget


def cascaded(
    choosing: Choosing, choice: Choice, judged: Estimate, budget: Budget
) -> Cascaded | None:
    """What was chosen for a dearer budget, as a cascade within this one; None where it cannot be
    one.
    """
    objective, search = choosing.pool.objective, choosing.search
    # Rows that different members answer have nothing but probabilities in common.
    mixed = LOGITS[objective.score].terms == "probabilities"
    possible = choosing.calibrated and budget.unit == "macs" and mixed
    if not possible or any(len(each.members) < 2 for each in (choice, *judged.choices)):
        return None
    if min(search.cost([member], "macs") for member in choice.members) >= budget.most:
        return None
    parts, prices = list[Answers](), list[float]()
    for half, choice in zip((1, 0), judged.choices, strict=True):
        members = [at_its_temperature(each) for each in choosing.read(choice.members)]
        fitting, judging = ([each.halves()[at] for each in members] for at in (1 - half, half))
        first = max(range(len(members)), key=lambda at, fitting=fitting: _right(fitting[at]))  # type: ignore[misc]
        alone, whole = (
            search.cost([choice.members[first]], "macs"),
            search.cost(choice.members, "macs"),
        )
        share = min(1.0, (budget.most - alone) / (whole - alone))
        if share <= 0:
            return None
        each = fitting[first].each
        threshold = _surest(fitting[first].val, each)[::each].quantile(share)
        parts.insert(0, _mixed(judging, first, threshold))
        going = float((_surest(judging[first].val, each) <= threshold).double().mean())
        prices.append(alone + going * (whole - alone))
    worth = [objective.plain(objective.terms(part), 1, part.labels) for part in parts]
    foreign = tuple(torch.cat(rows) for rows in zip(*(part.foreign for part in parts), strict=True))
    val, labels = (
        torch.cat(rows) for rows in zip(*((p.val, p.labels) for p in parts), strict=True)
    )
    answers = Answers(val, labels, foreign, parts[0].each)
    return Cascaded(
        answers, sum(prices) / 2, Estimate(sum(worth) / 2, judged.optimism, judged.choices), budget
    )


def _mixed(members: Sequence[Answers], first: int, threshold: Tensor) -> Answers:
    """The first member's probabilities where it is sure, else the mean of all."""
    sets = []
    for rows in zip(*(each.sets for each in members), strict=True):
        probs = torch.stack(rows).softmax(dim=-1)
        sure = _surest(rows[first], members[0].each) > threshold
        sets.append(
            torch.where(sure[:, None], probs[first], probs.mean(dim=0)).clamp_min(TINY).log()
        )
    return replace(members[0], val=sets[0], foreign=tuple(sets[1:]))


def _surest(logits: Tensor, each: int) -> Tensor:
    """How sure each row is: as sure as the least sure of its sample's."""
    sure = logits.softmax(dim=-1).amax(dim=-1)
    return sure.unflatten(0, (-1, each)).amin(dim=1).repeat_interleave(each)


def _right(answers: Answers) -> float:
    return accuracy(answers.val, answers.labels)
