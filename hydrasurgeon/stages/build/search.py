"""build's search: scores, candidates, cuts, their answers and costs, each kept in a work folder and
not made twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.class_names import classifying
from hydrasurgeon.checkpoints.reading import Single, open_single
from hydrasurgeon.criteria import WITHOUT_DATA, score_key
from hydrasurgeon.data import Samples, first_batch, moved
from hydrasurgeon.data.corruptions import Perturbed
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import make_folder
from hydrasurgeon.files.manifest import Score
from hydrasurgeon.files.resumable import there
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.runtime.processes import joined
from hydrasurgeon.runtime.pruned import LoadedBackbone
from hydrasurgeon.stages.build.answers import Cache
from hydrasurgeon.stages.build.candidates import (
    Candidate,
    candidates,
    first_changed,
    papers,
    read_tower,
)
from hydrasurgeon.stages.build.choice import Answers
from hydrasurgeon.stages.build.cost import Budget, CostModel, Costs, Unit, cost_model, parse_budgets
from hydrasurgeon.stages.build.ladder import Cut, Ladder, Size, Sizes, laddered
from hydrasurgeon.stages.build.planning import Plan, seconds_of_a_pass, steps_of
from hydrasurgeon.stages.build.work import State, perform, score_into, tidy
from hydrasurgeon.stages.commands import Command

CRITERIA = ("taylor", "fisher", "magnitude")
"""What candidates are pruned by, besides circuits."""
WITH_FOREIGN = ("circuit-avg", "circuit-ood")
"""The circuits that are searched where there are OOD data."""


def keys_of(options: BuildOptions) -> tuple[str, ...]:
    """The criteria, as manifests name their scores."""
    if not options.criteria and len(options.checkpoints) > 1:
        return ()
    if not options.criteria:
        return (*CRITERIA, *(WITH_FOREIGN if options.ood else ("circuit-acc",)))
    names = [name.strip() for name in options.criteria.split(",") if name.strip()]
    keys = [
        "circuit-acc" if name == "circuit" and not options.ood else score_key(name)
        for name in names
    ]
    return tuple(dict.fromkeys(keys))


def check_enough(members: int | None, candidates: int) -> None:
    """Refuse more members than there are candidates, the backbone among them."""
    if members is not None and candidates < members:
        what = f"--members {members}: there are {candidates} candidates"
        raise UsageError(what, hint="Ask for fewer members, or more --candidates.")


@dataclass(frozen=True)
class Search:
    """Everything that a choice is made from: candidates by their numbers, and behind them cuts."""

    backbone: Single
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
    plan: Plan
    ladder: Ladder | None = None
    sizes: Sizes | None = None
    cuts: tuple[Cut, ...] = ()
    """Of every whole model, itself among them, but for the first: that is the first candidate."""

    @property
    def count(self) -> int:
        return len(self.candidates) + len(self.cuts)

    @property
    def pools(self) -> list[list[int]]:
        """Candidates that leave so many leading layers as they are, a pool for each length of
        trunk; cuts of each size, and all cuts.
        """
        kept = self.backbone.manifest.kept
        free = [i for i in range(len(self.candidates)) if i not in self.paper]
        starts = {i: first_changed(self.candidates[i], kept) for i in free}
        lengths = sorted(set(starts.values()))
        pools = [[i for i in free if starts[i] >= length] for length in lengths]
        cuts = range(len(self.candidates), self.count)
        sizes = dict.fromkeys(self.cut(i).size for i in cuts)
        pools += [
            [i for i in (0, *cuts) if (self.cut(i).size if i else None) == size] for size in sizes
        ]
        pools += [[0, *cuts]] if cuts else []
        return [pool for at, pool in enumerate(pools) if pool not in pools[:at]]

    def cut(self, number: int) -> Cut:
        return self.cuts[number - len(self.candidates)]

    def is_whole(self, number: int) -> bool:
        """Whether it is a model as it was given, or the mean of all."""
        if number < len(self.candidates):
            return number == 0
        return self.cut(number).size is None and not self.cut(number).taught

    def label(self, number: int) -> str:
        if number >= len(self.candidates):
            return self.cut(number).label
        label = self.candidates[number].label
        return (
            "model 1"
            if number == 0 and self.ladder is not None and len(self.ladder.models) > 1
            else label
        )

    def answers(self, number: int) -> Answers:
        """What a candidate or a cut answered."""
        if number < len(self.candidates):
            return self.cache.read(self.candidates[number])
        return self.cache.of_file(self.cut(number).file)

    def cost(self, members: Sequence[int], unit: Unit) -> float:
        """Times the backbone's; members of different whole models share nothing."""
        if self.sizes is None or max(members) < len(self.candidates):
            return self.costs.cost(members, unit)
        return sum(self.sizes.cost(self.cut(i).size if i else None)[unit] for i in members)

    def affordable(self, budget: Budget, members: Sequence[int]) -> bool:
        """Whether a budget allows them; of cuts, two members of one whole model are never allowed."""
        if max(members) >= len(self.candidates):
            models = [self.cut(i).model if i else 0 for i in members]
            if len({*models}) < len(models):
                return False
        return budget.allows(self.cost(members, budget.unit))

    def file(self, number: int) -> Path:
        """Where a member lies once it is made."""
        if number >= len(self.candidates):
            return self.cut(number).file
        options = self.cache.options
        return (
            options.work / f"{self.candidates[number].name}.safetensors"
            if number
            else self.backbone.path
        )

    def making(self, number: int) -> tuple[Command, ...]:
        """What makes a member of a scored copy."""
        if number >= len(self.candidates):
            return self.cut(number).commands
        if number == 0:
            return ()
        candidate, options = self.candidates[number], self.cache.options
        keywords: dict[str, Any] = {**candidate.pruning}
        if candidate.repair:
            keywords |= {
                "data": options.data,
                "limit": options.score_limit,
                **options.names,
                **options.running,
            }
        return (
            Command(
                "prune", (_scored(str(candidate.method), options),), keywords, self.file(number)
            ),
        )

    def with_cuts(self, cuts: Iterable[Cut]) -> Search:
        """The same with these too, which are made, run and read where they are missing."""
        new = [cut for cut in cuts if cut not in self.cuts]
        options = self.cache.options
        for at, cut in enumerate(new):
            options.tick(cut.label, at, len(new))
            for command in cut.commands:
                perform(command, options, self.state)
            self.cache.of_file(cut.file)
        return replace(self, cuts=(*self.cuts, *new))


