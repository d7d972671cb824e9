"""build's search: scores, candidates, their answers and costs, each kept in a work folder and not made twice."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from hydrasurgeon.checkpoints.class_names import names_in, with_class_names
from hydrasurgeon.checkpoints.decided import undecided
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, single
from hydrasurgeon.criteria import WITHOUT_DATA
from hydrasurgeon.criteria.together.answers import Cache, Trial, replace_fields
from hydrasurgeon.criteria.together.budget import check_enough
from hydrasurgeon.criteria.together.candidates import Candidate, candidates, first_changed, read_tower
from hydrasurgeon.data.perturbed import Perturbed
from hydrasurgeon.errors import CheckpointError, OutputError
from hydrasurgeon.files.atomic import SUFFIX, make_folder, sweep, write_text
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.resumable import Resumable, Work, there
from hydrasurgeon.measuring.planned_cost import CostModel, TimeModel
from hydrasurgeon.runtime.processes import joined
from hydrasurgeon.stages.commands import Command

if TYPE_CHECKING:
    from hydrasurgeon.criteria.together.budget import Costs
    from hydrasurgeon.data import Samples
    from hydrasurgeon.stages.build import Building

BUILD = Work("build", "hydrasurgeon.build-state", 2)
"""What a work folder's state calls itself."""
MOST_STATE = 4 << 20
"""Bytes of a work folder's state."""
BATCH = 16
"""Samples of the batches that hydras are timed on."""
LEFT = re.compile(r"\.(.+)\.(?:[0-9a-f]{8}\.(?:part|old)|exclusive\.lock)")
"""What a killed run leaves beside an output, and the output's name in it."""
RUNS = 7
"""Passes of each hydra that is timed."""
PAPER = (48 / 144, 100 / 144)
"""The paper's hydras lose so large a share of all heads, drawn from those that go first (section 5)."""


class Position(BaseModel):
    """What cannot be had again as it was."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    time: TimeModel | None
    notes: dict[str, list[str]] = {}
    """What `finetune` said of a file that it wrote into the folder, by the file's name."""

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(exclude=set() if self.notes else {"notes"})


class State(Resumable):
    """What a work folder belongs to, what was timed for it, and what was said."""

    work: ClassVar[Work] = BUILD

    def read(self) -> Position:
        """Refused where the folder belongs to other work."""
        if not there(self.path):
            self._check_empty()
            return Position(time=None)
        with self.judged():
            texts = read_json(self.path, most=MOST_STATE, error=ValueError)  # type: ignore[arg-type]
            return Position.model_validate(self.position(texts, most=MOST_STATE))

    @property
    def remedy(self) -> str:
        """Without its state a folder is of no use."""
        return f"Delete {self.path.parent}, or give another --cache."

    def _check_empty(self) -> None:
        """What lies in a folder without a state may come from anywhere."""
        files = [file for file in self.path.parent.iterdir() if not file.name.startswith(".")]
        if files:
            raise OutputError(
                f"{self.path.parent}: holds {files[0].name}, and no state of a build",
                hint="Give another --cache, or delete the folder.",
            )

    def write(self, position: Position) -> None:
        said = self.texts(position.to_json())
        write_text(self.path, json.dumps(said) + "\n")


@dataclass(frozen=True)
class Search:
    """Everything that a choice is made from."""

    backbone: Checkpoint
    """With all scores."""
    candidates: tuple[Candidate, ...]
    """The first is the backbone itself; the last are the paper's members."""
    paper: tuple[int, ...]
    """The numbers of the paper's members, which are no candidates."""
    cache: Cache
    costs: Costs
    commands: tuple[Command, ...]
    """What scored it."""
    state: State
    """Of the work folder."""

    @property
    def pools(self) -> list[list[int]]:
        """Candidates that leave so many leading layers as they are: a pool for each length of trunk."""
        kept = single(self.backbone).kept
        free = [i for i in range(len(self.candidates)) if i not in self.paper]
        starts = {i: first_changed(self.candidates[i], kept) for i in free}
        lengths = sorted(set(starts.values()))
        pools = [[i for i in free if starts[i] >= length] for length in lengths]
        return [pool for at, pool in enumerate(pools) if pool not in pools[:at]]


