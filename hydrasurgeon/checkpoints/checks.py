"""Checks of a checkpoint by its own files: that it is complete, not where it comes from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checkpoint import Checkpoint
from hydrasurgeon.checkpoints.folder import config_of
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.history import installed
from hydrasurgeon.files.manifest import HEADER_KEY, MAX_BYTES, HydraManifest, Manifest
from hydrasurgeon.files.tensors import finite, spoiled, weights_sha256
from hydrasurgeon.files.untrusted import read_text, visible

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw


@dataclass(frozen=True)
class Check:
    """One line of `verify`: what was looked at, and how it came out."""

    name: str
    holds: bool | None
    """None: it could not be checked, `detail` says why."""
    detail: str


CODE = (".py", ".pyc", ".so", ".pyd")
"""Endings of files that Python runs."""
NAMES_CODE = re.compile(r".*config.*\.json|modules\.json")
"""Files of a directory by which libraries choose what to run."""
RUN = ("auto_map", "custom_pipelines")
"""Their keys that name code."""


def short(sha256: str) -> str:
    return f"{sha256[:12]}…"


@dataclass(frozen=True)
class WeightCheck:
    """Hashes and flaws of all weights, from one pass over them."""

    digests: dict[str, str]
    """sha256 of every tensor."""
    spoiled: tuple[str, ...]
    """Tensors that hold NaN or infinity."""
    members: tuple[str, ...]
    """For a hydra, the hash of each member's weights as put together again."""


def read_through(checkpoint: Checkpoint) -> WeightCheck:
    """Hash every tensor and look at its numbers on the way."""
    spoiled: set[str] = set()

    def look(name: str, rows: Raw) -> None:
        if not finite(rows.reshape(-1).view("u1"), checkpoint.tensors[name].dtype):
            spoiled.add(name)

    digests, members = checkpoint.hashes(look)
    return WeightCheck(digests, tuple(sorted(spoiled)), tuple(members))


def sound_digests(checkpoint: Checkpoint) -> dict[str, str]:
    """Hash all weights; refuse hashes other than the manifest's, and values that are not finite."""
    contents = read_through(checkpoint)
    checkpoint.check(contents.digests)
    if contents.spoiled:
        raise spoiled(first(contents.spoiled), checkpoint.path)
    return contents.digests


def checks_alone(checkpoint: Checkpoint, contents: WeightCheck) -> list[Check]:
    """Run all checks that need no other file; opening has checked that the parts agree."""
    model, manifest = checkpoint.manifest.model, checkpoint.manifest
    actual, recorded_hash = (
        weights_sha256(checkpoint.tensors, contents.digests),
        manifest.weights_sha256,
    )
    holds: bool | None = actual == recorded_hash
    detail = short(actual)
    if not checkpoint.recorded:
        holds, detail = None, f"{detail}; no manifest says what it should be"
    elif not holds:
        detail = f"the manifest says {short(recorded_hash)}, the tensors {detail}"
    numbers = (
        f"NaN or infinity in {first(contents.spoiled)}"
        if contents.spoiled
        else f"{len(contents.digests)} tensors"
    )
    checks = [
        Check("weights hash", holds, detail),
        Check("finite weights", not contents.spoiled, numbers),
        Check("shapes", True, f"those of {model.family}:{model.arch} with the kept heads"),
    ]
    if checkpoint.unused:
        names = first(checkpoint.unused)
        checks.append(
            Check("unused tensors", None, f"{names}: the model uses none, no hash covers them")
        )
    if checkpoint.path.is_dir():
        checks += [*_config(checkpoint), _code(checkpoint)]
    if checkpoint.files:
        checks.append(Check("companions", True, ", ".join(sorted(checkpoint.files))))
    if manifest.kind == "hydra":
        checks += _members(manifest, contents.members)
    if checkpoint.recorded:
        checks.append(record_check(manifest))
    return [*checks, history_check(manifest)]


def record_check(manifest: Manifest) -> Check:
    """Check that the manifest is as it was when the file was written."""
    name, recorded_hash, actual = "manifest hash", manifest.record_sha256, manifest.record_hash()
    if recorded_hash is None:
        # An older version that made it says so in its last step.
        by = manifest.history[-1].versions.get("hydrasurgeon") if manifest.history else None
        if by is not None and by == installed("hydrasurgeon"):
            return Check(name, False, f"it is missing, and version {by} writes one")
        return Check(name, None, "older versions recorded none")
    if recorded_hash != actual:
        detail = (
            f"the manifest says {short(recorded_hash)}, what it holds hashes to {short(actual)}"
        )
        return Check(name, False, detail)
    return Check(name, True, short(actual))


def _config(checkpoint: Checkpoint) -> Iterator[Check]:
    """Check that a config of ours agrees with the manifest.

    Otherwise other libraries would run another model.
    """
    family = checkpoint.family
    name, config = family.config_file, config_of(checkpoint.path)[1]
    if config is None or HEADER_KEY not in checkpoint.tensors.files[0].metadata:
        return
    for key, value in json.loads(family.directory(checkpoint.manifest).get(name, "{}")).items():
        if config.get(key) != value:
            detail = f"{key} is {str(config.get(key))[:60]!r} there, {str(value)[:60]!r} by the manifest, which counts here"
            yield Check(name, False, detail)


