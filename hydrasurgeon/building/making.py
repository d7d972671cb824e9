"""build's making: members that are scored, cut, distilled and run, each once, in the work folder;
and the commands that make a checkpoint of those that were chosen.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

from hydrasurgeon.building.body import fitting
from hydrasurgeon.building.cache import Answers, Cache, State, Workshop
from hydrasurgeon.building.clock import EIGHT_BITS, UNPRUNED, Clock, Taken
from hydrasurgeon.building.cost import (
    SMALLEST,
    Budget,
    CostModel,
    Size,
    Sizes,
    Unit,
    cost_model,
    stored,
)
from hydrasurgeon.building.members import (
    Cuts,
    MeanTrunk,
    Member,
    Pruned,
    cost,
    read_tower,
    reading,
    scored,
)
from hydrasurgeon.building.plan import Plan, seconds_of_a_pass, steps_of
from hydrasurgeon.building.table import AUTO, Choice, Entry
from hydrasurgeon.checkpoints.class_names import classifying
from hydrasurgeon.checkpoints.reading import Single, open_checkpoint, open_single, undecided
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.criteria import criterion, score_key
from hydrasurgeon.data import Samples, first_batch, moved
from hydrasurgeon.data.perturbed import Perturbed
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import SUFFIX, make_folder
from hydrasurgeon.files.resumable import content_hash
from hydrasurgeon.options.commands import Command
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.problems import SINGLE, problem_of
from hydrasurgeon.problems.base import Problem
from hydrasurgeon.runtime.processes import joined
from hydrasurgeon.runtime.pruned import LoadedBackbone
from hydrasurgeon.surgery.repair import sharing

SLOWER = 0.7
"""A size of so much fewer multiply-adds is tried too: time falls more slowly than they do."""
TRUNKS = (1 / 2, 2 / 3, 5 / 6)
"""How much of the layers a mean trunk is of."""
APART = 1.25
"""Sizes are tried for budgets of time that are so far from each other."""
CRITERIA = ("taylor", "fisher", "magnitude")
"""What members are pruned by, besides circuits."""
WITH_OOD = ("circuit-avg", "circuit-ood")
"""The circuits that are searched where there are OOD data."""


def laddered(options: BuildOptions, budgets: Sequence[Budget]) -> bool:
    """Whether members are cut out of whole models: for several, a front, a cost below one, or to be
    distilled.
    """
    several = len(options.checkpoints) > 1 or len(budgets) > 1 or options.seeds is not None
    timed = budgets[0].unit == "time" or options.stock
    return options.tune is not None or several or timed or budgets[0].most < 1


@dataclass(frozen=True)
class Search:
    """Everything that is chosen from."""

    options: BuildOptions
    backbone: Member
    """The first model as it is."""
    heads: tuple[Member, ...]
    """Members pruned in memory."""
    cuts: tuple[Member, ...]
    """Other whole models, their mean, and what is left of each at a size."""
    cost_model: CostModel
    cache: Cache
    commands: tuple[Command, ...]
    """What scored the models."""
    workshop: Workshop
    plan: Plan
    maker: Cuts | None
    clock: Clock | None = None
    """There for a budget of time."""
    mean_trunks: tuple[tuple[Member, ...], ...] = ()
    """Hydras behind mean trunks."""
    probe: Member | None = None
    """The first model's body as it is, with a classifier in closed form."""
    sizes_of_library: frozenset[Size] | None = None
    """Sizes that the models' own library builds, where only such may be chosen."""

    def needs_code(self, members: Sequence[Member]) -> bool:
        """Whether they may not be chosen, for their library does not build them."""
        if self.sizes_of_library is None:
            return False
        if self.probe is not None and self.probe in members:
            opened = open_single(self.probe.file)
            return opened.family.stock_sizes(opened.manifest) is None
        sizes = {member.size for member in members} - {None}
        return not sizes <= self.sizes_of_library

    @property
    def members(self) -> tuple[Member, ...]:
        """All that may be chosen."""
        return (self.backbone, *self.heads, *self.cuts)

    @property
    def pools(self) -> list[list[Member]]:
        """Members that leave so many leading layers as they are, a pool for each length of trunk;
        cuts of each size, and all cuts.
        """
        heads = [self.backbone, *self.heads]
        trunks = sorted({member.trunk or 0 for member in heads})
        pools = [[each for each in heads if (each.trunk or 0) >= trunk] for trunk in trunks]
        if self.cuts:
            alone = [self.backbone, *self.cuts]
            sizes = dict.fromkeys(member.size for member in alone)
            pools += [[each for each in alone if each.size == size] for size in sizes]
            pools.append(alone)
        return pools

    @property
    def unpruned(self) -> list[Member]:
        """The models that were given, as they are; and their mean, where they have one."""
        return [self.backbone, *(each for each in self.cuts if not each.making)]

    def read(self, member: Member, engine: str = "torch") -> Answers:
        return self.cache.read(member, engine)

    def cost(self, members: Sequence[Member], unit: Unit) -> float:
        return cost(self.cost_model, members, unit)

    def times(self, members: Sequence[Member]) -> Mapping[str, Taken]:
        """How long these take one after another, by engine."""
        assert self.clock is not None
        hydra = members[0].hydra
        if hydra is not None:
            return self.clock.times(hydra.file.name, partial(open_checkpoint, hydra.file))
        each = [
            self.clock.times(str(member.size), partial(open_single, member.file))
            for member in members
        ]
        return {
            engine: reduce(operator.add, (times[engine] for times in each))
            for engine in self.clock.engines
        }

    def computed(self, choice: Choice) -> list[Choice]:
        """The same in the fastest engine of float32, and in 8 bits where that runs here."""
        if self.clock is None:
            return [choice]
        times = self.times(choice.members)
        float32 = [name for name in times if name != EIGHT_BITS]
        fastest = min(float32, key=lambda name: times[name].time)
        several = len(choice.members) > 1 and choice.members[0].hydra is None
        choices = [replace(choice, engine=fastest, assumed=several)]
        if EIGHT_BITS in times:
            choices.append(replace(choice, engine=EIGHT_BITS, assumed=True))
        return choices

    def timed(self, choice: Choice) -> dict[str, float]:
        """Time and milliseconds of a choice: its own, or what its members take."""
        if self.clock is None:
            return {}
        if choice.assumed or len(choice.members) == 1 or choice.members[0].hydra is not None:
            taken = self.times(choice.members)[choice.engine]
        else:
            fusion = _fusion(choice.members, self.options)
            self.workshop.perform(fusion)
            file = _written(fusion)
            taken = self.clock.times(file.name, partial(open_checkpoint, file))[choice.engine]
        return {"time": taken.time, "ms": taken.ms}

    def with_cuts(self, cuts: Iterable[Member]) -> Search:
        """The same with these too, which are made, run and read where they are missing."""
        files = {member.file for member in self.cuts}
        new = [member for member in cuts if member.file not in files]
        with sharing():
            for number, member in enumerate(new):
                self.plan.tick(member.label, number, len(new))
                for command in member.making:
                    self.workshop.perform(command)
                self.read(member)
        return replace(self, cuts=(*self.cuts, *new))