def scored(opened: Checkpoint, place: str | Path, work: Path, arguments: Building) -> list[Command]:
    """The commands that score the backbone into a copy."""
    target, kept = work / "scored.safetensors", single(opened).kept
    commands = []
    for at, key in enumerate(arguments.keys):
        foreign = key.startswith("circuit-") and key != "circuit-acc"
        keywords: dict[str, Any] = {"method": key}
        if len(kept) > 1:
            keywords["tower"] = read_tower(kept)
        if key not in WITHOUT_DATA:
            keywords |= {"data": arguments.data, "limit": arguments.score_limit, **arguments.names, **arguments.running}
        if foreign:
            keywords["ood"] = list(arguments.ood)
        if key.startswith("circuit-"):
            keywords["search"] = arguments.search
        if at == 0:
            keywords["arch"] = arguments.arch
        commands.append(
            Command(
                "score",
                (Path(place) if at == 0 else target,),
                {**keywords, "seed": arguments.seed},
                target if at == 0 else None,
            )
        )
    return commands


def searched(
    opened: Checkpoint, place: str | Path, work: Path, sets: Mapping[str, Sequence[Samples]], arguments: Building
) -> Search:
    """Score, make candidates, run them and know what they cost; whatever an earlier run left is used."""
    from hydrasurgeon.criteria.together.budget import Costs

    identity = _identity(opened, sets, arguments)
    make_folder(work)
    state = State(work / "build.json", identity)
    with joined() as world:
        position = state.read()
        world.gather(None)  # before anyone writes
        if world.is_main:
            _tidy(work)
            if not there(state.path):
                state.write(position)
    commands = scored(opened, place, work, arguments)
    backbone = _scored_backbone(commands, work, arguments, weights=identity["weights"])
    manifest = single(backbone)
    made = candidates(
        manifest,
        {key: manifest.scores[key] for key in arguments.keys},
        number=arguments.candidates,
        seed=arguments.seed,
    )
    check_enough(arguments.wanted, len(made))
    paper = _papers(backbone, arguments)
    everyone = [*made, *paper]
    foreign = tuple(sets["ood"])
    if foreign:  # those given are of one kind: what is chosen by them alone may tell no other
        foreign += (Perturbed(sets["val"][0], arguments.seed),)
    trial = Trial(
        backbone,
        sets["val"][0],
        foreign,
        arguments.data,
        replace_fields(arguments, limit=arguments.score_limit),
        arguments,
    )
    cache = Cache(work, trial, identity | {"perturbed": bool(foreign)})
    model = _costs(trial, position.time, timed=arguments.budgets[0].unit == "ms")
    if model.time != position.time:
        with joined() as world:  # all processes choose by the same times
            model = world.gather(model)[0]
            if world.is_main:
                state.write(position.model_copy(update={"time": model.time}))
    costs = Costs(model, manifest.kept, everyone)
    for budget in arguments.budgets:  # before candidates run
        costs.check(budget)
    cache.fill(everyone)
    numbers = tuple(range(len(made), len(everyone)))
    return Search(backbone, tuple(everyone), numbers, cache, costs, tuple(commands), state)


def _tidy(work: Path) -> None:
    """Remove what a killed build left half-written in its folder, and give files their sidecars back.

    What is whole is not made again, so that nobody else would.
    """
    for folder in (work, work / "answers"):
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
            if match := LEFT.fullmatch(name):
                weights = folder / match[1].replace(".heads.json", SUFFIX)
                sweep(weights, sidecar(weights))
                sweep(folder / match[1])
                with contextlib.suppress(OSError):
                    (folder / f".{match[1]}.exclusive.lock").unlink(missing_ok=True)
    for weights in sorted(work.glob(f"*{SUFFIX}")):
        if not sidecar(weights).exists():  # the last to be written; the manifest is in the file, too
            write_text(sidecar(weights), open_checkpoint(weights).manifest.to_json())


