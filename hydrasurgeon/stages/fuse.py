"""fuse: members → one hydra (paper section 4.2) or their mean; a file operation, unless `--check`
runs both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.checkpoint import (
    Checkpoint,
    Single,
    open_checkpoint,
    open_single,
    rewritten,
    undecided,
)
from hydrasurgeon.checkpoints.checks import sound_digests
from hydrasurgeon.checkpoints.class_names import classifying
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.errors import CheckFailed, CheckpointError, SurgeryError, UsageError
from hydrasurgeon.files.history import merged, step
from hydrasurgeon.files.manifest import (
    Fusion,
    HydraManifest,
    Manifest,
    Member,
    Step,
)
from hydrasurgeon.files.tensors import weights_sha256
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import FuseOptions
from hydrasurgeon.options.shared import Run
from hydrasurgeon.surgery.fusion import FusionPlan, names_to_average, plan_fusion, plan_mean
from hydrasurgeon.surgery.means import (
    FAR,
    averaged,
    behind_mean_trunk,
    check_common_start,
    differing,
    have_one_shape,
    spread,
)

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples
    from hydrasurgeon.tasks.base import Outputs

ALIKE = {
    "family": "family",
    "architecture": "arch",
    "number of classes": "num_classes",
    "task": "task",
    "labels": "labels",
    "preprocessing": "preprocess",
    "kind of texts": "inputs",
}
"""Fields of the model that members of one hydra must share, by the word for them. Their
configuration and towers must agree too.
"""


@dataclass(frozen=True)
class Agreement:
    """Differences between the fused predictions and those of the members, run one by one."""

    samples: int
    max_difference: float
    """Largest difference of any class probability of any member."""
    mean_difference: float
    kl: float
    """Mean KL divergence from the members' mean prediction to the fused one, in nats."""
    accuracy_members: float | None
    accuracy_fused: float | None


@dataclass(frozen=True)
class Fused:
    path: Path
    manifest: Manifest = field(repr=False)
    members: int
    bytes_members: int
    bytes_stored: int
    agreement: Agreement | None = None
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """The members, as they were given."""


@stage(FuseOptions)
def fuse(arguments: FuseOptions) -> Fused:
    """Write one hydra that runs all members in one pass, or one model of their mean weights.

    Examples:
        >>> for seed in (1, 2):
        ...     out = f"m{seed}.safetensors"
        ...     member = hs.prune("backbone", method="random", keep=6, seed=seed, out=out)
        >>> len(hs.fuse(["m1", "m2"], out="hydra.safetensors").manifest.members)
        2
    """
    if len(arguments.members) < 2:
        raise UsageError("fuse: a hydra needs at least two members")
    opened = [undecided(open_single(member, arch=arguments.arch)) for member in arguments.members]
    samples = None
    if arguments.check is not None:
        from hydrasurgeon.data import fit_classes, open_data

        samples = open_data(arguments.check, limit=arguments.limit, seed=arguments.seed)
    opened = with_common_names([classifying(member, arguments, samples) for member in opened])
    fusable(opened)
    if samples is not None and samples.labels is not None:
        samples = fit_classes(samples, opened[0].manifest.model)
    target = claim_checkpoint(arguments.out, force=arguments.force, inputs=arguments.sources)
    digests = [sound_digests(member) for member in opened]
    members, hashes = opened, digests
    inputs = [member.record(d) for member, d in zip(opened, digests, strict=True)]
    if arguments.mean_trunk is not None:
        members, hashes = behind_mean_trunk(opened, digests, arguments.mean_trunk)
    if arguments.mean:
        check_common_start(opened, list(opened[0].weights), "--mean")
        names = differing(opened[0].weights, digests)
        plan = plan_mean(averaged(opened[0], opened, names), opened)
    else:
        fusion = Fusion(mlp=arguments.mlps, norms=arguments.norms or "separate", trunk=0)
        averaged_names = names_to_average(opened[0].weights, fusion)
        plan = plan_fusion(members, hashes, averaged_names=averaged_names)
    stored = [
        weights_sha256(m.tensors, member_hashes)
        for m, member_hashes in zip(members, hashes, strict=True)
    ]
    entry = step(
        "fuse",
        args=arguments.recorded(),
        inputs=inputs,
        seed=arguments.seed,
    )
    written = save(
        target,
        plan.planned,
        _manifest_of(opened, entry, stored, plan, arguments),
        files=opened[0].files,
    )
    agreement = None
    if samples is not None:
        agreement = _checked(opened, target, samples, arguments)
    notes = [f"{member.name}: {member.note}" for member in opened if member.note]
    notes += [] if samples is None or samples.note is None else [samples.note]
    notes += _notes(members, stored, written, compared=agreement is not None)
    return Fused(
        target,
        written,
        len(opened),
        plan.bytes_members,
        plan.bytes_stored,
        agreement,
        tuple(notes),
        tuple(map(str, arguments.members)),
    )


