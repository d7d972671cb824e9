"""build's choice: the members worth most within each budget, what else there is beside them, and the commands to make
them."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.criteria.together.answers import answers_of
from hydrasurgeon.criteria.together.choice import Choice, Estimate, Pool, choose, estimate
from hydrasurgeon.criteria.together.objective import Answers, guarded, objective_of
from hydrasurgeon.criteria.together.row import Row, averaged, measured
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.stages.commands import Command, script

if TYPE_CHECKING:
    from hydrasurgeon.criteria.together.budget import Budget
    from hydrasurgeon.stages.build import Building
    from hydrasurgeon.stages.build_search import Search


@dataclass(frozen=True)
class Outcome:
    """What was chosen for the largest budget, and everything beside it."""

    rows: tuple[Row, ...]
    front: tuple[Row, ...]
    labels: tuple[str, ...]
    estimate: float
    optimism: float
    commands: tuple[Command, ...]
    """That make it out of the scored backbone; the last writes the output."""
    script: str
    notes: tuple[str, ...] = ()


def chosen(search: Search, arguments: Building, *, work: Path, out: Path) -> Outcome:
    """Choose for every budget, compare with what could be had otherwise, and plan how it is made."""
    choosing = _Choosing(search, arguments)
    choices = [(budget, *choosing.within(budget)) for budget in arguments.budgets]
    front = [choosing.row(str(budget), choice, judged) for budget, choice, judged in choices]
    budget, choice, judged = choices[-1]
    making = _Making(search, arguments, work, out)
    rows, built = choosing.references(budget), choosing.row("what was built", choice, judged)
    tuned = None
    if arguments.tune is not None:
        more, tuned = making.tuned(choice.members, choosing, budget)
        rows += [*more, replace(built, name="the choice, not tuned")]
    built = built if tuned is None else replace(tuned.row, name="what was built")
    commands, notes = making.commands(choice.members, tuned=tuned is not None)
    notes = (*making.tuning_notes, *notes)
    return Outcome(
        (*rows, built),
        tuple(front),
        tuple(search.candidates[i].label for i in choice.members),
        judged.value,
        judged.optimism,
        tuple(commands),
        _script([*search.commands, *commands], work=work, out=out),
        notes,
    )


class _Choosing:
    """The candidates' answers in the terms of the objective."""

    def __init__(self, search: Search, arguments: Building) -> None:
        self.search, self.arguments = search, arguments
        count = len(search.candidates)
        single = measured([search.cache.read(search.candidates[0])])
        floor = single["accuracy"] - arguments.max_drop / 100
        self.objective = guarded(objective_of(arguments.goal), floor)
        answers = (search.cache.read(candidate) for candidate in search.candidates)
        self.pool = Pool.gathered(self.objective, answers, count)

    def within(self, budget: Budget) -> tuple[Choice, Estimate]:
        """The choice on all samples, and what such a choice is worth on others."""
        how: dict[str, Any] = {
            "pools": self.search.pools,
            "members": self.arguments.wanted,
            "affordable": partial(self.search.costs.affordable, budget),
        }
        choice, judged = choose(self.pool, **how), estimate(self.pool, **how)
        if choice is None or judged is None:
            raise SurgeryError(
                f"--members {self.arguments.members}: no {self.arguments.members} candidates cost at most {budget}",
                hint="Allow more, ask for fewer members, or try more --candidates.",
            )
        return choice, judged

    def read(self, members: Sequence[int]) -> list[Answers]:
        return [self.search.cache.read(self.search.candidates[i]) for i in members]

    def row(self, name: str, choice: Choice, judged: Estimate) -> Row:
        """Measured where it was not chosen: each half of the samples judges the other half's choice."""
        return Row(name, len(choice.members), self.cost(choice.members), self.worth(judged), crossed=True)

    def worth(self, judged: Estimate) -> dict[str, float]:
        """What such a choice is worth on the samples of the other half."""
        parts = []
        for half, halfs in zip((1, 0), judged.choices, strict=True):
            answers = [each.halves() for each in self.read(halfs.members)]
            parts.append(measured([halves[half] for halves in answers]))
        return averaged(parts)

    def plain(self, name: str, members: Sequence[int]) -> Row:
        """Measured on the same halves, where nothing was chosen."""
        answers = [each.halves() for each in self.read(members)]
        parts = [measured([halves[half] for halves in answers]) for half in (1, 0)]
        return Row(name, len(members), self.cost(members), averaged(parts))

    def cost(self, members: Sequence[int]) -> dict[str, float]:
        costs = self.search.costs
        units = ("macs", "params", *(("ms",) if costs.model.time is not None else ()))
        return {unit: costs.cost(members, unit) for unit in units}  # type: ignore[arg-type]

    def references(self, budget: Budget) -> list[Row]:
        """The single model, the best single member, and the paper's recipe."""
        rows = [self.plain("single model", [0])]
        pruned = [i for i in range(1, len(self.search.candidates)) if i not in self.search.paper]
        how: dict[str, Any] = {"pools": [pruned], "members": 1, "affordable": lambda members: True}
        one, judged = choose(self.pool, **how), estimate(self.pool, **how)
        if one is not None and judged is not None:
            rows.append(self.row("best single member", one, judged))
        if self.search.paper:
            rows.append(self.plain("the paper's recipe", self.search.paper))
        return rows


