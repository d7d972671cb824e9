"""Where a result goes: a file or a directory that is this command's to write, and a repository of the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydrasurgeon.checkpoints.writing import claim_checkpoint, save, shard_size
from hydrasurgeon.files.manifest import Manifest, ManifestT
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.options.shared import Output
from hydrasurgeon.sharing.upload import Repository, destination, publish


def repository_of(arguments: Output) -> Repository | None:
    """Where on the hub the result goes; refused before any work if nothing could be written there."""
    return destination(arguments.push_to_hub, private=arguments.private)


def claimed(arguments: Output, out: str | Path, *, inputs: Iterable[object], repository: Repository | None) -> Target:
    """`-o`, held until the command ends."""
    path = claim_checkpoint(out, force=arguments.force, inputs=inputs)
    return Target(path, shard_size(arguments.max_shard_size, path), repository)


@dataclass(frozen=True)
class Target:
    """A place that is this command's to write."""

    path: Path
    shard: int | None
    """Bytes of weights in one file of a directory."""
    repository: Repository | None

    def save(
        self, planned: Sequence[Planned], manifest: Callable[[str], ManifestT], *, files: Mapping[str, str]
    ) -> ManifestT:
        """Write weights, manifest and companions, all or nothing."""
        return save(self.path, planned, manifest, files=files, shard=self.shard)

    def publish(self, manifest: Manifest, files: Mapping[str, str], *, bars: bool) -> str | None:
        """Upload what was written, if anywhere; the repository's address."""
        return publish(self.path, manifest, files, at=self.repository, bars=bars)