def with_common_names(members: Sequence[Single]) -> list[Single]:
    """Copy class names and the kind of texts from the first member that has them, with a note about
    the names.
    """
    named = next((member for member in members if member.manifest.model.labels is not None), None)
    inputs = next(
        (m.manifest.model.inputs for m in members if m.manifest.model.inputs is not None), None
    )

    def common(member: Single) -> Single:
        model, notes = member.manifest.model, [member.note]
        changed = model.model_copy(update={"inputs": model.inputs or inputs})
        if (
            named is not None
            and model.labels is None
            and model.num_classes == named.manifest.model.num_classes
        ):
            changed = changed.model_copy(update={"labels": named.manifest.model.labels})
            notes.append(f"its classes are taken as those of {named.name}, in its order")
        if changed == model:
            return member
        manifest = rewritten(member.manifest, model=changed)
        return replace(member, manifest=manifest, note="; ".join(filter(None, notes)) or None)

    return [common(member) for member in members]


def _notes(
    opened: Sequence[Single], hashes: Sequence[str], written: Manifest, *, compared: bool
) -> Iterator[str]:
    """Yield notes on equal members, and on averaged MLPs that were not compared with the members'."""
    seen: dict[str, str] = {}
    for member, sha256 in zip(opened, hashes, strict=True):
        if sha256 in seen:
            yield (
                f"{member.name} has the weights of {seen[sha256]}: it counts twice and adds no "
                "diversity"
            )
        seen.setdefault(sha256, member.name)
    if written.kind != "hydra":
        return
    if compared or not written.fusion.averaged:
        return
    to_average = names_to_average(opened[0].weights, written.fusion)
    names = [name for name in sorted(to_average) if have_one_shape(opened, name)]
    if len(names) < len(to_average):
        yield "members keep other neurons in some layers: MLPs of these stay as they are"
    distance = spread(opened, names)
    averaged = " and ".join(written.fusion.averaged)
    if distance > FAR:
        yield (
            f"the members' {averaged} were trained separately (they differ by {100 * distance:.0f} %): "
            "their average is useless. Fuse with --mlp separate"
        )
    elif distance:
        yield (
            f"the members' {averaged} differ by {100 * distance:.1f} % and are replaced by their "
            "average: --check D measures what this changes, --mlp separate keeps them as they are"
        )


def _manifest_of(
    opened: Sequence[Single],
    entry: Step,
    hashes: Sequence[str],
    plan: FusionPlan,
    arguments: FuseOptions,
) -> Callable[[str], Manifest]:
    """Return a function from the weights' hash to the manifest. `hashes` are those of each member's
    weights within the hydra.
    """
    first = opened[0].manifest

    def manifest(sha256: str) -> Manifest:
        history = (*merged(member.manifest.history for member in opened), entry.wrote(sha256))
        if arguments.mean:
            return rewritten(first, scores={}, history=history, weights_sha256=sha256)
        return HydraManifest.of(
            first,
            members=tuple(
                Member(
                    kept=member.manifest.kept,
                    kept_neurons=member.manifest.kept_neurons,
                    sha256=hashed,
                )
                for member, hashed in zip(opened, hashes, strict=True)
            ),
            fusion=Fusion(
                mlp=arguments.mlps, norms=arguments.norms or "separate", trunk=plan.trunk
            ),
            weights_sha256=sha256,
            history=history,
        )

    return manifest


