"""Costs of a build's candidates: multiply-adds, parameters and measured latency, in each engine."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

from hydrasurgeon.building.budgets import SMALLEST, UNITS, Budget, ModelSizes
from hydrasurgeon.building.clock import Clock, Taken
from hydrasurgeon.building.members import MemberModel
from hydrasurgeon.building.table import Candidate, Entry
from hydrasurgeon.building.work import Workshop
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.decision.text_model import Reading
from hydrasurgeon.engines import INEXACT
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.files.resumable import content_hash
from hydrasurgeon.lookup import format_number
from hydrasurgeon.options.command_line import CommandLine
from hydrasurgeon.options.making import BuildOptions

SLOWER = 0.7
"""Fraction of a size whose multiply-adds are tried too, because time falls more slowly."""
APART = 1.25
"""Smallest ratio of two sizes that are tried for budgets of time."""
BY_CHANCE = 1.05
"""Ratio by which two measurements of one latency may differ."""


@dataclass
class CandidateCosts:
    """Costs of candidates, and the engines that can run them."""

    options: BuildOptions
    workshop: Workshop
    """Makes the hydras that are timed."""
    clock: Clock | None
    """There for a budget of time."""
    read_words: Callable[[], Reading]
    """Function that returns the bag-of-words model, for its latency."""

    def times(self, members: Sequence[MemberModel]) -> Mapping[str, Taken]:
        """Return the latency of the members one after another, in each engine."""
        assert self.clock is not None
        latencies = [
            self.clock.times(
                member.shape, partial(open_checkpoint, member.file, arch=self.options.arch)
            )
            for member in members
        ]
        return {
            engine: reduce(operator.add, (times[engine] for times in latencies))
            for engine in self.clock.engines
        }

    @property
    def words_time(self) -> Taken:
        """Latency of the bag-of-words model."""
        assert self.clock is not None
        return self.clock.words(self.read_words)

    def in_engines(self, choice: Candidate) -> list[Candidate]:
        """Return a choice in the fastest float32 engine, and in 8 bits if this machine can run
        that.
        """
        if self.clock is None:
            return [choice]
        times = self.times(choice.members)
        float32 = [name for name in times if name not in INEXACT]
        fastest = min(float32, key=lambda name: times[name].time)
        choices = [replace(choice, engine=fastest, assumed=len(choice.members) > 1)]
        # Plain rivals are few: they answer in 8 bits at once.
        assumed = not choice.name or len(choice.members) > 1
        inexact = [name for name in times if name in INEXACT]
        return choices + [replace(choice, engine=name, assumed=assumed) for name in inexact]

    def most_on(self, ways: Sequence[Candidate], budget: Budget) -> tuple[Candidate, float]:
        """Return the fastest of the engines for one model, and the fraction of samples that may go on
        to it from the bag-of-words model.
        """
        times = self.times(ways[0].members)
        fastest = min(ways, key=lambda way: times[way.engine].time)
        # What is written may take longer by chance.
        left = budget.most / BY_CHANCE - self.words_time.time
        return fastest, left / times[fastest.engine].time

    def pays(self, choice: Candidate, budget: Budget) -> bool:
        """Return True if a choice could be within a budget, before it has answered anything."""
        if choice.words == "cascade":
            return True
        return budget.allows(self.cost(replace(choice, assumed=True))[budget.unit])

    def cost(self, choice: Candidate, on: float = 1.0) -> dict[str, float]:
        """Return the multiply-adds and parameters of a choice, with a clock also its time and
        milliseconds; `on` is the fraction of samples that its members answer.
        """
        cost: dict[str, float] = {
            unit: sum(member.cost[unit] for member in choice.members) for unit in UNITS
        }
        cost["macs"] *= on
        if self.clock is None:
            return cost
        if choice.assumed or len(choice.members) == 1:
            latency = self.times(choice.members)[choice.engine]
        else:
            fusion = fusion_of(choice.members, self.options)
            self.workshop.make(fusion.making)
            latency = self.clock.times(fusion.file.name, partial(open_checkpoint, fusion.file))[
                choice.engine
            ]
        latency *= on
        if choice.words != "off":
            latency += self.words_time
        return {**cost, "time": latency.time, "ms": latency.ms}

    def time_written(self, entry: Entry, file: Path, budget: Budget) -> None:
        """Measure what was made for a budget of time, which counts in place of what its parts take;
        SurgeryError where it takes too long.
        """
        if self.clock is None:
            return
        latency = self.clock.written(file.name, file, entry.choice.engine)
        late = latency.time - entry.cost["time"]
        entry.cost.update(time=latency.time, ms=latency.ms)
        if latency.time <= budget.most * BY_CHANCE:
            return
        if entry.choice.words == "cascade" and late > 0:
            self.clock.slow_words(late)  # so that fewer go on
        raise SurgeryError(
            f"--budget {budget}: the best candidate takes time={format_number(latency.time, 2)} once it is written",
            hint="Give a larger --budget.",
        )


def in_macs(budgets: Sequence[Budget], sizes: ModelSizes, clock: Clock | None) -> Sequence[Budget]:
    """Return budgets of multiply-adds for the sizes: for budgets of time, what these pay in the
    fastest engine.
    """
    if clock is None:
        return budgets
    fastest = min(latency.time for latency in clock.unpruned().values())
    costs: list[Budget] = []
    for most in sorted(
        part * budget.most / fastest for budget in budgets for part in (SLOWER, 1.0)
    ):
        budget = Budget("macs", most)
        if costs and most < APART * costs[-1].most:
            continue
        if most >= 1 or sizes.filling(budget) is not None:
            costs.append(budget)
    return costs or [Budget("macs", SMALLEST)]


def fusion_of(members: Sequence[MemberModel], options: BuildOptions) -> MemberModel:
    """Return one hydra of several members."""
    key = content_hash({str(n): member.file.name for n, member in enumerate(members)}, "")[:12]
    file = options.work / f"hydra-{key}{SUFFIX}"
    words = {"mlp": "separate", **options.names}
    fuse = CommandLine("fuse", tuple(member.file for member in members), words, file)
    making = (*(command for member in members for command in member.making), fuse)
    return MemberModel(file.stem, file, {}, making=making)
