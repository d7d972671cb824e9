"""From the chosen members to the hydra: which commands make it, and whether tuning them is worth
it.
"""

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
from hydrasurgeon.stages.build.choice import Answers, Pool
from hydrasurgeon.stages.build.comparing import Choosing, Row, halved
from hydrasurgeon.stages.build.cost import Budget, stored
from hydrasurgeon.stages.build.ladder import recipe_text
from hydrasurgeon.stages.build.search import Search
from hydrasurgeon.stages.build.work import perform
from hydrasurgeon.stages.commands import Command
from hydrasurgeon.tuning.recipes import load_recipe


class Making:
    """The commands that make these members and the hydra out of the scored backbone."""

    def __init__(
        self,
        search: Search,
        options: BuildOptions,
        members: Sequence[int],
        out: Path,
        *,
        cascade: float | None = None,
    ) -> None:
        self.search, self.options, self.members, self.out = search, options, members, out
        self.cascade = cascade
        """What a cascade of them may cost; None: all members always run."""
        self.files = [search.file(i) for i in members]
        self.fields: dict[str, str] = (
            self._behind() if options.tune and search.ladder is None else {}
        )
        """What the recipe is told, so that only layers behind the trunk are tuned: members still
        share the others.
        """
        self.notes: dict[str, None] = {}
        """What was said of the members' tuning, each once."""
        self.answers: list[Answers] = []
        """What the tuned choice answers."""

    def commands(self, *, tuned: bool) -> list[Command]:
        """Prune, tune, fuse, calibrate; the last writes the output."""
        options, files = self.options, self.files
        commands = [command for i in self.members for command in self.search.making(i)]
        if tuned:
            tunings = [self._tuning(file, self.fields) for file in files]
            commands, files = [*commands, *tunings], [_written(each) for each in tunings]
        if len(files) > 1:
            commands.append(self._fusion(files))
            files = [_written(commands[-1])]
        if options.calibrate:
            # Scores of many labels are functions of the logits.
            fit = (
                {}
                if self.search.backbone.manifest.model.problem == "multi_label"
                else {"fit_data": options.data}
            )
            read = {"data": options.val, **fit, "ood": list(options.ood), **options.names}
            keywords = {**read, "limit": options.limit, "seed": options.seed, **options.running}
            keywords |= {} if self.cascade is None else {"cascade": True, "budget": self.cascade}
            commands.append(Command("calibrate", (files[0],), keywords))
        elif not commands or (self.search.ladder is not None and len(files) == 1):
            # The file in the work folder is there: a copy of it, which carries the cheapest scores.
            commands.append(Command("score", (files[0],), {"method": "magnitude"}))
        return [*commands[:-1], replace(commands[-1], out=self.out)]

    def make(self, command: Command) -> None:
        """Run it, unless what it writes into the work folder is there; what a training said is then
        said again.
        """
        options = self.options
        if command.out == self.out and self.out.parent != options.work:
            command.run(device=options.device, progress=options.progress, force=options.force)
        else:
            notes = perform(command, options, self.search.state)
            self.notes |= dict.fromkeys(notes if command.stage == "finetune" else ())

    def tuned(self, choosing: Choosing, budget: Budget) -> tuple[list[Row], bool]:
        """The single model and the members given the same steps; whether the hydra of those is
        worth more.
        """
        alone, *tunings = (
            self._tuning(self.search.file(0), {}),
            *(self._tuning(file, self.fields) for file in self.files),
        )
        prunings = [command for i in self.members for command in self.search.making(i)]
        commands = [*prunings, alone, *tunings]
        if len(tunings) > 1:
            commands.append(self._fusion([_written(each) for each in tunings]))
        for command in commands:
            self.make(command)
        rows, answers = [], list[Answers]()
        for name, command in (
            ("single model, tuned alike", alone),
            ("the choice, tuned", commands[-1]),
        ):
            answers, cost = self._run(_written(command))
            rows.append(Row(name, len(answers), cost, halved(answers, answers)))
        self.answers = answers
        pool = Pool.gathered(choosing.pool.objective, iter(answers), len(answers))
        better = pool.worth(range(len(answers))) > choosing.pool.worth(self.members)
        return rows, better and budget.allows(rows[1].cost[budget.unit])

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
        content = hashlib.sha256(recipe_text(recipe, fields).encode()).hexdigest()[:8]
        name = f"{file.name.removesuffix('.safetensors')}-{Path(recipe).stem}-{content}"
        keywords: dict[str, Any] = {
            "recipe": options.tune,
            "data": options.data,
            "freeze": "mlp,embedding",
            "set": fields or None,
        }
        keywords |= {**options.names, "limit": options.limit, "seed": options.seed}
        return Command("finetune", (file,), keywords, options.work / f"{name}.safetensors")

    def _fusion(self, files: Sequence[Path]) -> Command:
        key = hashlib.sha256("\n".join(file.name for file in files).encode()).hexdigest()[:12]
        keywords = {"mlp": "separate", **self.options.names}
        return Command(
            "fuse", tuple(files), keywords, self.options.work / f"hydra-{key}.safetensors"
        )

    def _run(self, file: Path) -> tuple[list[Answers], dict[str, float]]:
        """What a tuned file answers, and what it costs, counted as it runs."""
        cache, whole, opened = self.search.cache, self.search.costs.whole, open_checkpoint(file)
        model = as_classifier(
            opened, device=self.options.device, dtype=self.options.dtype, lean=True
        )
        weight = next(model.parameters())
        sample = moved(first_batch(cache.val, model.transform, 1), weight.device, weight.dtype)
        cost = {
            "macs": macs(model, sample) / whole["macs"],
            "params": stored(opened) / whole["params"],
        }
        return cache.answers_of(model), cost


def _written(command: Command) -> Path:
    """The file that a command writes."""
    assert command.out is not None
    return command.out
