"""Whether a checkpoint is what its history makes of the files it came from: the part of `verify` that needs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.at_hand import AtHand, Found
from hydrasurgeon.checkpoints.checks import Check, first, short
from hydrasurgeon.checkpoints.reading import single
from hydrasurgeon.errors import ManifestError
from hydrasurgeon.files.history import lineage, merged
from hydrasurgeon.files.manifest import DataRecord, Input, Step
from hydrasurgeon.files.recorded import (
    ExportOptions,
    FinetuneOptions,
    FuseOptions,
    PruneOptions,
    RunOptions,
    StepOptions,
    options_of,
)
from hydrasurgeon.files.tensors import as_float
from hydrasurgeon.options.shared import Run
from hydrasurgeon.surgery.derivation import (
    Derived,
    compare,
    compare_fused,
    compare_pruned,
    contains,
    repaired_names,
    same_model,
)

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw
    from hydrasurgeon.runtime.difference import Difference, Inputs

REPAIR_TOLERANCE = 1e-5
"""How far a repair fitted again may be from the recorded one, as a share of the largest weight: another
processor sums the same products in another order."""


def ancestry(child: Found, at_hand: AtHand, inputs: Inputs) -> Iterator[Check]:
    """Every step back from `child` for which the files are at hand, each file once."""
    waiting, seen = [child], set[str]()
    while waiting:
        child = waiting.pop(0)
        manifest = child.checkpoint.manifest
        steps = lineage(manifest.history)
        if not steps or manifest.weights_sha256 in seen:
            continue
        seen.add(manifest.weights_sha256)
        try:
            options = options_of(steps[-1], child.checkpoint.name)
        except ManifestError as error:
            yield Check(f"{child.checkpoint.name}, history", None, error.message)
            continue
        arch = options.arch if isinstance(options, RunOptions) else None
        sources = steps[-1].inputs
        parents = [at_hand.find(each.sha256, name=each.name, arch=arch) for each in sources]
        missing = [each for each, parent in zip(sources, parents, strict=True) if parent is None]
        present = [parent for parent in parents if parent is not None]
        made = _Made(child, steps[-1], options)
        if missing:
            yield Check(made.name, None, f"{_named(missing[0])} is not in {at_hand.folder}")
        else:
            yield from _derived(made, present, inputs)
            yield from _link(child, steps, present)
        waiting += present


@dataclass(frozen=True)
class _Made:
    """A file, and the step that made it."""

    child: Found
    entry: Step
    options: StepOptions

    @property
    def file(self) -> str:
        return self.child.checkpoint.name

    @property
    def name(self) -> str:
        sources = ", ".join(source.name for source in self.entry.inputs)
        return f"{self.file} = {self.entry.command} {sources}".rstrip()


def _named(source: Input) -> str:
    return f"{source.name} ({short(source.sha256)})"


def _derived(made: _Made, parents: Sequence[Found], inputs: Inputs) -> Iterator[Check]:
    """Whether the file is what the step makes of these parents."""
    other = next((p.checkpoint for p in parents if not _alike(p, made.child)), None)
    if other is not None:
        yield Check(made.name, False, f"{other.name} is of another architecture")
    elif isinstance(made.options, FuseOptions):
        yield from _fused(made, parents, inputs)
    elif isinstance(made.options, PruneOptions) and len(parents) == 1:
        yield from _pruned(made, made.options, parents[0], inputs)
    elif isinstance(made.options, ExportOptions) and len(parents) == 1:
        from hydrasurgeon.sharing.padded import padded

        whole = padded(parents[0].checkpoint, made.options.member)
        yield _bits(made, compare(made.child, whole.planned))
    elif isinstance(made.options, FinetuneOptions) and len(parents) == 1:
        yield from _tuned(made, made.options, parents[0])
    else:
        yield Check(made.name, None, "began with random weights: only replay can tell")


def _alike(parent: Found, child: Found) -> bool:
    a, b = parent.checkpoint.manifest, child.checkpoint.manifest
    return (a.model.family, a.model.arch, a.towers) == (b.model.family, b.model.arch, b.towers)


def _pruned(made: _Made, options: PruneOptions, parent: Found, inputs: Inputs) -> Iterator[Check]:
    child = made.child.checkpoint
    kept, before = child.manifest.kept, parent.checkpoint.manifest.kept
    if kept is None or before is None or not contains(before, kept):
        yield Check(made.name, False, "keeps heads that its parent does not have")
    elif options.compensate != "none":
        yield from _repaired(made, options, parent, inputs)
    else:
        yield _bits(made, compare_pruned(made.child, parent))
        from hydrasurgeon.runtime.difference import masked_difference

        difference = masked_difference(child, same_model(parent, child), inputs)
        yield _outputs(f"{made.file}, pruned = masked", difference, inputs)


def _bits(made: _Made, derived: Derived) -> Check:
    if derived.differing:
        return Check(made.name, False, f"made again, {first(derived.differing)} is another")
    return Check(made.name, True, f"made again: {derived.tensors} tensors, bit for bit")


def _outputs(name: str, difference: Difference, inputs: Inputs) -> Check:
    from hydrasurgeon.runtime.difference import TOLERANCE

    allowed = TOLERANCE[inputs.run.dtype]
    what = "random inputs" if inputs.data is None else f"samples of {inputs.data}"
    return Check(
        name,
        difference.relative <= allowed,
        f"outputs for {difference.samples} {what} differ by {difference.relative:.1e} of the largest "
        f"({inputs.run.dtype}; allowed {allowed:.0e})",
        difference.largest,
    )


def _repaired(made: _Made, options: PruneOptions, parent: Found, inputs: Inputs) -> Iterator[Check]:
    """A member of `prune --compensate`: what was not repaired is the parent's, what was is fitted again."""
    kept = single(made.child.checkpoint).kept
    repaired = repaired_names(parent.checkpoint, kept)
    yield _bits(made, compare_pruned(made.child, parent, without=repaired))
    name = f"{made.file}, --compensate {options.compensate}"
    specs = ", ".join(record.spec for record in made.entry.data)
    if inputs.data is None:
        yield Check(name, None, f"was fitted on data: give it as --data ({specs})")
        return
    fitted, record = _fitted_again(made, options, parent, inputs.data, inputs.run.device)
    if record.sha256 not in {each.sha256 for each in made.entry.data}:
        yield Check(name, None, f"{inputs.data} is not the data it was fitted on ({specs})")
    elif not compare_pruned(made.child, parent, repaired=fitted).differing:
        yield Check(name, True, f"fitted again: {len(fitted)} tensors, bit for bit", 0.0)
    else:
        yield _near(name, made.child, fitted)


