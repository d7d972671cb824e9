"""The checkpoints of a folder, by the hash of their weights: names may have changed, bytes have not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hydrasurgeon.checkpoints.folder import entries
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, undecided
from hydrasurgeon.errors import CheckpointError, HydraError, ManifestError
from hydrasurgeon.files.tensors import weights_sha256


@dataclass(frozen=True)
class Hashed:
    """A checkpoint, and the hash of each of its tensors."""

    checkpoint: Checkpoint
    digests: dict[str, str]


class AtHand:
    """A folder's checkpoints and checkpoint directories, one level deep; hashed when they are asked for."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise CheckpointError(f"{folder}: no such directory")
        self._opened, self._hashed = cache(_opened), cache(_hashed)

    def find(
        self, sha256: str, *, name: str | None = None, arch: str | None = None, kind: str | None = None
    ) -> Hashed | None:
        """The checkpoint with these weights, the one called `name` first; `arch` reads what has no manifest."""
        paths = [self.folder / each for each in entries(self.folder)]
        for path in sorted(paths, key=lambda path: (path.name != name, path)):
            opened = self._opened(path, arch)
            if opened is None or kind not in (None, opened.manifest.kind):
                continue
            if opened.recorded and opened.manifest.weights_sha256 != sha256:
                continue
            hashed = self._hashed(path, arch)
            if hashed is not None and weights_sha256(opened.tensors, hashed.digests) == sha256:
                return hashed
        return None


def _opened(path: Path, arch: str | None) -> Checkpoint | None:
    """The checkpoint without a decision state, or None for what is none that can be read."""
    if path.suffix != ".safetensors" and not (path.is_dir() and any(path.glob("*.safetensors"))):
        return None
    try:
        return undecided(open_checkpoint(path, arch=arch))
    except HydraError:  # of another architecture, too
        return None if arch is None else _opened(path, None)


def _hashed(path: Path, arch: str | None) -> Hashed | None:
    """None where the manifest belongs to other weights."""
    opened = _opened(path, arch)
    try:
        return None if opened is None else Hashed(opened, opened.digests())
    except ManifestError:
        return None