def searched(
    models: Sequence[Single], sets: Mapping[str, Sequence[Samples]], options: BuildOptions
) -> Search:
    """Score, make candidates, run them and know what they cost; whatever an earlier run left is
    used.
    """
    work, keys, budgets = options.work, keys_of(options), parse_budgets(options.budget)
    identity, opened, ladder, sizes = _identity(models, sets, options), models[0], None, None
    model, wanted = _counted(opened, sets["val"][0], options), list[Size]()
    if laddered(options):
        ladder, sizes = Ladder(models, options), Sizes(model, opened)
        sizes.check(budgets)
        wanted = sizes.ladder(budgets)
    make_folder(work)
    state = State(work / "build.json", identity)
    with joined() as world:
        notes = state.read()
        world.gather(None)  # before anyone writes
        if world.is_main:
            tidy(work)
            if not there(state.path):
                state.write(notes)
    heads = sum(tower.heads * tower.layers for tower in opened.manifest.towers.values())
    wholes = 0 if ladder is None else len(ladder.wholes)
    steps = steps_of(options, keys, sets, heads=heads, wholes=wholes, sizes=len(wanted))
    plan = Plan(steps, seconds_of_a_pass(opened, sets["val"][0], options), options.progress)
    for line in plan.lines:
        options.tick(line, 0, 0)
    options = options.but(progress=plan.tick) if options.progress is not None else options
    commands = {_scored(key, options): [_scoring(opened, key, options)] for key in keys}
    if ladder is not None:
        commands |= {ladder.whole(at).file: ladder.scorings(at) for at in range(len(models))}
    weights = identity["weights"]
    for at, (file, each) in enumerate(commands.items()):
        plan.begin(min(at, len(keys)))
        score_into(file, each, options, weights=weights[max(0, at - len(keys))])
    commands |= {} if ladder is None else _averaged(ladder, options, state)
    plan.begin(len(keys) + (ladder is not None))
    backbone = classifying(open_single(next(iter(commands))), options, options.val)
    manifest = backbone.manifest
    scores: dict[str, Score] = {
        key: open_single(_scored(key, options)).manifest.scores[key] for key in keys
    }
    made = candidates(manifest, scores, number=options.candidates, seed=options.seed)
    if ladder is None:
        check_enough(options.wanted, len(made))
    everyone = (*made, *(papers(manifest, scores) if scores else ()))
    val, foreign = sets["val"][0], tuple(sets["ood"])
    if foreign:  # those given are of one kind: what is chosen by them alone may tell no other
        foreign += (Perturbed(val, options.seed),)
    cache = Cache(identity | {"perturbed": bool(foreign)}, backbone, val, foreign, options)
    costs = Costs(model, manifest.kept, everyone)
    cache.fill(everyone)
    scorings = tuple(command for each in commands.values() for command in each)
    paper = range(len(made), len(everyone))
    search = Search(backbone, everyone, paper, cache, costs, scorings, state, plan, ladder, sizes)
    if ladder is None or sizes is None:
        return search
    with joined() as world:
        cuts = [ladder.whole(at) for at in ladder.wholes[1:]]
        cuts += [ladder.cut(at, size) for at in ladder.wholes for size in wanted]
        plan.begin(len(keys) + 2)
        if world.is_main:
            search = search.with_cuts(cuts)
        world.gather(None)
    return search