def _identity(opened: Checkpoint, sets: Mapping[str, Sequence[Samples]], arguments: Building) -> dict[str, Any]:
    """What must be the same for a work folder to be of use."""

    def content(samples: Samples) -> str:
        record = samples.fingerprint()
        return f"{record['rows']} rows {record['sha256'][:12]}"

    return {
        "weights": opened.record(opened.digests()).sha256,
        **{name: [content(samples) for samples in each] for name, each in sets.items()},
        "criteria": list(arguments.keys),
        "search": arguments.search,
        "score limit": arguments.score_limit,
        "limit": arguments.limit,
        "seed": arguments.seed,
        "dtype": arguments.dtype,
        "batch size": arguments.batch_size,
        "skip bad": arguments.skip_bad,
        "classes": None if arguments.classes is None else Path(str(arguments.classes)).name,
        "template": [Path(str(each)).name for each in arguments.template],
    }


def _scored_backbone(commands: Sequence[Command], work: Path, arguments: Building, *, weights: str) -> Checkpoint:
    """The copy that carries all scores; what is missing is computed, and other weights are refused."""
    target = work / "scored.safetensors"
    with joined() as world:
        present = _recorded(target, weights) if target.exists() else set()
        present = world.gather(present)[0]  # before anyone writes
        for command, key in zip(commands, arguments.keys, strict=True):
            if key not in present:
                command.run(device=arguments.device, progress=arguments.progress)
                world.gather(None)  # the first process writes
    return with_class_names(
        open_checkpoint(target), classes=arguments.classes, templates=arguments.template, names=names_in(arguments.val)
    )


def _recorded(target: Path, weights: str) -> set[str]:
    """What a copy that is there was scored by."""
    copy = undecided(open_checkpoint(target))
    if copy.record(copy.digests()).sha256 != weights:
        raise CheckpointError(
            f"{target}: holds other weights than what is to be built from",
            hint="Delete the folder, or give another --cache.",
        )
    return set(copy.manifest.scores)


def _papers(backbone: Checkpoint, arguments: Building) -> list[Candidate]:
    """Three members drawn as the paper draws them, from the first order that there is."""
    from hydrasurgeon.criteria.selection import movable, select

    preferred = ("circuit-avg", "circuit-acc", "circuit-ood", "taylor")
    key = next((k for k in preferred if k in arguments.keys), arguments.keys[0])
    manifest = single(backbone)
    score = manifest.scores[key]
    free = len(movable(manifest, score, layers=None, tower=None))
    remove, pool = (max(1, round(share * free)) for share in PAPER)
    if key == "cahp" or not remove < pool < free:
        return []
    sample = f"{remove}/{pool}"
    return [
        Candidate(select(manifest, score, sample=sample, seed=seed), key, sample=sample, seed=seed)
        for seed in (1, 2, 3)
    ]


def _costs(trial: Trial, time: TimeModel | None, *, timed: bool) -> CostModel:
    """Counted anew; timed where that is asked for, and once."""
    from hydrasurgeon.data import Batches, moved
    from hydrasurgeon.measuring import planned_cost

    backbone = trial.loaded()
    transform = backbone.checkpoint.family.transform(
        backbone.checkpoint.manifest.model, files=backbone.checkpoint.files
    )

    def first(count: int) -> Any:
        few = Batches(trial.val, transform, batch_size=count, workers=0, skip_bad=trial.run.skip_bad)
        return moved(next(iter(few)).inputs, backbone.device, backbone.dtype)

    costs = planned_cost.cost_model(backbone, first(1))
    if time is not None:
        return costs.model_copy(update={"time": time})
    return planned_cost.timed(costs, backbone, first(BATCH), runs=RUNS) if timed else costs