@dataclass(frozen=True)
class _Tuned:
    """The tuned hydra that is worth more than the one that is not."""

    row: Row
    answers: list[Answers]


class _Making:
    """The commands that make members and the hydra."""

    def __init__(self, search: Search, arguments: Building, work: Path, out: Path) -> None:
        self.search, self.arguments, self.work, self.out = search, arguments, work, out
        self.source = work / "scored.safetensors"
        self.tuning_notes: dict[str, None] = {}
        """What was said of the members' tuning, each once."""

    def commands(self, members: Sequence[int], *, tuned: bool) -> tuple[list[Command], tuple[str, ...]]:
        """Prune, tune, fuse, calibrate; what is already there is not made again."""
        pruned = [self.pruning(i) for i in members if i]
        files = [self.source if not i else self.member(i) for i in members]
        commands = list(pruned)
        if tuned:
            behind = self.behind(members)
            commands += [self.tuning(file, behind) for file in files]
            files = [self.tuned_name(file, behind) for file in files]
        calibrate = self.arguments.calibrate
        last = files[0]
        if len(files) > 1:
            fusing = self.fusion(files)
            commands.append(fusing if calibrate else replace(fusing, out=self.out))
            last = fusing.out or last
        notes: tuple[str, ...] = ()
        if calibrate:
            commands.append(self.calibration(last))
            notes = (
                (
                    "the decision state was fitted on --val, by which the members were chosen: run calibrate on fresh"
                    " data for the full guarantee"
                ),
            )
        elif len(files) == 1 and commands:
            commands[-1] = replace(commands[-1], out=self.out)
        elif len(files) == 1:
            commands.append(Command("score", (self.source,), {"method": "magnitude"}, self.out))
        return commands, notes

    def member(self, number: int) -> Path:
        return self.work / f"{self.search.candidates[number].name}.safetensors"

    def pruning(self, number: int) -> Command:
        candidate = self.search.candidates[number]
        keywords: dict[str, Any] = {**candidate.pruning}
        if candidate.repairs:
            keywords |= {
                "data": self.arguments.data,
                "limit": self.arguments.score_limit,
                **self.arguments.names,
                **self.arguments.running,
            }
        else:
            del keywords["compensate"]
        return Command("prune", (self.source,), keywords, self.member(number))

    def behind(self, members: Sequence[int]) -> dict[str, str]:
        """Fields of the recipe that let a trunk be: only the layers in which members differ are tuned, so that they
        still share the others."""
        from hydrasurgeon.tuning.recipes import load_recipe

        model = self.search.costs.model
        trunk = model.trunk([self.search.costs.parts[i] for i in members])
        if not trunk:
            return {}
        last = load_recipe(str(self.arguments.tune), {}).last_blocks
        later = len(model.layers) - trunk
        return {"last_blocks": str(later if last is None else min(later, last))}

    def tuned_name(self, file: Path, fields: Mapping[str, str]) -> Path:
        """Another recipe of the same name, or one that was edited, gives another file."""
        from hydrasurgeon.tuning.recipes import load_recipe

        recipe = str(self.arguments.tune)
        content = hashlib.sha256(repr(load_recipe(recipe, fields)).encode()).hexdigest()[:8]
        name = f"{file.name.removesuffix('.safetensors')}-{Path(recipe).stem}-{content}"
        return self.work / f"{name}.safetensors"

    def tuning(self, file: Path, fields: Mapping[str, str]) -> Command:
        arguments = self.arguments
        keywords = {
            "recipe": arguments.tune,
            "data": arguments.data,
            "freeze": "mlp,embedding",
            "set": fields or None,
            **arguments.names,
            "limit": arguments.limit,
            "seed": arguments.seed,
        }
        return Command("finetune", (file,), keywords, self.tuned_name(file, fields))

    def calibration(self, source: Path) -> Command:
        arguments = self.arguments
        keywords = {
            "data": arguments.val,
            "fit_data": arguments.data,
            "ood": list(arguments.ood),
            **arguments.names,
            "limit": arguments.limit,
            "seed": arguments.seed,
            **arguments.running,
        }
        return Command("calibrate", (source,), keywords, self.out)

    def fusion(self, files: Sequence[Path]) -> Command:
        key = hashlib.sha256("\n".join(file.name for file in files).encode()).hexdigest()[:12]
        out = self.work / f"hydra-{key}.safetensors"
        keywords = {"mlp": "separate", **self.arguments.names}
        return Command("fuse", tuple(files), keywords, out)

    def tuned(self, members: Sequence[int], choosing: _Choosing, budget: Budget) -> tuple[list[Row], _Tuned | None]:
        """The single model and the members given the same steps; the hydra of those where it is worth more, within the
        budget."""
        behind = self.behind(members)
        files = {i: self.source if not i else self.member(i) for i in members}
        tunings = [self.tuning(self.source, {}), *(self.tuning(files[i], behind) for i in members)]
        for command in [*(self.pruning(i) for i in members if i), *tunings]:
            self.make(command)
        single = self.tuned_name(self.source, {})
        ours = [self.tuned_name(files[i], behind) for i in members]
        made = ours[0]
        if len(ours) > 1:
            fusing = self.fusion(ours)
            self.make(fusing)
            assert fusing.out is not None
            made = fusing.out
        rows, worth = [], []
        answers: list[Answers] = []
        for name, file in (("single model, tuned alike", single), ("the choice, tuned", made)):
            answers, cost = self._run(file)
            rows.append(Row(name, len(answers), cost, _halved(answers)))
            pool = Pool.gathered(choosing.objective, iter(answers), len(answers))
            worth.append(pool.worth(range(len(answers))))
        better = worth[1] > choosing.pool.worth(members)
        fits = budget.unit != "ms" and rows[1].cost[budget.unit] <= budget.most * (1 + 1e-9)
        return rows, _Tuned(rows[1], answers) if better and fits else None

    def _run(self, file: Path) -> tuple[list[Answers], dict[str, float]]:
        """What a tuned file answers, and what it costs, counted as it runs."""
        from hydrasurgeon.data import Batches, moved
        from hydrasurgeon.measuring.cost import macs
        from hydrasurgeon.measuring.planned_cost import stored
        from hydrasurgeon.runtime.classifier import as_classifier

        trial, whole = self.search.cache.trial, self.search.costs.whole
        opened = open_checkpoint(file)
        model = as_classifier(opened, device=trial.run.device, dtype=trial.run.dtype, lean=True)
        weight = next(model.parameters())
        batch = next(iter(Batches(trial.val, model.transform, batch_size=1, workers=0)))
        sample = moved(batch.inputs, weight.device, weight.dtype)
        cost = {"macs": macs(model, sample) / whole["macs"], "params": stored(opened) / whole["params"]}
        return answers_of(model, trial), cost

    def make(self, command: Command) -> None:
        """Run it, unless what it writes into the work folder is there; what a training said is then said again."""
        if command.out is None:
            return
        state, name = self.search.state, command.out.name
        if not command.out.exists():
            made = command.run(device=self.arguments.device, progress=self.arguments.progress)
            if command.stage == "finetune" and made.notes:
                position = state.read()
                notes = position.notes | {name: list(made.notes)}
                state.write(position.model_copy(update={"notes": notes}))
        if command.stage == "finetune":
            self.tuning_notes |= dict.fromkeys(state.read().notes.get(name, ()))


def _script(commands: Sequence[Command], *, work: Path, out: Path) -> str:
    """All commands as a shell script; what they leave on the way goes into $work."""
    begin = [f"work=${{WORK:-{shlex.quote(work.name)}.again}}", 'mkdir -p "$work"']
    return script(f"Makes {out.name}.", [*begin, *(command.line(work, "work") for command in commands)])


def _halved(members: Sequence[Answers]) -> dict[str, float]:
    """What members are worth, on each half of the samples."""
    halves = [each.halves() for each in members]
    return averaged([measured([each[half] for each in halves]) for half in (1, 0)])
