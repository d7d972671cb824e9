"""Whether a checkpoint is what its history makes of the files it came from: the part of `verify`
that needs them.

What surgery does is done again, tensor by tensor, and compared bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checks import Check, first, short
from hydrasurgeon.checkpoints.folder import entries
from hydrasurgeon.checkpoints.layout import in_trunk, selection
from hydrasurgeon.checkpoints.reading import (
    Checkpoint,
    Single,
    as_single,
    open_checkpoint,
    undecided,
)
from hydrasurgeon.commands import RECORDED
from hydrasurgeon.errors import CheckpointError, HydraError, ManifestError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.history import lineage, merged
from hydrasurgeon.files.manifest import Step
from hydrasurgeon.files.tensors import THREADS, Planned, as_float, sha256_of, weights_sha256
from hydrasurgeon.lookup import imported
from hydrasurgeon.options.commands import recalled
from hydrasurgeon.surgery.cut import plan_pruning
from hydrasurgeon.surgery.fusion import plan_fusion, plan_mean
from hydrasurgeon.surgery.means import behind_mean_trunk, mean_model
from hydrasurgeon.surgery.repair import output_names, repaired_tensors


@dataclass(frozen=True)
class Hashed:
    """A checkpoint, and the hash of each of its tensors."""

    checkpoint: Checkpoint
    digests: dict[str, str]


class AtHand:
    """A folder's checkpoints and checkpoint directories, one level deep; hashed when they are asked
    for.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise CheckpointError(f"{folder}: no such directory")
        self._opened, self._hashed = cache(_opened), cache(_hashed)

    def find(
        self, sha256: str, *, name: str, arch: str | None, decides: bool = False
    ) -> Hashed | None:
        """The checkpoint with these weights, the one called `name` first; `arch` reads what has no
        manifest. Without its decision state, unless the step read that.
        """
        paths = [self.folder / each for each in entries(self.folder)]
        for path in sorted(paths, key=lambda path: (path.name != name, path)):
            opened = self._opened(path, arch, decides)
            if opened is None or (opened.recorded and opened.manifest.weights_sha256 != sha256):
                continue
            hashed = self._hashed(path, arch, decides)
            if hashed is not None and weights_sha256(opened.tensors, hashed.digests) == sha256:
                return hashed
        return None


def _opened(path: Path, arch: str | None, decides: bool) -> Checkpoint | None:
    """The checkpoint, with a decision state or without; None for what is none that can be read."""
    if path.suffix != ".safetensors" and not (path.is_dir() and any(path.glob("*.safetensors"))):
        return None
    try:
        opened = open_checkpoint(path, arch=arch)
    except HydraError:  # of another architecture, too
        return None if arch is None else _opened(path, None, decides)
    return opened if decides else undecided(opened)


def _hashed(path: Path, arch: str | None, decides: bool) -> Hashed | None:
    """None where the manifest belongs to other weights."""
    opened = _opened(path, arch, decides)
    try:
        return None if opened is None else Hashed(opened, opened.digests())
    except ManifestError:
        return None


if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Model
    from hydrasurgeon.files.tensors import Raw
    from hydrasurgeon.options.making import FinetuneOptions
    from hydrasurgeon.runtime.difference import Difference, Inputs
    from hydrasurgeon.tuning.recipes import Recipe

REPAIR_TOLERANCE = 1e-5
"""How far a repair fitted again may be from the recorded one, as a share of the largest weight:
another processor sums the same products in another order.
"""


