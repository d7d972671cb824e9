"""verify: what a checkpoint's own files prove about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.checks import (
    Check,
    checks_alone,
    history_check,
    read_through,
    record_check,
)
from hydrasurgeon.engines import open_any
from hydrasurgeon.errors import CheckFailed, Disagreement
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.files.tensors import weights_sha256
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.measuring import VerifyOptions

FORMAT = "hydrasurgeon.verify/1"
"""Format identifier of the JSON report."""


@dataclass(frozen=True)
class Verification:
    """A checkpoint, and how each check of it came out."""

    path: Path
    checks: tuple[Check, ...]
    manifest: Manifest | None = None
    """None where there are several, and they disagree."""
    weights_sha256: str | None = None
    """Hash of the tensors, whatever the manifest records."""
    note: str | None = None

    @property
    def broken(self) -> list[Check]:
        """Checks that fail. A check that could not run is no failure."""
        return [check for check in self.checks if check.holds is False]

    @property
    def holds(self) -> bool:
        return not self.broken

    def require(self) -> None:
        """Raise CheckFailed if a check fails."""
        if self.holds:
            return
        first, *rest = self.broken
        more = f", nor do {len(rest)} more" if rest else ""
        raise CheckFailed(
            f"{self.path}: {first.name} does not hold ({first.detail}){more}",
            hint="Do not use the file until you know why.",
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "path": str(self.path),
            "kind": None if self.manifest is None else self.manifest.kind,
            "weights_sha256": self.weights_sha256,
            "holds": self.holds,
            "checks": [asdict(check) for check in self.checks],
        }


@stage(VerifyOptions)
def verify(arguments: VerifyOptions) -> Verification:
    """Check a checkpoint against itself."""
    try:
        opened = open_any(arguments.checkpoint, arch=arguments.arch)
    except Disagreement as error:  # every other command refuses it; here it is what was asked
        check = Check("manifest", False, error.message)
        return Verification(Path(arguments.checkpoint), (check,))
    manifest = opened.manifest
    if getattr(opened, "costs", None) is not None:  # a graph, whose hash held when it was opened
        graph = Check("graph hash", True, "the file is as it was exported")
        checks = (graph, record_check(manifest), history_check(manifest))
        return Verification(opened.path, checks, manifest, manifest.weights_sha256)
    contents = read_through(opened)
    return Verification(
        opened.path,
        tuple(checks_alone(opened, contents)),
        manifest,
        weights_sha256(opened.tensors, contents.digests),
        opened.note,
    )
