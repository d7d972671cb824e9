"""build's search: scores, candidates, their answers and costs, each kept in a work folder and not made twice."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hydrasurgeon.checkpoints.class_names import classifying
from hydrasurgeon.checkpoints.reading import Single, open_checkpoint, open_single, undecided
from hydrasurgeon.criteria import WITHOUT_DATA, score_key
from hydrasurgeon.data import Samples, first_batch, moved
from hydrasurgeon.data.corruptions import Perturbed
from hydrasurgeon.errors import CheckpointError, OutputError, UsageError
from hydrasurgeon.files.atomic import SUFFIX, make_folder, sweep, write_text
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.resumable import Resumable, Work, there
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.processes import joined
from hydrasurgeon.stages.build.answers import Cache
from hydrasurgeon.stages.build.candidates import Candidate, candidates, first_changed, papers, read_tower
from hydrasurgeon.stages.commands import Command
from hydrasurgeon.stages.build.cost import Costs, cost_model, parse_budgets

CRITERIA = ("taylor", "fisher", "magnitude")
"""What candidates are pruned by, besides circuits."""
WITH_FOREIGN = ("circuit-avg", "circuit-ood")
"""The circuits that are searched where there are OOD data."""
SCORED = "scored.safetensors"
"""The copy of the backbone in the work folder, which carries all scores."""
MOST_STATE = 4 << 20
"""Bytes of a work folder's state."""
LEFT = re.compile(r"\.(.+)\.(?:[0-9a-f]{8}\.(?:part|old)|exclusive\.lock)")
"""What a killed run leaves beside an output, and the output's name in it."""

def keys_of(options: BuildOptions) -> tuple[str, ...]:
    """The criteria, as manifests name their scores."""
    if not options.criteria:
        return (*CRITERIA, *(WITH_FOREIGN if options.ood else ("circuit-acc",)))
    names = [name.strip() for name in options.criteria.split(",") if name.strip()]
    keys = ["circuit-acc" if name == "circuit" and not options.ood else score_key(name) for name in names]
    return tuple(dict.fromkeys(keys))


def check_enough(members: int | None, candidates: int) -> None:
    """Refuse more members than there are candidates, the backbone among them."""
    if members is not None and candidates < members:
        what = f"--members {members}: there are {candidates} candidates"
        raise UsageError(what, hint="Ask for fewer members, or more --candidates.")


@dataclass(frozen=True)
class State(Resumable):
    """What a work folder belongs to, and what `finetune` said of each file that it wrote there."""

    work: Work = ("build", "hydrasurgeon.build-state/3")

    def read(self) -> dict[str, list[str]]:
        """Refused where the folder belongs to other work."""
        folder = self.path.parent
        if there(self.path):
            with self.judged():
                texts = read_json(self.path, most=MOST_STATE, error=ValueError)  # type: ignore[arg-type]
                kind = TypeAdapter(dict[str, list[str]])
                return kind.validate_python(self.position(texts, most=MOST_STATE), strict=True)
        # What lies in a folder without a state may come from anywhere.
        files = [file for file in folder.iterdir() if not file.name.startswith(".")]
        if files:
            what = f"{folder}: holds {files[0].name}, and no state of a build"
            raise OutputError(what, hint="Give another --cache, or delete the folder.")
        return {}

    @property
    def remedy(self) -> str:
        """Without its state a folder is of no use."""
        return f"Delete {self.path.parent}, or give another --cache."

    def write(self, notes: dict[str, list[str]]) -> None:
        write_text(self.path, json.dumps(self.texts(notes)) + "\n")


@dataclass(frozen=True)
class Search:
    """Everything that a choice is made from."""

    backbone: Single
    """With all scores."""
    candidates: tuple[Candidate, ...]
    """The first is the backbone itself; the last are the paper's members."""
    paper: Sequence[int]
    """The numbers of the paper's members, which are no candidates."""
    cache: Cache
    costs: Costs
    commands: tuple[Command, ...]
    """What scored it."""
    state: State
    """State of the work folder."""

    @property
    def pools(self) -> list[list[int]]:
        """Candidates that leave so many leading layers as they are: a pool for each length of trunk."""
        kept = self.backbone.manifest.kept
        free = [i for i in range(len(self.candidates)) if i not in self.paper]
        starts = {i: first_changed(self.candidates[i], kept) for i in free}
        lengths = sorted(set(starts.values()))
        pools = [[i for i in free if starts[i] >= length] for length in lengths]
        return [pool for at, pool in enumerate(pools) if pool not in pools[:at]]