def ancestry(child: Hashed, at_hand: AtHand, inputs: Inputs) -> Iterator[Check]:
    """Every step back from `child` for which the files are at hand, each file once."""
    waiting, seen = [child], set[str]()
    while waiting:
        child = waiting.pop(0)
        manifest, file = child.checkpoint.manifest, child.checkpoint.name
        steps = lineage(manifest.history)
        if not steps or manifest.weights_sha256 in seen:
            continue
        seen.add(manifest.weights_sha256)
        if not steps[-1].inputs:
            yield Check(f"{file} = {steps[-1].command}", None, "began with random weights")
            continue
        entry = steps[-1]
        try:
            options = recalled(entry, file)
        except ManifestError as error:
            yield Check(f"{file}, history", None, error.message)
            continue
        name = f"{file} = {entry.command} {', '.join(source.name for source in entry.inputs)}"
        parents: list[Hashed] = []
        for source in entry.inputs:
            parent = at_hand.find(
                source.sha256,
                name=source.name,
                arch=entry.args.get("arch"),
                decides=entry.args.get("format") == "stock",
            )
            if parent is None:
                yield Check(
                    name, None, f"{source.name} ({short(source.sha256)}) is not in {at_hand.folder}"
                )
                break
            parents.append(parent)
        else:
            yield from _derived(Link(name, child, entry, options, parents, inputs))
            yield _continued(child, steps, parents)
        waiting += [_before_calibrate(parent) for parent in parents]


def _before_calibrate(hashed: Hashed) -> Hashed:
    """What `calibrate` read: it changed no weights."""
    checkpoint = undecided(hashed.checkpoint)
    return Hashed(checkpoint, {name: hashed.digests[name] for name in checkpoint.tensors})


@dataclass(frozen=True)
class Link:
    """A file, the last step of its history, and the files that this step read."""

    name: str
    child: Hashed
    entry: Step
    options: Any
    parents: Sequence[Hashed]
    inputs: Inputs

    @property
    def parent(self) -> Hashed:
        return self.parents[0]


def _derived(link: Link) -> Iterator[Check]:
    """Whether the file is what the step makes of its parents."""
    other = next((p.checkpoint for p in link.parents if not _alike(p, link.child)), None)
    if other is not None:
        yield Check(link.name, False, f"{other.name} is of another architecture")
        return
    yield _model(link)
    again = RECORDED[link.entry.command].again
    if again:
        yield from imported(f"hydrasurgeon.stages.{again}")(link)


def exported(link: Link) -> Iterator[Check]:
    """Zeros stand where heads are gone, or the calibration is in the classifier."""
    if link.options.format == "stock":
        from hydrasurgeon.sharing.stock import folded

        planned = folded(link.parent.checkpoint).planned
    else:
        from hydrasurgeon.sharing.padded import padded

        planned = padded(link.parent.checkpoint, link.options.member)[0]
    yield _bits(link.name, link.child, planned)


def _alike(parent: Hashed, child: Hashed) -> bool:
    a, b = parent.checkpoint.manifest, child.checkpoint.manifest
    return (a.model.family, a.model.arch, a.towers) == (b.model.family, b.model.arch, b.towers)


NEW_CLASSIFIER = {"num_classes", "labels", "problem", "inputs", "arch", "pooling"}
"""What a new classifier says of itself."""


def _model(link: Link) -> Check:
    """Names, configuration and preprocessing are the parents', but for what the step may change."""
    child, entry = link.child, link.entry
    name, model = f"{child.checkpoint.name}, model", child.checkpoint.manifest.model
    based = link.entry.args.get("base") is not None  # whose classes may be others
    for parent in link.parents[: len(link.parents) - based]:
        other = parent.checkpoint.manifest.model
        mine, theirs = _facts(model), _facts(other)
        free = _changeable(link, other)
        for fact in sorted(mine.keys() | theirs.keys()):
            value, before = mine.get(fact), theirs.get(fact)
            if value == before or fact in free:
                continue
            if fact == "preprocess.max_length" and entry.command == "finetune":
                # A recipe may read less of a text, never more.
                before_or_any = math.inf if before is None else before
                if value is not None and value < before_or_any:
                    continue
            detail = f"{fact} is {str(value)[:60]}, in {parent.checkpoint.name} {str(before)[:60]}"
            return Check(name, False, detail)
    return Check(name, True, "names, configuration and preprocessing as before")


def _facts(model: Model) -> dict[str, Any]:
    """What a manifest says of its model, one level deep."""
    facts = model.model_dump(exclude={"config", "preprocess"})
    facts |= {f"config.{key}": value for key, value in model.config.items()}
    return facts | {f"preprocess.{key}": value for key, value in model.preprocess.items()}


