"""fuse: members → one hydra file (paper section 4.2); a file operation, unless `--check` runs both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydrasurgeon.checkpoints.class_names import asked, names_in, with_class_names
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, single
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save, shard_size
from hydrasurgeon.errors import CheckFailed, CheckpointError, SurgeryError, UsageError
from hydrasurgeon.files.history import merged, step
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.manifest import Fusion, Manifest, Member
from hydrasurgeon.files.tensors import weights_sha256
from hydrasurgeon.run import Progress
from hydrasurgeon.sharing.upload import destination, publish
from hydrasurgeon.surgery.fusion import plan_fusion

__all__ = ["Agreement", "Fused", "fuse"]


@dataclass(frozen=True)
class Agreement:
    """How far the fused predictions are from those of the members, run one by one."""

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
    manifest: Manifest
    bytes_members: int
    bytes_stored: int
    agreement: Agreement | None = None
    hub: str | None = None
    """Where on the hub it was uploaded to."""


@releases_claims
def fuse(
    members: Sequence[str | Path],
    *,
    out: str | Path,
    mlp: str = "average",
    check: str | None = None,
    classes: str | None = None,
    template: Sequence[str] = (),
    tolerance: float = 0.02,
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int | None = None,
    force: bool = False,
    max_shard_size: str | None = None,
    push_to_hub: str | None = None,
    private: bool = False,
    progress: Progress | None = None,
) -> Fused:
    """Write one hydra that runs all members in one pass."""
    if len(members) < 2:
        raise UsageError("fuse: a hydra needs at least two members")
    if mlp not in ("average", "separate"):
        raise UsageError(f"--mlp {mlp}: must be average or separate")
    if not tolerance >= 0:
        raise UsageError(f"--tolerance {tolerance:g}: must be 0 or more")
    repository = destination(push_to_hub, private=private)
    opened = [open_checkpoint(member) for member in members]
    for member in opened:
        single(member)
    names = None if check is None else names_in(check)
    opened = [with_class_names(m, classes=classes, templates=template, names=names) for m in opened]
    _fusable(opened)
    target = claim_checkpoint(out, force=force, inputs=[members, check, classes, template])
    shard = shard_size(max_shard_size, target)
    digests = [member.digests() for member in opened]
    plan = plan_fusion(opened, digests, average_mlp=mlp == "average")
    first = opened[0].manifest
    records = [member.record(d) for member, d in zip(opened, digests, strict=True)]
    # `mlp` is an argument that changes nothing where the MLPs are equal; what was asked for is recorded.
    entry = step("fuse", args={"mlp": mlp, **asked(classes, template)}, inputs=records, seed=seed)

    def manifest(sha256: str) -> Manifest:
        return Manifest(
            kind="hydra",
            model=first.model,
            towers=first.towers,
            members=tuple(
                Member(kept=member.manifest.kept or {}, sha256=weights_sha256(member.tensors, d))
                for member, d in zip(opened, digests, strict=True)
            ),
            fusion=Fusion(mlp="average" if mlp == "average" else "separate", trunk=plan.trunk),
            weights_sha256=sha256,
            history=(*merged(member.manifest.history for member in opened), entry),
        )

    written = save(target, plan.planned, manifest, files=opened[0].files, shard=shard)
    agreement = None
    if check is not None:
        try:
            agreement = _agreement(
                opened, target, check, limit, seed, device, dtype, batch_size, progress
            )
        except CheckpointError as error:  # weights or logits that are no numbers agree with nothing
            raise CheckFailed(error.message, hint=error.hint) from error
    # `not <=`: NaN is larger than nothing.
    if agreement is not None and not agreement.mean_difference <= tolerance:
        raise CheckFailed(
            f"{target}: a member's class probability differs by {agreement.mean_difference:.4g} on average from the "
            f"unfused member's (at most {agreement.max_difference:.4f}, KL {agreement.kl:.5f}, accuracy "
            f"{_percent(agreement.accuracy_members)} → {_percent(agreement.accuracy_fused)}); allowed is {tolerance:g}",
            hint="Fuse with --mlp separate, tune members with --freeze mlp, or allow more with --tolerance.",
        )
    hub = publish(target, written, opened[0].files, at=repository, bars=progress is not None)
    return Fused(target, written, plan.bytes_members, plan.bytes_stored, agreement, hub)


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.2f} %"


def _fusable(opened: Sequence[Checkpoint]) -> None:
    """Members must be prunings of one architecture that read and answer alike."""
    first = opened[0]
    for other in opened[1:]:
        a, b = first.manifest, other.manifest
        for what, left, right in (
            ("family", a.model.family, b.model.family),
            ("architecture", a.model.arch, b.model.arch),
            ("configuration", a.model.config, b.model.config),
            ("number of classes", a.model.num_classes, b.model.num_classes),
            ("labels", a.model.labels, b.model.labels),
            ("preprocessing", a.model.preprocess, b.model.preprocess),
            ("towers", a.towers, b.towers),
        ):
            if left != right:
                mine, theirs = _first_difference(left, right)
                raise SurgeryError(
                    f"{first.name} and {other.name} cannot be fused: {what} differs ({mine} / {theirs})",
                    hint="Fuse members that were pruned from the same backbone.",
                )


def _first_difference(left: object, right: object) -> tuple[object, object]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *right]:
            if left.get(key) != right.get(key):
                return f"{key}={left.get(key)}", f"{key}={right.get(key)}"
    return left, right


def _agreement(
    opened: Sequence[Checkpoint],
    target: Path,
    data: str,
    limit: int | None,
    seed: int,
    device: str,
    dtype: str,
    batch_size: int | None,
    progress: Progress | None,
) -> Agreement:
    from hydrasurgeon.data import open_data
    from hydrasurgeon.measuring.metrics import accuracy, member_probs
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.runtime.inference import logits_of

    samples = open_data(data, limit=limit, seed=seed)
    alone, labels = logits_of(
        [as_classifier(m, device=device, dtype=dtype) for m in opened],
        samples,
        batch_size=batch_size,
        progress=progress,
    )
    together, _ = logits_of(
        [as_classifier(open_checkpoint(target), device=device, dtype=dtype)],
        samples,
        batch_size=batch_size,
        progress=progress,
    )
    p, q = member_probs(alone), member_probs(together)
    mean_p, mean_q = p.mean(dim=1), q.mean(dim=1)
    tiny = 1e-300
    kl = (mean_p * (mean_p.clamp_min(tiny).log() - mean_q.clamp_min(tiny).log())).sum(dim=1).mean()
    return Agreement(
        samples=len(p),
        max_difference=float((p - q).abs().max()),
        mean_difference=float((p - q).abs().mean()),
        kl=float(kl),
        accuracy_members=None if labels is None else accuracy(mean_p, labels),
        accuracy_fused=None if labels is None else accuracy(mean_q, labels),
    )