def in_macs(budgets: Sequence[Budget], sizes: Sizes, clock: Clock | None) -> Sequence[Budget]:
    """What sizes are to cost: of budgets of time the multiply-adds that these may pay in the
    fastest engine.
    """
    if clock is None:
        return budgets
    fastest = min(taken.time for taken in clock.known[UNPRUNED].values())
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


def keys_of(options: BuildOptions, problem: Problem = SINGLE) -> tuple[str, ...]:
    """The criteria, as manifests name their scores."""
    if options.stock:
        return ()
    circuits: tuple[str, ...] = ("circuit-acc",)
    if options.ood:
        circuits = WITH_OOD
    if "--method circuit" in problem.lacks:
        circuits = ()
    if not options.criteria:
        several = len(options.checkpoints) > 1 or options.seeds is not None
        if several or options.budget.startswith("time"):
            return ()
        return (*CRITERIA, *circuits)
    names = [name.strip() for name in options.criteria.split(",") if name.strip()]
    keys = []
    for name in names:
        key = str(score_key(name))
        if name == "circuit" and not options.ood:
            key = "circuit-acc"
        keys.append(key)
    return tuple(dict.fromkeys(keys))


def check_enough(members: int | None, candidates: int) -> None:
    """Refuse more members than there are candidates, the model itself among them."""
    if members is not None and candidates < members:
        what = f"--members {members}: there are {candidates} candidates"
        raise UsageError(what, hint="Ask for fewer members, or more --candidates.")


