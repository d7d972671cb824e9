"""Where a result goes: a file or a directory that is this command's to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydrasurgeon.checkpoints.writing import claim_checkpoint, save, shard_size
from hydrasurgeon.files.manifest import ManifestT
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.options.shared import Output


@dataclass(frozen=True)
class Target:
    """A place that is this command's to write."""

    path: Path
    shard: int | None
    """Bytes of weights in one file of a directory."""

    def save(
        self,
        planned: Sequence[Planned],
        manifest: Callable[[str], ManifestT],
        *,
        files: Mapping[str, str],
    ) -> ManifestT:
        """Write weights, manifest and companions, all or nothing."""
        return save(self.path, planned, manifest, files=files, shard=self.shard)


def claimed(arguments: Output, out: str | Path) -> Target:
    """`-o`, held until the command ends."""
    path = claim_checkpoint(out, force=arguments.force, inputs=arguments.sources)
    return Target(path, shard_size(arguments.max_shard_size, path))
