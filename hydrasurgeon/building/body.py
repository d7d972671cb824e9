"""build of a body without a classifier: a probe first, then models that are tuned from there, each
by a seed of its own; what follows is chosen from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.building.cache import BODY, State, Workshop
from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.data import open_data
from hydrasurgeon.files.atomic import make_folder
from hydrasurgeon.options.commands import Command
from hydrasurgeon.options.making import BuildOptions

SEEDS = 3
"""Models that are tuned where no number is given."""


def fitting(source: Path | str, options: BuildOptions, problem: str | None = None) -> Command:
    """What fits a probe to a frozen body."""
    words: dict[str, Any] = {
        "recipe": "probe",
        "set": None if problem is None else {"problem": problem},
        **_learning(options),
        "seed": options.seed,
        "batch_size": None,
    }
    return Command("finetune", (source,), words, options.work / "probe.safetensors")


def _learning(options: BuildOptions) -> dict[str, Any]:
    return {
        "data": options.data,
        "val": options.val,
        **options.names,
        "limit": options.limit,
    }


@dataclass(frozen=True)
class Body:
    """A body, and what makes models of it."""

    opened: Single
    options: BuildOptions

    @property
    def probe(self) -> Command:
        return fitting(self.options.paths[0], self.options)

    @property
    def tunings(self) -> list[Command]:
        """What tunes a model by each seed; each starts as the probe, which may be what is kept."""
        options = self.options
        return [
            Command(
                "finetune",
                (self.options.paths[0],),
                {**_learning(options), "arch": options.arch, "seed": options.seed + number},
                options.work / f"seed-{number}.safetensors",
            )
            for number in range(1, (options.seeds or SEEDS) + 1)
        ]

    @property
    def models(self) -> list[Path]:
        """Where they lie."""
        return [command.out for command in self.tunings if command.out is not None]

    def perform(self, commands: Sequence[Command]) -> None:
        """Run them, unless what they write is there."""
        options = self.options
        record = self.opened.record(self.opened.digests())
        identity: dict[str, Any] = {"weights": record.sha256, "seeds": options.seeds or SEEDS}
        for name in ("data", "val"):
            samples = open_data(getattr(options, name), limit=options.limit, seed=options.seed)
            identity[name] = samples.fingerprint()["sha256"]
        identity |= {"limit": options.limit, "seed": options.seed}
        make_folder(options.work)
        workshop = Workshop(options, State(options.work / BODY, identity), options.progress)
        workshop.open()
        for number, command in enumerate(commands):
            workshop.perform(command)
            if options.progress is not None:
                options.progress("models tuned", number + 1, len(commands))