def searched(
    models: Sequence[Single],
    sets: Mapping[str, Sequence[Samples]],
    options: BuildOptions,
    budgets: Sequence[Budget],
    *,
    averaged: bool,
) -> Search:
    """Score, make members, run them and know what they cost; whatever an earlier run left is used."""
    opened, val = models[0], sets["val"][0]
    keys = keys_of(options, problem_of(opened.manifest.model))
    cost_model = _counted(opened, val, options)
    maker, wanted, count, clock, sizes_of_library = None, list[Size](), 0, None, None
    if budgets[0].unit == "time":
        clock = Clock(opened, val, options)
    if laddered(options, budgets):
        sizes = Sizes(cost_model, opened)
        wanted = sizes.ladder(in_macs(budgets, sizes, clock))
        if options.stock:  # the others say what that costs
            its_own = Sizes(cost_model, opened, stock=True)
            sizes_of_library = frozenset(its_own.ladder(in_macs(budgets, its_own, clock)))
            wanted = sorted({*wanted, *sizes_of_library})
        maker = Cuts(models, sizes, options, averaged=averaged)
        count = len(maker.numbers)
    identity = _identity(models, sets, options)
    make_folder(options.work)
    plan = Plan(
        steps_of(options, keys, sets, opened, budgets, models=count, sizes=len(wanted)),
        seconds_of_a_pass(opened, val, options),
        options.progress,
    )
    progress = None
    if options.progress is not None:
        progress = plan.tick
    workshop = Workshop(options, State(options.work / "build.json", identity), progress)
    workshop.open()
    if options.progress is not None:
        for line in plan.lines:
            options.progress(line, 0, 0)
    commands = _scored(models, keys, maker, workshop, plan, identity["weights"])
    backbone = classifying(open_single(next(iter(commands))), options, val)
    scores = {key: open_single(scored(key, options)).manifest.scores[key] for key in keys}
    pruned = Pruned(backbone, scores, options)
    label = "backbone"
    if len(models) > 1:
        label = "model 1"
    whole = pruned.backbone(label)
    heads = tuple(pruned.candidates())
    if maker is None:
        check_enough(options.wanted, 1 + len(heads))
    ood = tuple(sets["ood"])
    if ood:  # those given are of one kind: what is chosen by them alone may tell no other
        ood += (Perturbed(val, options.seed),)
    about = identity | {"perturbed": bool(ood)}
    cache = Cache(about, backbone, val, ood, sets["train"][0], options)
    plan.begin("candidates")
    with sharing():
        cache.fill((whole, *heads), progress)
    search = Search(
        options=options,
        backbone=whole,
        heads=heads,
        cuts=(),
        cost_model=cost_model,
        cache=cache,
        commands=tuple(command for each in commands.values() for command in each),
        workshop=workshop,
        plan=plan,
        maker=maker,
        clock=clock,
        sizes_of_library=sizes_of_library,
    )
    if maker is None:
        return search
    plan.begin("sizes")
    with joined() as world:
        if world.is_main:
            search = _with_files(search, maker, wanted, budgets)
        world.gather(None)
    return search


def _with_files(
    search: Search, maker: Cuts, sizes: Sequence[Size], budgets: Sequence[Budget]
) -> Search:
    """The same with whole models, their means, what is left of each at every size, and hydras
    behind mean trunks.
    """
    cuts = [maker.unpruned(number) for number in maker.numbers[1:]]
    cuts += [maker.cut(number, size) for number in maker.numbers for size in sizes]
    if maker.averaged and len(maker.models) > 2 and search.options.goal != "rmse":
        cuts.append(maker.soup())
    search = search.with_cuts(cuts)
    if not maker.averaged:
        return search
    return replace(search, mean_trunks=tuple(_mean_trunks(search, maker, budgets)))


def _mean_trunks(
    search: Search, maker: Cuts, budgets: Sequence[Budget]
) -> Iterator[tuple[Member, ...]]:
    """Hydras of all models behind their mean's leading layers, unless no budget could pay them."""
    backbone, model, count = search.backbone, search.cost_model, len(maker.models)
    depth = len(model.rests)
    for layers in sorted({max(1, round(share * depth)) for share in TRUNKS} - {depth}):
        command = maker.mean_trunk(layers)
        file = _written(command)
        one = replace(backbone, trunk=None, making=(command,))
        planned = [replace(one, hydra=MeanTrunk(file, layers, 0))] * count
        if budgets[-1].unit == "macs" and not budgets[-1].allows(search.cost(planned, "macs")):
            continue
        search.workshop.perform(command)
        hydra = MeanTrunk(file, layers, stored(open_checkpoint(file)))
        yield tuple(
            replace(
                one,
                label=f"model {number + 1} behind the mean of {layers} layers",
                file=file.with_name(f"{file.name}, {number}"),
                model=number,
                hydra=hydra,
            )
            for number in range(count)
        )