def _changeable(link: Link, parent: Model) -> set[str]:
    """The facts that a step may give or replace: what the parent leaves open, the classes that a
    command names for a CLIP, and a new classifier's own.
    """
    free = {fact for fact in ("labels", "inputs") if getattr(parent, fact) is None}
    family = family_of(parent)
    if family.named_classes and (
        parent.labels is None or {"classes", "template"} & {*link.entry.args}
    ):
        free |= {"num_classes", "labels", "config.zero_shot"}
    if link.entry.command == "finetune" and not family.named_classes:
        recipe = _recipe(link.options)
        if recipe is None or recipe.classifier != "keep" or parent.num_classes == 0:
            fresh = family.with_classes(parent, parent.num_classes, None)
            lost = parent.config.keys() - fresh.config.keys()
            free |= {*NEW_CLASSIFIER, *(f"config.{key}" for key in lost)}
    return free


def _own(parent: Single, child: Checkpoint) -> Single:
    """A parent as it answers itself; a CLIP without class names, with those of the child."""
    model, wanted = parent.manifest.model, child.manifest.model
    if not (parent.family.named_classes and wanted.labels is not None):
        return parent
    changed = parent.family.with_classes(model, wanted.num_classes, wanted.labels)
    if "zero_shot" in wanted.config:
        changed.config["zero_shot"] = wanted.config["zero_shot"]
    manifest = parent.manifest.model_copy(update={"model": changed})
    return replace(parent, manifest=manifest, recorded=True)


def _bits(
    name: str, child: Hashed, planned: Sequence[Planned], without: Collection[str] = ()
) -> Check:
    """Whether the file holds what was planned of its parents, bit for bit; `without` are tensors
    not to look at.
    """
    differing = _differing(child, planned, without)
    if differing:
        return Check(name, False, f"made again, {first(differing)} is another")
    return Check(
        name,
        True,
        f"made again: {len({*child.checkpoint.tensors} - {*without})} tensors, bit for bit",
    )


def _differing(
    child: Hashed, planned: Sequence[Planned], without: Collection[str] = ()
) -> list[str]:
    """Tensors that are missing, superfluous, of another shape or dtype, or hold other bits."""
    tensors = child.checkpoint.tensors
    plans = {plan.name: plan for plan in planned if plan.name not in without}

    def differs(name: str) -> bool:
        if name not in plans or name not in tensors:
            return True
        plan, info = plans[name], tensors[name]
        same_header = (plan.dtype, plan.shape) == (info.dtype, info.shape)
        return not same_header or sha256_of(plan.produce()) != child.digests[name]

    names = sorted({*plans, *tensors} - {*without})
    with ThreadPoolExecutor(THREADS) as pool:
        return [name for name, other in zip(names, pool.map(differs, names), strict=True) if other]


def _outputs(name: str, difference: Difference, inputs: Inputs) -> Check:
    from hydrasurgeon.runtime.difference import TOLERANCE

    allowed = TOLERANCE[inputs.run.dtype]
    what = "random inputs" if inputs.data is None else f"samples of {inputs.data}"
    return Check(
        name,
        difference.relative <= allowed,
        f"outputs for {difference.samples} {what} differ by {difference.relative:.1e} of the "
        "largest "
        f"({inputs.run.dtype}; allowed {allowed:.0e})",
        difference.largest,
    )


