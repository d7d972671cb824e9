"""The checkpoints of a folder, by the hash of their weights: names may have changed, bytes have not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydrasurgeon.checkpoints.decided import undecided
from hydrasurgeon.checkpoints.folder import entries
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import CheckpointError, HydraError, ManifestError
from hydrasurgeon.files.tensors import weights_sha256


@dataclass(frozen=True)
class Found:
    """A checkpoint whose weights were hashed, and the hash of each of its tensors."""

    checkpoint: Checkpoint
    digests: dict[str, str]


class AtHand:
    """A folder's checkpoints and checkpoint directories, one level deep; hashed when they are asked for."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise CheckpointError(f"{folder}: no such folder")
        self._claims: dict[Path, str | None] | None = None
        """What each file's manifest says its weights hash to; None for files without one."""
        self._found: dict[tuple[Path, str | None], tuple[str, Found] | None] = {}

    def find(
        self, sha256: str, *, name: str | None = None, arch: str | None = None, kind: str | None = None
    ) -> Found | None:
        """The checkpoint with these weights, the one called `name` first; `arch` reads what says nothing itself."""
        claims = self._read_claims()
        paths = [path for path, claim in claims.items() if claim in (sha256, None)]
        for path in sorted(paths, key=lambda path: (path.name != name, claims[path] is None, path)):
            entry = self._hashed(path, arch if claims[path] is None else None)
            if entry is None or entry[0] != sha256:
                continue
            if kind is None or entry[1].checkpoint.manifest.kind == kind:
                return entry[1]
        return None

    def _read_claims(self) -> dict[Path, str | None]:
        if self._claims is None:
            self._claims = {}
            for path in (self.folder / name for name in entries(self.folder)):
                if path.suffix == ".safetensors" or (path.is_dir() and any(path.glob("*.safetensors"))):
                    self._claims[path] = _claim(_opened(path, None))
        return self._claims

    def _hashed(self, path: Path, arch: str | None) -> tuple[str, Found] | None:
        if (path, arch) not in self._found:
            opened = _opened(path, arch) or _opened(path, None)
            try:
                digests = None if opened is None else opened.digests()
            except ManifestError:  # its manifest lies about its weights: it is not what it says
                digests = None
            self._found[path, arch] = (
                None
                if opened is None or digests is None
                else (weights_sha256(opened.tensors, digests), Found(opened, digests))
            )
        return self._found[path, arch]


def _claim(opened: Checkpoint | None) -> str | None:
    return opened.manifest.weights_sha256 if opened is not None and opened.recorded else None


def _opened(path: Path, arch: str | None) -> Checkpoint | None:
    """The checkpoint, or None for what is none that can be read: a folder holds other things too.

    Without a decision state: what was fitted to weights does not tell what was made of them.
    """
    try:
        return undecided(open_checkpoint(path, arch=arch))
    except HydraError:
        return None