def _fitted_again(
    made: _Made, options: PruneOptions, parent: Found, data: str, device: str
) -> tuple[dict[str, Raw], DataRecord]:
    from hydrasurgeon.surgery.compensate import repaired_tensors

    child = made.child.checkpoint
    run = Run(
        limit=options.limit,
        seed=made.entry.seed or 0,
        device=device,
        dtype=options.dtype,
        batch_size=options.batch_size,
        skip_bad=options.skip_bad,
    )
    kept = single(child).kept
    return repaired_tensors(same_model(parent, child), kept, how=options.compensate, data=data, run=run)


def _near(name: str, child: Found, fitted: dict[str, Raw]) -> Check:
    """Repaired tensors that are not the same bits: how far apart."""
    difference, largest = 0.0, 0.0
    for tensor, raw in fitted.items():
        dtype = child.checkpoint.tensors[tensor].dtype
        stored = as_float(child.checkpoint.tensors.read(tensor), dtype)
        difference = max(difference, float(abs(stored - as_float(raw, dtype)).max()))
        largest = max(largest, float(abs(stored).max()))
    relative = difference / (largest or 1.0)
    return Check(
        name,
        relative <= REPAIR_TOLERANCE,
        f"fitted again, weights differ by {relative:.1e} of the largest (allowed {REPAIR_TOLERANCE:.0e})",
        difference,
    )


def _fused(made: _Made, members: Sequence[Found], inputs: Inputs) -> Iterator[Check]:
    child = made.child.checkpoint
    manifest = child.manifest
    listed = [each.kept for each in manifest.members] if manifest.kind == "hydra" else []
    if manifest.kind != "hydra" or listed != [m.checkpoint.manifest.kept for m in members]:
        yield Check(made.name, False, "keeps other heads than its members")
        return
    yield _bits(made, compare_fused(made.child, members))
    name = f"{made.file}, fused = members"
    if manifest.fusion.mlp == "average" and not _one_mlp(members):
        yield Check(name, None, "the mean of differently tuned MLPs equals none of them")
        return
    from hydrasurgeon.runtime.difference import fused_difference

    difference = fused_difference(child, [same_model(each, child) for each in members], inputs)
    yield _outputs(name, difference, inputs)


def _one_mlp(members: Sequence[Found]) -> bool:
    """Whether all members have the same MLPs, which their mean is then too."""
    weights = members[0].checkpoint.weights
    mlps = [name for name, weight in weights.items() if weight.part == "mlp"]
    return all(len({member.digests[name] for member in members}) == 1 for name in mlps)


def _tuned(made: _Made, options: FinetuneOptions, parent: Found) -> Iterator[Check]:
    """Training is not derivable; that it left the heads and what it froze alone can be seen."""
    if made.child.checkpoint.manifest.kept != parent.checkpoint.manifest.kept:
        yield Check(made.name, False, "keeps other heads than what was tuned")
        return
    frozen = _frozen(made.child, options, parent)
    changed = [n for n in frozen if made.child.digests[n] != parent.digests[n]]
    if changed:
        yield Check(made.name, False, f"{first(changed)} was frozen, and is another than before")
        return
    if frozen:
        yield Check(f"{made.name}, frozen", True, f"{len(frozen)} tensors, bit for bit")
    yield Check(made.name, None, "what training makes only replay can tell")


def _frozen(child: Found, options: FinetuneOptions, parent: Found) -> list[str]:
    """The tensors that the recipe did not train; none where the recipe is a file of the user's own."""
    from hydrasurgeon.tuning.recipes import load_recipe, recipe_names
    from hydrasurgeon.tuning.start import trainable

    if options.recipe not in recipe_names():
        return []
    recipe = load_recipe(options.recipe, options.set, freeze=options.freeze)
    weights = child.checkpoint.weights
    moves = trainable(weights, recipe, child.checkpoint.manifest.towers)
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


def _link(child: Found, steps: Sequence[Step], parents: Sequence[Found]) -> Iterator[Check]:
    """The child's history must be that of its parents, and one step more."""
    if not parents:
        return
    before = merged([lineage(parent.checkpoint.manifest.history) for parent in parents])
    whose = ", ".join(parent.checkpoint.name for parent in parents)
    continued = before == list(steps[:-1])
    verb = "continues" if continued else "does not continue"
    yield Check(f"{child.checkpoint.name}, history", continued, f"{verb} that of {whose}")