def _averaged(ladder: Ladder, options: BuildOptions, state: State) -> dict[Path, list[Command]]:
    """The mean of the models, scored: file → what made it."""
    made: dict[Path, list[Command]] = {}
    for averaging in ladder.averaging():
        with joined() as world:
            if world.is_main:
                perform(averaging, options, state)
            world.gather(None)
        assert averaging.out is not None
        file, scorings = ladder.whole(len(ladder.models)).file, ladder.scorings(len(ladder.models))
        score_into(
            file, scorings, options, weights=open_single(averaging.out).manifest.weights_sha256
        )
        made[file] = [averaging, *scorings]
    return made


def _counted(opened: Single, val: Samples, options: BuildOptions) -> CostModel:
    """What parts of the backbone cost on one sample."""
    loaded = LoadedBackbone(opened, device=options.device, dtype=options.dtype)
    transform = opened.family.transform(opened.manifest.model, files=opened.files)
    one = first_batch(val, transform, 1, skip_bad=options.skip_bad)
    return cost_model(loaded, moved(one, loaded.device, loaded.dtype))


def _scored(key: str, options: BuildOptions) -> Path:
    """The copy of the backbone that carries these scores: another set of criteria finds it again."""
    how = f"-{options.search}" if key.startswith("circuit-") else ""
    return options.work / f"scored-{key}{how}.safetensors"


def _scoring(opened: Single, key: str, options: BuildOptions) -> Command:
    """The command that scores the backbone into a copy."""
    kept = opened.manifest.kept
    keywords: dict[str, Any] = {
        "method": key,
        **({"tower": read_tower(kept)} if len(kept) > 1 else {}),
    }
    if key not in WITHOUT_DATA:
        keywords |= {
            "data": options.data,
            "limit": options.score_limit,
            **options.names,
            **options.running,
        }
    if key.startswith("circuit-"):
        keywords |= {
            "ood": list(options.ood) if key != "circuit-acc" else None,
            "search": options.search,
        }
    keywords |= {"arch": options.arch, "seed": options.seed}
    return Command("score", (options.paths[0],), keywords, _scored(key, options))


def _identity(
    models: Sequence[Single], sets: Mapping[str, Sequence[Samples]], options: BuildOptions
) -> dict[str, Any]:
    """What must be the same for a work folder to be of use."""

    def content(samples: Samples) -> str:
        record = samples.fingerprint()
        return f"{record['rows']} rows {record['sha256'][:12]}"

    plain = ("score_limit", "limit", "seed", "dtype", "batch_size", "skip_bad")
    weights = [opened.record(opened.digests()).sha256 for opened in models]
    twice = next((at for at, each in enumerate(weights) if each in weights[:at]), None)
    if twice is not None:
        what = (
            f"{options.checkpoints[twice]}: has the weights of "
            f"{options.checkpoints[weights.index(weights[twice])]}"
        )
        raise UsageError(what, hint="Give each model once: several are fine-tunings of their own.")
    return {
        "weights": weights,
        **{name: [content(samples) for samples in each] for name, each in sets.items()},
        **{name.replace("_", " "): getattr(options, name) for name in plain},
        "classes": None if options.classes is None else Path(str(options.classes)).name,
        "template": [Path(str(each)).name for each in options.template],
    }