def probed(search: Search, body: Path | None) -> Search:
    """The same with a probe, of the body that the models were tuned from or of the first model,
    unless TRAIN cannot give it the model's classes.
    """
    options, backbone = search.options, search.cache.backbone
    if backbone.family.named_classes:
        return search
    search.plan.begin("probe")
    model = backbone.manifest.model
    command = fitting(backbone.path, options, model.problem)
    if body is not None:
        command = fitting(body, options)
    file = _written(command)
    with joined() as world:
        world.gather(None)  # all look for it before anyone writes
        search.workshop.perform(command)
        world.gather(None)
    fitted = open_single(file).manifest.model
    if fitted.num_classes != model.num_classes or model.labels not in (None, fitted.labels):
        return search
    part = search.backbone.part
    return replace(search, probe=Member("the probe", file, part, making=(command,)))


def _scored(
    models: Sequence[Single],
    keys: Sequence[str],
    maker: Cuts | None,
    workshop: Workshop,
    plan: Plan,
    weights: Sequence[str],
) -> dict[Path, list[Command]]:
    """Scored copies of the models, and what makes them."""
    options = workshop.options
    made: dict[Path, list[Command]] = {}
    for key in keys:
        plan.begin(key)
        file = scored(key, options)
        made[file] = [_scoring(models[0], key, options)]
        workshop.score(file, made[file], weights=weights[0])
    if maker is None:
        return made
    plan.begin("models")
    for number in maker.numbers:
        file, commands = maker.unpruned(number).file, maker.scorings(number)
        if number < len(models):
            sha256 = weights[number]
        else:
            averaging = maker.averaging()
            with joined() as world:
                if world.is_main:
                    workshop.perform(averaging)
                world.gather(None)
            assert averaging.out is not None
            sha256 = open_single(averaging.out).manifest.weights_sha256
            commands = [averaging, *commands]
        workshop.score(file, commands[-2:], weights=sha256)
        made[file] = commands
    return made


def _scoring(opened: Single, key: str, options: BuildOptions) -> Command:
    """The command that scores the first model into a copy."""
    kept = opened.manifest.kept
    words: dict[str, Any] = {"method": key}
    if len(kept) > 1:
        words["tower"] = read_tower(kept)
    if criterion(key).needs_data:
        words |= reading(options)
    if key.startswith("circuit-"):
        words["search"] = options.search
        if key != "circuit-acc":
            words["ood"] = list(options.ood)
    words |= {"arch": options.arch, "seed": options.seed}
    return Command("score", (options.paths[0],), words, scored(key, options))


def _counted(opened: Single, val: Samples, options: BuildOptions) -> CostModel:
    """What parts of the backbone cost on one sample."""
    loaded = LoadedBackbone(opened, device=options.device, dtype=options.dtype)
    transform = opened.family.transform(opened.manifest.model, files=opened.files)
    one = first_batch(val, transform, 1, skip_bad=options.skip_bad)
    return cost_model(loaded, moved(one, loaded.device, loaded.dtype))


def _identity(
    models: Sequence[Single], sets: Mapping[str, Sequence[Samples]], options: BuildOptions
) -> dict[str, Any]:
    """What must be the same for a work folder to be of use."""

    def content(samples: Samples) -> str:
        record = samples.fingerprint()
        return f"{record['rows']} rows {record['sha256'][:12]}"

    weights: list[str] = []
    for path, opened in zip(options.checkpoints, models, strict=True):
        sha256 = opened.record(opened.digests()).sha256
        if sha256 in weights:
            what = f"{path}: has the weights of {options.checkpoints[weights.index(sha256)]}"
            hint = "Give each model once: several are fine-tunings of their own."
            raise UsageError(what, hint=hint)
        weights.append(sha256)
    plain = ("score_limit", "limit", "seed", "dtype", "batch_size", "skip_bad")
    classes = None
    if options.classes is not None:
        classes = Path(str(options.classes)).name
    return {
        "weights": weights,
        **{name: [content(samples) for samples in sets[name]] for name in ("data", "val", "ood")},
        **{name.replace("_", " "): getattr(options, name) for name in plain},
        "classes": classes,
        "template": [Path(str(each)).name for each in options.template],
    }