def _checked(
    opened: Sequence[Single], target: Path, samples: Samples, arguments: FuseOptions
) -> Agreement:
    """Return how far the hydra agrees with its members; raise CheckFailed beyond the tolerance."""
    try:
        agreement = _agreement(opened, target, samples, arguments)
    except CheckpointError as error:  # weights or logits that are no numbers agree with nothing
        raise CheckFailed(error.message, hint=error.hint) from error
    # `not <=`: NaN is larger than nothing.
    if not agreement.mean_difference <= arguments.tolerance:
        hint = "The file is written. Fuse with --mlp separate, tune members with `finetune --freeze mlp`, or allow more with --tolerance."
        if arguments.mean:
            hint = "Raise --tolerance, or fuse them into a hydra."
        if arguments.mean_trunk is not None:
            hint = "Raise --tolerance, or give a shorter --mean-trunk."
        before, after = (
            "n/a" if value is None else f"{100 * value:.2f} %"
            for value in (agreement.accuracy_members, agreement.accuracy_fused)
        )
        raise CheckFailed(
            f"{target}: a class probability differs by {agreement.mean_difference:.4g} on average "
            "from the "
            f"unfused members' (at most {agreement.max_difference:.4f}, KL {agreement.kl:.5f}, "
            "accuracy "
            f"{before} → {after}); allowed is {arguments.tolerance:g}",
            hint=hint,
        )
    return agreement


def fusable(opened: Sequence[Single]) -> None:
    """Raise SurgeryError unless the members share an architecture, inputs and classes."""

    def facts(member: Single) -> dict[str, object]:
        model = member.manifest.model
        config = {f"configuration {key}": value for key, value in model.config.items()}
        towers = {"towers": member.manifest.towers}
        return {word: getattr(model, name) for word, name in ALIKE.items()} | config | towers

    first = opened[0]
    first_facts = facts(first)
    for other in opened[1:]:
        other_facts = facts(other)
        field = next(
            (
                key
                for key in {**first_facts, **other_facts}
                if first_facts.get(key) != other_facts.get(key)
            ),
            None,
        )
        if field is not None:
            raise SurgeryError(
                f"{first.name} and {other.name} cannot be fused: {field} differs "
                f"({first_facts.get(field)} / {other_facts.get(field)})",
                hint="Fuse members that were pruned from the same backbone.",
            )


def _agreement(opened: Sequence[Single], target: Path, samples: Samples, run: Run) -> Agreement:
    """Compare the members, run one by one, with the hydra on the same samples."""
    import numpy as np

    from hydrasurgeon.runtime.answering import collected
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.statistics.metrics import accuracy
    from hydrasurgeon.statistics.probabilities import TINY, member_probs
    from hydrasurgeon.tasks import task_of

    def answer(checkpoints: Sequence[Checkpoint]) -> Outputs:
        models = [as_classifier(c, device=run.device, dtype=run.dtype) for c in checkpoints]
        return collected(models, samples, run)

    fused_checkpoint = open_checkpoint(target)
    alone, together = answer(opened), answer([fused_checkpoint])
    labels = alone.labels
    task = task_of(fused_checkpoint.manifest.model)
    (rows, truth), (fused, _) = (
        task.choices(outputs.logits, labels) for outputs in (alone, together)
    )
    p, q = member_probs(rows), member_probs(fused)
    p = p if q.shape[1] > 1 else p.mean(axis=1, keepdims=True)  # one model answers for all of them
    mean_p, mean_q = p.mean(axis=1), q.mean(axis=1)
    logs = [np.log(np.maximum(mean, TINY)) for mean in (mean_p, mean_q)]
    kl = (mean_p * (logs[0] - logs[1])).sum(axis=1).mean()
    return Agreement(
        samples=len(p),
        max_difference=float(np.abs(p - q).max()),
        mean_difference=float(np.abs(p - q).mean()),
        kl=float(kl),
        accuracy_members=None if labels is None else accuracy(mean_p, truth),
        accuracy_fused=None if labels is None else accuracy(mean_q, truth),
    )
