"""What a checkpoint's own files prove about it: that it is whole, not where it comes from
(`stages/ancestry.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.folder import config_of
from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.files.history import changes_weights
from hydrasurgeon.files.manifest import HEADER_KEY, HydraManifest, Step
from hydrasurgeon.files.tensors import finite, spoiled, weights_sha256

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw


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


@dataclass(frozen=True)
class Contents:
    """What one pass over all weights gives."""

    digests: dict[str, str]
    """sha256 of every tensor."""
    spoiled: tuple[str, ...]
    """Tensors that hold NaN or infinity."""
    members: tuple[str, ...]
    """For a hydra, the hash of each member's weights as put together again."""


def read_through(checkpoint: Checkpoint) -> Contents:
    """Hash every tensor and look at its numbers on the way."""
    spoiled: set[str] = set()

    def look(name: str, rows: Raw) -> None:
        if not finite(rows.reshape(-1).view("u1"), checkpoint.tensors[name].dtype):
            spoiled.add(name)

    digests, members = checkpoint.hashes(look)
    return Contents(digests, tuple(sorted(spoiled)), tuple(members))


def sound_digests(checkpoint: Checkpoint) -> dict[str, str]:
    """The hashes of all weights; refused where they are others than the manifest's, or not finite."""
    contents = read_through(checkpoint)
    checkpoint.check(contents.digests)
    if contents.spoiled:
        raise spoiled(first(contents.spoiled), checkpoint.path)
    return contents.digests


def checks_alone(checkpoint: Checkpoint, contents: Contents) -> list[Check]:
    """Everything that needs no other file; that its parts agree was checked on opening."""
    model, manifest = checkpoint.manifest.model, checkpoint.manifest
    actual, wanted = weights_sha256(checkpoint.tensors, contents.digests), manifest.weights_sha256
    weights = Check("weights hash", True, short(actual))
    if not checkpoint.recorded:
        weights = Check(
            "weights hash", None, f"{short(actual)}; no manifest says what it should be"
        )
    elif actual != wanted:
        weights = Check(
            "weights hash", False, f"the manifest says {short(wanted)}, the tensors {short(actual)}"
        )
    numbers = (
        f"NaN or infinity in {first(contents.spoiled)}"
        if contents.spoiled
        else f"{len(contents.digests)} tensors"
    )
    checks = [
        weights,
        Check("finite weights", not contents.spoiled, numbers),
        Check("shapes", True, f"those of {model.family}:{model.arch} with the kept heads"),
    ]
    if checkpoint.path.is_dir():
        checks += _config(checkpoint)
    if checkpoint.files:
        checks.append(Check("companions", True, ", ".join(sorted(checkpoint.files))))
    if manifest.kind == "hydra":
        checks += _members(manifest, contents.members)
    return [*checks, _history(manifest.history, actual)]


def _config(checkpoint: Checkpoint) -> Iterator[Check]:
    """A config that we wrote says what the manifest says: else other libraries would run another
    model.
    """
    family = checkpoint.family
    name, config = family.config_file, config_of(checkpoint.path)[1]
    if config is None or HEADER_KEY not in checkpoint.tensors.files[0].metadata:
        return
    for key, value in json.loads(family.directory(checkpoint.manifest).get(name, "{}")).items():
        if config.get(key) != value:
            detail = (
                f"{key} is {str(config.get(key))[:60]!r} there, {str(value)[:60]!r} by the "
                "manifest, which counts here"
            )
            yield Check(name, False, detail)


def first(names: Sequence[str]) -> str:
    """One name, and how many more there are."""
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _members(manifest: HydraManifest, hashes: Sequence[str]) -> Iterator[Check]:
    """A member's tensors, put together again, hash to what the manifest says."""
    equal = [
        member.sha256 == sha256 for member, sha256 in zip(manifest.members, hashes, strict=True)
    ]
    for i, member in enumerate(manifest.members):
        if equal[i]:
            yield Check(f"member {i}", True, f"its tensors hash to {short(member.sha256)}")
        elif manifest.fusion.mlp == "average" and not any(equal):
            # An average of MLPs is none of its terms: then no member can be put together again.
            yield Check(
                f"member {i}", None, "not put together from averaged MLPs: --parents can tell"
            )
        else:
            detail = f"the manifest says {short(member.sha256)}, its tensors {short(hashes[i])}"
            yield Check(f"member {i}", False, detail)


def _history(steps: Sequence[Step], actual: str) -> Check:
    """A step read what the one before it wrote, and the last wrote these weights."""
    if not steps:
        return Check("history", None, "nothing is recorded")
    # What was fused has several histories, one after another: that it is of these members was
    # checked on opening.
    begin = max(
        (at for at, entry in enumerate(steps) if entry.command in ("fuse", "export")), default=0
    )
    wrote = None
    for at, entry in enumerate(steps[begin:], begin + 1):
        read = [source.sha256 for source in entry.inputs]
        if wrote is not None and read != [wrote]:
            return Check(
                "history",
                False,
                f"step {at}, {entry.command}, did not read what step {at - 1} wrote",
            )
        if not changes_weights(entry) and entry.output not in (None, *read):
            return Check(
                "history", False, f"step {at}, {entry.command}, read other weights than it left"
            )
        wrote = entry.output
    if wrote not in (None, actual):
        return Check(
            "history",
            False,
            f"its last step, {steps[-1].command}, wrote other weights ({short(wrote)})",
        )
    return Check("history", True, f"{len(steps)} steps, each of what the one before it wrote")


def must_hold(path: str, checks: Sequence[Check]) -> None:
    """Refuse what did not prove true."""
    broken = [check for check in checks if check.holds is False]
    if broken:
        more = f", nor do {len(broken) - 1} more" if len(broken) > 1 else ""
        raise CheckFailed(
            f"{path}: {broken[0].name} does not hold ({broken[0].detail}){more}",
            hint="Do not rely on it before you know why.",
        )
