"""What a checkpoint's own files prove about it: hashes, numbers, members, the links of its history.

Whoever changes weights can change the hashes beside them too: that a file agrees with itself says that it is
whole, not where it comes from. `surgery/derivation.py` compares it with what it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydrasurgeon.checkpoints.hydra_layout import PREFIX, Source, member_sources
from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.families import backend
from hydrasurgeon.files.history import changes_weights
from hydrasurgeon.files.manifest import Member, Step
from hydrasurgeon.files.scan import Scanned
from hydrasurgeon.files.tensors import digest, weights_sha256
from hydrasurgeon.slicing import sliced_shape

__all__ = ["Check", "checks_alone", "short"]

# Tensors that belong to no member by design.
OWN = "hydrasurgeon."


@dataclass(frozen=True)
class Check:
    """One line of `verify`: what was looked at, and how it came out."""

    name: str
    holds: bool | None
    """None: it could not be checked, `detail` says why."""
    detail: str
    difference: float | None = None
    """Largest difference of two outputs or weights, where there were two to compare."""


def short(sha256: str) -> str:
    return f"{sha256[:12]}…"


def checks_alone(checkpoint: Checkpoint, scanned: Mapping[str, Scanned]) -> list[Check]:
    """Everything that needs no other file; names, shapes and companions were checked on opening."""
    digests = {name: tensor.sha256 for name, tensor in scanned.items()}
    manifest = checkpoint.manifest
    checks = [
        _weights(checkpoint, digests),
        _finite(checkpoint, scanned),
        _shapes(checkpoint),
        _companions(checkpoint),
    ]
    if manifest.members is not None:
        checks += _members(checkpoint, manifest.members, digests)
    return [*checks, _history(checkpoint, digests)]


def _weights(checkpoint: Checkpoint, digests: Mapping[str, str]) -> Check:
    actual = weights_sha256(checkpoint.tensors, digests)
    if not checkpoint.recorded:
        return Check("weights hash", None, f"{short(actual)}; no manifest says what it should be")
    recorded = checkpoint.manifest.weights_sha256
    if actual != recorded:
        return Check(
            "weights hash", False, f"the manifest says {short(recorded)}, the tensors {short(actual)}"
        )  # fmt: skip
    return Check("weights hash", True, short(actual))


def _finite(checkpoint: Checkpoint, scanned: Mapping[str, Scanned]) -> Check:
    wrong = [name for name, tensor in scanned.items() if not tensor.finite]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return Check("finite weights", False, f"NaN or infinity in {wrong[0]}{more}")
    return Check("finite weights", True, f"{len(scanned)} tensors")


def _shapes(checkpoint: Checkpoint) -> Check:
    """Missing tensors and wrong shapes are refused on opening; what is left is what no member uses."""
    model = checkpoint.manifest.model
    if checkpoint.manifest.members is not None:
        used = {s.stored for sources in member_sources(checkpoint) for s in sources.values()}
        idle = [name for name in checkpoint.tensors if name not in used and not name.startswith(OWN)]  # fmt: skip
        if idle:
            more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
            return Check("names and shapes", False, f"no member uses {idle[0]}{more}")
    return Check("names and shapes", True, f"those of {model.family}:{model.arch} with the kept heads")  # fmt: skip


def _companions(checkpoint: Checkpoint) -> Check:
    count = len(checkpoint.files)
    if not count:
        return Check("companions", True, "there are none")
    return Check("companions", True, f"{count} {'file' if count == 1 else 'files'}")


def _members(
    checkpoint: Checkpoint, members: Sequence[Member], digests: Mapping[str, str]
) -> list[Check]:
    """A member's tensors put together again hash to what the manifest says, unless MLPs were averaged."""
    fusion = checkpoint.manifest.fusion
    averaged = fusion is not None and fusion.mlp == "average"
    checks = []
    for i, (member, sources) in enumerate(zip(members, member_sources(checkpoint), strict=True)):
        name = f"member {i}"
        rebuilt = _rebuilt(checkpoint, member, sources, digests)
        if rebuilt == member.sha256:
            checks.append(Check(name, True, f"its tensors hash to {short(rebuilt)}"))
        elif averaged and not _own_mlps(checkpoint, i):
            checks.append(
                Check(name, None, "not rebuilt from averaged MLPs: give its folder as --parents")
            )
        else:
            checks.append(
                Check(name, False, f"the manifest says {short(member.sha256)}, its tensors {short(rebuilt)}")
            )  # fmt: skip
    return checks


def _own_mlps(checkpoint: Checkpoint, member: int) -> bool:
    """Whether the file holds MLPs of this member alone, which are then no averages."""
    manifest = checkpoint.manifest
    family = backend(manifest.model.family)
    mlps = [n for n in family.expected(manifest.model, manifest.towers) if family.is_mlp(n)]
    return all(PREFIX.format(member, name) in checkpoint.tensors for name in mlps)


def _rebuilt(
    checkpoint: Checkpoint,
    member: Member,
    sources: Mapping[str, Source],
    digests: Mapping[str, str],
) -> str:
    """The weights' hash of one member; only tensors it has a part of are read again."""
    infos, hashes = {}, {}
    for name, source in sources.items():
        info = checkpoint.tensors[source.stored]
        shape = info.shape
        hashes[name] = digests[source.stored]
        if source.at is not None and source.spec is not None:
            shape = sliced_shape(shape, len(source.at), spec=source.spec, head_dim=source.head_dim)
            hashes[name] = digest(source.cut(checkpoint.tensors.read(source.stored)))
        infos[name] = info.named(name, shape)
    return weights_sha256(infos, hashes)


def _history(checkpoint: Checkpoint, digests: Mapping[str, str]) -> Check:
    """The links that the history tells by itself: what a step read must be what the one before it left."""
    manifest = checkpoint.manifest
    steps = manifest.history
    if not steps:
        return Check("history", None, "nothing is recorded")
    if manifest.members is not None:
        fused = next((entry for entry in reversed(steps) if entry.command == "fuse"), None)
        if fused is None:
            return Check("history", None, "no fuse is recorded")
        links = len(fused.inputs)
        if [each.sha256 for each in fused.inputs] != [each.sha256 for each in manifest.members]:
            return Check("history", False, "fuse read other files than the members listed")
    else:
        broken = _broken_link(steps, weights_sha256(checkpoint.tensors, digests))
        if broken is not None:
            return Check("history", False, broken)
        links = sum(not changes_weights(entry) for entry in steps)
    return Check("history", True, f"{len(steps)} steps, {links} links told by the file itself")


def _broken_link(steps: Sequence[Step], weights: str) -> str | None:
    """In a history that is one chain: where a step did not read what the step before it left."""
    reads = [entry.inputs[0].sha256 if entry.inputs else None for entry in steps]
    for at, entry in enumerate(steps):
        if len(entry.inputs) > 1 or (at > 0 and not entry.inputs):
            return f"step {at + 1}, {entry.command}, read {len(entry.inputs)} files instead of one"
        # Scores change no weights: the next step finds those that were scored.
        if not changes_weights(entry) and reads[at] != [*reads[1:], weights][at]:
            return f"step {at + 1}, {entry.command}, read other weights than it left"
    return None
