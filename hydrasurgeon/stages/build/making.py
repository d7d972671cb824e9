"""From the chosen members to the hydra: which commands make it, and whether tuning them is worth it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import first_batch, moved
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.stages.build.comparing import Choosing, Row, halved
from hydrasurgeon.stages.commands import Command
from hydrasurgeon.stages.build.cost import Budget, stored
from hydrasurgeon.stages.build.search import SCORED, Search
from hydrasurgeon.stages.build.choice import Answers, Pool
from hydrasurgeon.tuning.recipes import load_recipe

class Making:
    """The commands that make these members and the hydra out of the scored backbone."""

    def __init__(self, search: Search, options: BuildOptions, members: Sequence[int], out: Path) -> None:
        self.search, self.options, self.members, self.out = search, options, members, out
        self.source = options.work / SCORED
        self.files = [self._member(i) if i else self.source for i in members]
        self.fields: dict[str, str] = self._behind() if options.tune else {}
        """What the recipe is told, so that only layers behind the trunk are tuned: members still share the others."""
        self.notes: dict[str, None] = {}
        """What was said of the members' tuning, each once."""

    def commands(self, *, tuned: bool) -> list[Command]:
        """Prune, tune, fuse, calibrate; the last writes the output."""
        options, commands, files = self.options, [self._pruning(i) for i in self.members if i], self.files
        if tuned:
            tunings = [self._tuning(file, self.fields) for file in files]
            commands, files = [*commands, *tunings], [_written(each) for each in tunings]
        if len(files) > 1:
            commands.append(self._fusion(files))
            files = [_written(commands[-1])]
        if options.calibrate:
            read = {"data": options.val, "fit_data": options.data, "ood": list(options.ood), **options.names}
            keywords = {**read, "limit": options.limit, "seed": options.seed, **options.running}
            commands.append(Command("calibrate", (files[0],), keywords))
        elif not commands:
            commands.append(Command("score", (self.source,), {"method": "magnitude"}))
        return [*commands[:-1], replace(commands[-1], out=self.out)]

    def make(self, command: Command) -> None:
        """Run it, unless what it writes into the work folder is there; what a training said is then said again."""
        options, state, out = self.options, self.search.state, _written(command)
        last = out == self.out
        if last or not out.exists():
            force = {"force": options.force} if last else {}
            made = command.run(device=options.device, progress=options.progress, **force)
            if command.stage == "finetune" and made.notes:
                state.write(state.read() | {out.name: list(made.notes)})
        if command.stage == "finetune":
            self.notes |= dict.fromkeys(state.read().get(out.name, ()))

    def tuned(self, choosing: Choosing, budget: Budget) -> tuple[list[Row], bool]:
        """The single model and the members given the same steps; whether the hydra of those is worth more."""
        alone, *tunings = self._tuning(self.source, {}), *(self._tuning(file, self.fields) for file in self.files)
        commands = [*(self._pruning(i) for i in self.members if i), alone, *tunings]
        if len(tunings) > 1:
            commands.append(self._fusion([_written(each) for each in tunings]))
        for command in commands:
            self.make(command)
        rows, answers = [], list[Answers]()
        for name, command in (("single model, tuned alike", alone), ("the choice, tuned", commands[-1])):
            answers, cost = self._run(_written(command))
            rows.append(Row(name, len(answers), cost, halved(answers, answers)))
        pool = Pool.gathered(choosing.pool.objective, iter(answers), len(answers))
        better = pool.worth(range(len(answers))) > choosing.pool.worth(self.members)
        return rows, better and budget.allows(rows[1].cost[budget.unit])

    def _member(self, number: int) -> Path:
        return self.options.work / f"{self.search.candidates[number].name}.safetensors"

    def _pruning(self, number: int) -> Command:
        candidate, options = self.search.candidates[number], self.options
        keywords: dict[str, Any] = {**candidate.pruning}
        if candidate.repair:
            keywords |= {"data": options.data, "limit": options.score_limit, **options.names, **options.running}
        return Command("prune", (self.source,), keywords, self._member(number))

    def _behind(self) -> dict[str, str]:
        model = self.search.costs.model
        trunk = model.trunk([self.search.costs.parts[i] for i in self.members])
        if not trunk:
            return {}
        last = load_recipe(str(self.options.tune), {}).last_blocks
        later = len(model.rests) - trunk
        return {"last_blocks": str(later if last is None else min(later, last))}

    def _tuning(self, file: Path, fields: Mapping[str, str]) -> Command:
        """Another recipe of the same name, or one that was edited, gives another file."""
        options, recipe = self.options, str(self.options.tune)
        content = hashlib.sha256(repr(load_recipe(recipe, fields)).encode()).hexdigest()[:8]
        name = f"{file.name.removesuffix('.safetensors')}-{Path(recipe).stem}-{content}"
        keywords: dict[str, Any] = {"recipe": options.tune, "data": options.data, "freeze": "mlp,embedding", "set": fields or None}
        keywords |= {**options.names, "limit": options.limit, "seed": options.seed}
        return Command("finetune", (file,), keywords, options.work / f"{name}.safetensors")

    def _fusion(self, files: Sequence[Path]) -> Command:
        key = hashlib.sha256("\n".join(file.name for file in files).encode()).hexdigest()[:12]
        keywords = {"mlp": "separate", **self.options.names}
        return Command("fuse", tuple(files), keywords, self.options.work / f"hydra-{key}.safetensors")

    def _run(self, file: Path) -> tuple[list[Answers], dict[str, float]]:
        """What a tuned file answers, and what it costs, counted as it runs."""
        cache, whole, opened = self.search.cache, self.search.costs.whole, open_checkpoint(file)
        model = as_classifier(opened, device=self.options.device, dtype=self.options.dtype, lean=True)
        weight = next(model.parameters())
        sample = moved(first_batch(cache.val, model.transform, 1), weight.device, weight.dtype)
        cost = {"macs": macs(model, sample) / whole["macs"], "params": stored(opened) / whole["params"]}
        return cache.answers_of(model), cost


def _written(command: Command) -> Path:
    """The file that a command writes."""
    assert command.out is not None
    return command.out
