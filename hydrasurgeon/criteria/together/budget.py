"""`--budget macs=1.5`: what a hydra may cost, and which combinations of candidates do not cost more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hydrasurgeon.criteria.together.candidates import Candidate
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.heads import Kept
from hydrasurgeon.measuring.planned_cost import CostModel, Part

Unit = Literal["macs", "params", "ms"]
BUDGET = re.compile(r"(macs|params|ms)=([0-9.,e+-]+)")
"""A unit, and one number or several."""
SLACK = 1e-9
"""Relative, so that a hydra of exactly the budget is within it."""


@dataclass(frozen=True)
class Budget:
    unit: Unit
    most: float
    """Times the backbone's macs or params, or milliseconds of a batch on this machine."""

    def __str__(self) -> str:
        return f"{self.unit}={self.most:g}"


def parse_budgets(text: str) -> list[Budget]:
    """One budget, or a rising front of them."""
    match = BUDGET.fullmatch(text)
    hint = "Such as macs=1.5, params=1.2, ms=20, or a list: macs=1,1.25,1.5,2."
    if match is None:
        raise UsageError(f"--budget {text}: no budget", hint=hint)
    try:
        numbers = sorted({float(number) for number in match[2].split(",")})
    except ValueError as error:
        raise UsageError(f"--budget {text}: no budget", hint=hint) from error
    if not all(0 < number < 1e9 for number in numbers):
        raise UsageError(f"--budget {text}: must be above 0", hint=hint)
    return [Budget(match[1], number) for number in numbers]  # type: ignore[arg-type]


def check_enough(members: int | None, candidates: int) -> None:
    """Refuse more members than there are candidates, the backbone among them."""
    if members is not None and candidates < members:
        raise UsageError(
            f"--members {members}: there are {candidates} candidates",
            hint="Ask for fewer members, or more --candidates.",
        )


class Costs:
    """What combinations of candidates cost, in every unit."""

    def __init__(self, model: CostModel, backbone: Kept, candidates: Sequence[Candidate]) -> None:
        self.model = model
        self.backbone = backbone
        self.parts = [self._part(candidate) for candidate in candidates]

    def _part(self, candidate: Candidate) -> Part:
        return Part(candidate.kept, self._own(candidate) if candidate.repairs else {})

    def _own(self, candidate: Candidate) -> Mapping[str, str]:
        """A repair writes W_O and its bias wherever heads are gone; no two candidates have the same."""
        return {
            name: candidate.name
            for tower, rows in self.backbone.items()
            for layer, row in enumerate(rows)
            if candidate.kept[tower][layer] != row
            for name in self.model.sites[tower][layer].names
            if name is not None
        }

    @cached_property
    def whole(self) -> dict[str, float]:
        """The backbone's."""
        part = [Part(self.backbone)]
        return {"macs": self.model.macs(part), "params": self.model.params(part)}

    def cost(self, members: Sequence[int], unit: Unit) -> float:
        """In the budget's terms: times the backbone's, or milliseconds."""
        return self.of([self.parts[i] for i in members], unit)

    def of(self, parts: Sequence[Part], unit: Unit) -> float:
        if unit == "ms":
            return self.model.milliseconds(parts)
        return (self.model.macs if unit == "macs" else self.model.params)(parts) / self.whole[unit]

    def affordable(self, budget: Budget, members: Sequence[int]) -> bool:
        return self.cost(members, budget.unit) <= budget.most * (1 + SLACK)

    def check(self, budget: Budget) -> None:
        """Refuse a budget that nothing is within."""
        least = min(self.cost([i], budget.unit) for i in range(len(self.parts)))
        if least > budget.most * (1 + SLACK):
            raise SurgeryError(
                f"--budget {budget}: the cheapest candidate costs {budget.unit}={least:.3g}",
                hint="Allow more, or try more --candidates.",
            )