def distilled(search: Search, entries: Iterable[Entry]) -> Search:
    """The same search with the members of these distilled: to be chosen where VAL says that it is
    better.
    """
    maker, options = search.maker, search.options
    assert maker is not None
    teachers: list[str] = []
    if options.teachers is not None and options.teachers.isdigit():
        commands = maker.teachers(int(options.teachers))
        for command in commands:
            search.workshop.perform(command)
        teachers = [str(command.out) for command in commands]
        search = replace(search, commands=(*search.commands, *commands))
    elif options.teachers is not None:
        teachers = [name.strip() for name in options.teachers.split(",") if name.strip()]
    members = {each.file: each for entry in entries for each in entry.choice.members}
    cuts = [each for each in members.values() if each.trunk is None and each.size is not None]
    if teachers:  # a whole model learns nothing from itself
        models = [each for each in members.values() if each.hydra is None]
        cuts += [each for each in models if each.trunk is None and each.size is None]
        if search.backbone.file in members:
            cuts.append(maker.unpruned(0))
    return search.with_cuts(maker.distilled(member, teachers) for member in cuts)


@dataclass(frozen=True)
class Copy:
    """The last step of a checkpoint that needs no other: a model as it is."""

    source: Path
    out: Path

    def run(self, *, force: bool) -> None:
        opened = undecided(open_single(self.source))
        save(
            claim_checkpoint(self.out, force=force),
            opened.tensors.planned(),
            lambda sha256: opened.manifest.model_copy(update={"weights_sha256": sha256}),
            files=opened.files,
        )

    def line(self, root: Path, variable: str) -> str:
        """As a shell script has it."""
        return f"# {self.out} is a copy of {self.source.name}, without a decision state"


def commands_of(search: Search, entry: Entry, out: Path) -> list[Command | Copy]:
    """What makes a checkpoint of the members that were chosen: prune, tune, fuse, calibrate; the
    last writes the output.
    """
    options, members = search.options, entry.choice.members
    commands = [command for member in members for command in member.making]
    file = members[0].file
    if members[0].hydra is not None:
        commands, file = [*members[0].making], members[0].hydra.file
    elif len(members) > 1:
        fusion = _fusion(members, options)
        commands.append(fusion)
        file = _written(fusion)
    if options.calibrate:
        commands.append(_calibration(search, entry, file))
    elif len(members) == 1:
        return [*commands, Copy(file, out)]
    return [*commands[:-1], replace(commands[-1], out=out)]


def make(search: Search, commands: Sequence[Command | Copy], out: Path) -> None:
    """Run them, unless what they write into the work folder is there."""
    options = search.options
    for command in commands:
        if isinstance(command, Copy):
            command.run(force=options.force or out.parent == options.work)
        elif command.out == out and out.parent != options.work:
            command.run(
                device=options.device, progress=search.workshop.progress, force=options.force
            )
        else:
            search.workshop.perform(command)


def rung_file(search: Search, entry: Entry) -> Path:
    """Where a rung's checkpoint is made, in the work folder."""
    about = {str(place): member.file.name for place, member in enumerate(entry.choice.members)}
    about |= {"calibrate": str(search.options.calibrate)}
    about |= {"8 bits": str(entry.choice.engine == EIGHT_BITS)}
    return search.options.work / f"rung-{content_hash(about, '')[:12]}{SUFFIX}"


def _calibration(search: Search, entry: Entry, file: Path) -> Command:
    """The decision state that the table's figures are of."""
    options = search.options
    words: dict[str, Any] = {"data": options.val, **options.names, **options.running}
    words |= {"limit": options.limit, "seed": options.seed}
    score = entry.score
    if score == "mi" and len(entry.choice.members) == 1:
        score = AUTO
    if score == AUTO:
        words["ood"] = list(options.ood)
    else:
        words["ood_score"] = score
    if not problem_of(search.cache.backbone.manifest.model).several:
        words["fit_data"] = options.data
    if entry.choice.engine == EIGHT_BITS:
        words["engine"] = EIGHT_BITS
    return Command("calibrate", (file,), words)


def _fusion(members: Sequence[Member], options: BuildOptions) -> Command:
    names = "\n".join(member.file.name for member in members)
    key = hashlib.sha256(names.encode()).hexdigest()[:12]
    words = {"mlp": "separate", **options.names}
    files = tuple(member.file for member in members)
    return Command("fuse", files, words, options.work / f"hydra-{key}.safetensors")


def _written(command: Command) -> Path:
    """The file that a command writes."""
    assert command.out is not None
    return command.out