def pruned(link: Link) -> Iterator[Check]:
    """A member is its parent with heads cut out, and answers as the parent with those heads off; of
    a repaired one what was not repaired is the parent's, and what was is fitted again.
    """
    name, child, options, inputs = link.name, link.child, link.options, link.inputs
    member, whole = as_single(child.checkpoint), as_single(link.parent.checkpoint)
    kept, file = member.kept, member.name
    there = [
        (row, whole.kept[group][layer])
        for group, rows in kept.items()
        for layer, row in enumerate(rows)
    ]
    if not all(set(row) <= set(present) for row, present in there):
        yield Check(name, False, "keeps heads or neurons that its parent does not have")
        return
    if options.repair is None:
        yield _bits(name, child, plan_pruning(whole, kept, {}))
        from hydrasurgeon.runtime.difference import masked_difference

        difference = masked_difference(member, _own(whole, member), inputs)
        yield _outputs(f"{file}, pruned = masked", difference, inputs)
        return
    repaired = {
        tensor
        for pair in output_names(whole, kept).values()
        for tensor in pair
        if tensor is not None
    }
    yield _bits(name, child, plan_pruning(whole, kept, {}), without=repaired)
    again, specs = (
        f"{file}, --compensate {options.repair}",
        ", ".join(record.spec for record in link.entry.data),
    )
    if inputs.data is None:
        yield Check(again, None, f"was fitted on data: give it as --data ({specs})")
        return
    run = options.but(seed=link.entry.seed or 0, device=inputs.run.device)
    from hydrasurgeon.data import open_data

    samples = open_data(inputs.data, limit=run.limit, seed=run.seed)
    fitted, record = repaired_tensors(
        _own(whole, member), kept, how=options.repair, samples=samples, run=run
    )
    if record.sha256 not in {each.sha256 for each in link.entry.data}:
        yield Check(again, None, f"{inputs.data} is not the data it was fitted on ({specs})")
    elif not _differing(child, plan_pruning(whole, kept, {}, fitted)):
        yield Check(again, True, f"fitted again: {len(fitted)} tensors, bit for bit", 0.0)
    else:
        yield _near(again, member, fitted)


def _near(name: str, child: Checkpoint, fitted: Mapping[str, Raw]) -> Check:
    """Whether repaired tensors that are not the same bits differ by rounding alone."""
    difference, largest = 0.0, 0.0
    for tensor, raw in fitted.items():
        dtype = child.tensors[tensor].dtype
        stored = as_float(child.tensors.read(tensor), dtype)
        difference = max(difference, float(abs(stored - as_float(raw, dtype)).max()))
        largest = max(largest, float(abs(stored).max()))
    relative = difference / (largest or 1.0)
    return Check(
        name,
        relative <= REPAIR_TOLERANCE,
        (
            f"fitted again, weights differ by {relative:.1e} of the largest (allowed "
            f"{REPAIR_TOLERANCE:.0e})"
        ),
        difference,
    )


def _averaged(link: Link) -> Iterator[Check]:
    """One model is the mean of others."""
    mean, parts = as_single(link.child.checkpoint), [as_single(p.checkpoint) for p in link.parents]
    weights = link.entry.weights or (1.0,) * len(parts)
    based = link.options.base is not None
    members = range(len(parts) - based)
    some = [i for i, weight in zip(members, weights, strict=False) if weight > 0]
    if any(part.kept != mean.kept for part in parts) or len(weights) < len(parts) or not some:
        yield Check(link.name, False, "keeps other heads or neurons than what it is the mean of")
        return
    models, digests = [parts[i] for i in some], [link.parents[i].digests for i in some]
    start, away = None, 0.0
    if based:
        start, away = parts[-1], weights[-1]
        digests.append(link.parents[-1].digests)
    stock = link.options.soup == "stock"
    made, _ = mean_model(models, digests, start, None if stock else away)
    yield _bits(link.name, link.child, plan_mean(made, models).planned)