def _code(checkpoint: Checkpoint) -> Check:
    """Check the Python in a directory, and the code that its configs name.

    Loading with `trust_remote_code` runs both.
    """
    folder, written = checkpoint.path, checkpoint.family.directory(checkpoint.manifest)
    our_config = json.loads(written.get("config.json", "{}"))
    wrote = list[str]()
    for home, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(home, name)
            where = path.relative_to(folder).as_posix()
            if name.endswith(CODE):
                if where not in written or _text(path) != written[where]:
                    return Check("code", False, f"{visible(where)} is not what we write")
                wrote.append(where)
            elif NAMES_CODE.fullmatch(name):
                expected = our_config if where == "config.json" else {}
                key = _names_code(_text(path), expected)
                if key is not None:
                    return Check("code", False, f"{visible(where)}: its {key} is not what we write")
    return Check("code", True, f"{', '.join(wrote)}: as we write it" if wrote else "there is none")


def _text(path: Path) -> str | None:
    """Read a small file's text; None if it cannot be read."""
    try:
        return read_text(path, most=MAX_BYTES)
    except CheckpointError:
        return None


def _names_code(text: str | None, our_config: Mapping[str, Any]) -> str | None:
    """Return the key of a config that names code other than ours; None if there is none."""
    try:
        config = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if isinstance(config, list):  # sentence-transformers' modules
        types = [str(entry.get("type")) if isinstance(entry, dict) else "" for entry in config]
        other_types = [name for name in types if not name.startswith("sentence_transformers.")]
        return "type" if other_types else None
    if not isinstance(config, dict):
        return "text"
    return next((key for key in RUN if config.get(key) != our_config.get(key)), None)


def first(names: Sequence[str]) -> str:
    """Print the first name, and how many more there are."""
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _members(manifest: HydraManifest, hashes: Sequence[str]) -> Iterator[Check]:
    """Check that each member's tensors, put together again, hash to the manifest's value."""
    equal = [
        member.sha256 == sha256 for member, sha256 in zip(manifest.members, hashes, strict=True)
    ]
    for i, member in enumerate(manifest.members):
        if equal[i]:
            yield Check(f"member {i}", True, f"its tensors hash to {short(member.sha256)}")
        elif manifest.fusion.averaged and not any(equal):
            # An average is none of its terms: then no member can be put together again.
            averaged = " and ".join(manifest.fusion.averaged)
            yield Check(
                f"member {i}",
                None,
                f"not possible: its {averaged} were averaged with the other members'",
            )
        else:
            detail = f"the manifest says {short(member.sha256)}, its tensors {short(hashes[i])}"
            yield Check(f"member {i}", False, detail)


def history_check(manifest: Manifest) -> Check:
    """Check that the history is complete.

    Each step reads what an earlier one wrote, or a backbone with which the history begins. Whatever
    a step wrote is read by another step, or is the checkpoint itself.
    """
    steps = manifest.history
    if not steps:
        return Check("history", None, "nothing is recorded")
    pruned: dict[str, bool] = {}
    unread: dict[str, str] = {}
    members = [False]
    for number, entry in enumerate(steps, 1):
        step = f"step {number}, {entry.command}"
        read = [source.sha256 for source in entry.inputs]
        wrote = entry.output
        if not read and entry.command != "finetune":
            return Check("history", False, f"{step}, read nothing")
        if entry.command == "score":  # which writes into the manifest alone
            if wrote not in (None, *read):
                return Check("history", False, f"{step}, read other weights than it left")
            wrote = read[0]
        if wrote is None:
            return Check("history", None, f"{step}, does not say what it wrote")
        ways = [entry.command == "prune" or pruned.get(sha256, False) for sha256 in read]
        if entry.command == "fuse":
            members = ways
        for sha256 in read:
            unread.pop(sha256, None)
        pruned[wrote] = any(ways)
        unread[wrote] = step
    if unread.pop(manifest.weights_sha256, None) is None:
        return Check("history", False, "no step wrote these weights")
    if unread:
        sha256, step = next(iter(unread.items()))
        return Check("history", False, f"no step read what {step}, left ({short(sha256)})")
    if manifest.kind != "hydra":
        members = [pruned[manifest.weights_sha256]]
    for number, (cut, way) in enumerate(zip(_cut(manifest), members, strict=True)):
        if cut and not way:
            subject = f"member {number}" if manifest.kind == "hydra" else "the checkpoint"
            return Check("history", False, f"no step pruned {subject}, which has lost heads")
    detail = f"{len(steps)} steps, which read backbones or what earlier ones wrote"
    return Check("history", True, detail)


def _cut(manifest: Manifest) -> Iterator[bool]:
    """Yield for each member whether heads or neurons are missing."""
    full = {name: (tower.heads,) * tower.layers for name, tower in manifest.towers.items()}
    for record in manifest.members or (manifest,):
        counts = {name: tuple(map(len, rows)) for name, rows in (record.kept or {}).items()}
        yield counts != full or record.kept_neurons is not None