def searched(opened: Single, sets: Mapping[str, Sequence[Samples]], options: BuildOptions) -> Search:
    """Score, make candidates, run them and know what they cost; whatever an earlier run left is used."""
    work, keys = options.work, keys_of(options)
    identity = _identity(opened, sets, options)
    make_folder(work)
    state = State(work / "build.json", identity)
    with joined() as world:
        notes = state.read()
        world.gather(None)  # before anyone writes
        if world.is_main:
            _tidy(work)
            if not there(state.path):
                state.write(notes)
    commands = _scorings(opened, options)
    backbone = _scored_backbone(commands, options, weights=identity["weights"])
    manifest = backbone.manifest
    scores = {key: manifest.scores[key] for key in keys}
    made = candidates(manifest, scores, number=options.candidates, seed=options.seed)
    check_enough(options.wanted, len(made))
    everyone = (*made, *papers(manifest, scores))
    val, foreign = sets["val"][0], tuple(sets["ood"])
    if foreign:  # those given are of one kind: what is chosen by them alone may tell no other
        foreign += (Perturbed(val, options.seed),)
    cache = Cache(identity | {"perturbed": bool(foreign)}, backbone, val, foreign, options)
    loaded = cache.loaded()
    transform = backbone.family.transform(manifest.model, files=backbone.files)
    one = moved(first_batch(val, transform, 1, skip_bad=options.skip_bad), loaded.device, loaded.dtype)
    costs = Costs(cost_model(loaded, one), manifest.kept, everyone)
    for budget in parse_budgets(options.budget):  # before candidates run
        costs.check(budget)
    cache.fill(everyone)
    return Search(backbone, everyone, range(len(made), len(everyone)), cache, costs, tuple(commands), state)


def _scorings(opened: Single, options: BuildOptions) -> list[Command]:
    """The commands that score the backbone into a copy, the first of which makes it."""
    target, kept = options.work / SCORED, opened.manifest.kept
    tower = {"tower": read_tower(kept)} if len(kept) > 1 else {}
    commands: list[Command] = []
    for key in keys_of(options):
        keywords: dict[str, Any] = {"method": key, **tower}
        if key not in WITHOUT_DATA:
            keywords |= {"data": options.data, "limit": options.score_limit, **options.names, **options.running}
        if key.startswith("circuit-"):
            keywords |= {"ood": list(options.ood) if key != "circuit-acc" else None, "search": options.search}
        if not commands:
            keywords["arch"] = options.arch
        source, out = (target, None) if commands else (Path(options.checkpoint), target)
        commands.append(Command("score", (source,), {**keywords, "seed": options.seed}, out))
    return commands


def _tidy(work: Path) -> None:
    """Remove what a killed build left half-written in its folder, and give whole files their sidecars back."""
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


def _identity(opened: Single, sets: Mapping[str, Sequence[Samples]], options: BuildOptions) -> dict[str, Any]:
    """What must be the same for a work folder to be of use."""

    def content(samples: Samples) -> str:
        record = samples.fingerprint()
        return f"{record['rows']} rows {record['sha256'][:12]}"

    plain = ("search", "score_limit", "limit", "seed", "dtype", "batch_size", "skip_bad")
    return {
        "weights": opened.record(opened.digests()).sha256,
        **{name: [content(samples) for samples in each] for name, each in sets.items()},
        "criteria": list(keys_of(options)),
        **{name.replace("_", " "): getattr(options, name) for name in plain},
        "classes": None if options.classes is None else Path(str(options.classes)).name,
        "template": [Path(str(each)).name for each in options.template],
    }


def _scored_backbone(commands: Sequence[Command], options: BuildOptions, *, weights: str) -> Single:
    """The copy that carries all scores; what is missing is computed, and other weights are refused."""
    target = options.work / SCORED
    with joined() as world:
        present = set[str]()
        if target.exists():
            copy = undecided(open_single(target))
            if copy.record(copy.digests()).sha256 != weights:
                what = f"{target}: holds other weights than what is to be built from"
                raise CheckpointError(what, hint="Delete the folder, or give another --cache.")
            present = set(copy.manifest.scores)
        present = world.gather(present)[0]  # before anyone writes
        for command in commands:
            if command.options["method"] not in present:
                command.run(device=options.device, progress=options.progress)
                world.gather(None)  # the first process writes
    return classifying(open_single(target), options, options.val)