def fused(link: Link) -> Iterator[Check]:
    """A hydra is the file that `fuse` writes of its members, and answers as they do; one model is
    their mean.
    """
    name, child, members, inputs = link.name, link.child, link.parents, link.inputs
    if link.options.mean:
        yield from _averaged(link)
        return
    hydra, checkpoints = child.checkpoint, [as_single(member.checkpoint) for member in members]
    manifest = hydra.manifest
    if manifest.kind != "hydra" or [selection(m, hydra.weights) for m in manifest.members] != [
        c.kept for c in checkpoints
    ]:
        yield Check(name, False, "keeps other heads or neurons than its members")
        return
    fusion, digests = manifest.fusion, [member.digests for member in members]
    if link.options.mean_trunk is not None:
        checkpoints, digests = behind_mean_trunk(checkpoints, digests, link.options.mean_trunk)
    plan = plan_fusion(checkpoints, digests, average_mlp=fusion.mlp == "average")
    if plan.trunk != fusion.trunk:
        yield Check(
            name, False, f"made again, its trunk has {plan.trunk} layers, not {fusion.trunk}"
        )
    else:
        yield _bits(name, child, plan.planned)
    again = f"{hydra.name}, fused = members"
    mlps = [each for each, weight in checkpoints[0].weights.items() if weight.part == "mlp"]
    if fusion.mlp == "average" and any(
        len({hashes[mlp] for hashes in digests}) > 1 for mlp in mlps
    ):
        yield Check(again, None, "the mean of differently tuned MLPs equals none of them")
        return
    from hydrasurgeon.runtime.difference import fused_difference

    difference = fused_difference(hydra, [_own(each, hydra) for each in checkpoints], inputs)
    yield _outputs(again, difference, inputs)


def tuned(link: Link) -> Iterator[Check]:
    """Training is not derivable; that it left the heads and what it froze alone can be seen."""
    name, child, parent = link.name, link.child, link.parent
    after, before = child.checkpoint.manifest, parent.checkpoint.manifest
    selections = [
        [(each.kept, each.kept_neurons) for each in (manifest.members or (manifest,))]
        for manifest in (after, before)
    ]
    if selections[0] != selections[1]:
        yield Check(name, False, "keeps other heads or neurons than what was tuned")
        return
    frozen = _frozen(child, link.options, parent)
    changed = [n for n in frozen if child.digests[n] != parent.digests[n]]
    if changed:
        yield Check(name, False, f"{first(changed)} was frozen, and is another than before")
        return
    if frozen:
        yield Check(f"{name}, frozen", True, f"{len(frozen)} tensors, bit for bit")
    yield Check(name, None, "what training makes only replay can tell")


def _recipe(options: FinetuneOptions) -> Recipe | None:
    """What a model was tuned by; None where that is a file of the user's own."""
    from hydrasurgeon.tuning.recipes import load_recipe, recipe_names

    if options.recipe not in recipe_names():
        return None
    return load_recipe(str(options.recipe), dict(options.set or {}), freeze=options.freeze)


def _frozen(child: Hashed, options: FinetuneOptions, parent: Hashed) -> list[str]:
    """The tensors that the recipe did not train, where it is known."""
    from hydrasurgeon.tuning.start import trainable

    recipe = _recipe(options)
    if recipe is None:
        return []
    weights, manifest = child.checkpoint.weights, child.checkpoint.manifest
    moves = trainable(weights, recipe, manifest.towers)
    if manifest.kind == "hydra":  # of members only what lies in the trunk has the name that it had
        trunk = in_trunk(weights, manifest.towers, manifest.fusion.trunk)
        frozen = {name for name in weights if trunk(name) and not recipe.trunk_lr}
        moves = ({*child.checkpoint.tensors} - frozen).__contains__
    after, before = child.checkpoint.tensors, parent.checkpoint.tensors
    # Training writes float32: what came in as such and was not trained is there again bit for bit.
    return [
        name
        for name in after
        if name in before
        and after[name].dtype == before[name].dtype == "F32"
        and not moves(name)
        and (recipe.classifier == "keep" or weights[name].part != "classifier")
    ]


def _continued(child: Hashed, steps: Sequence[Step], parents: Sequence[Hashed]) -> Check:
    """The child's history must be that of its parents, and one step more."""
    before = merged([lineage(parent.checkpoint.manifest.history) for parent in parents])
    whose = ", ".join(parent.checkpoint.name for parent in parents)
    continued = before == list(steps[:-1])
    verb = "continues" if continued else "does not continue"
    return Check(f"{child.checkpoint.name}, history", continued, f"{verb} that of {whose}")
