"""verify: what can be proven about a checkpoint, from itself and from the files it was made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.at_hand import AtHand, Found
from hydrasurgeon.checkpoints.checks import Check, checks_alone, read_through
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import Disagreement, UsageError
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.files.tensors import weights_sha256

__all__ = ["Verification", "verify"]

FORMAT = "hydrasurgeon.verify/1"


@dataclass(frozen=True)
class Verification:
    """What was checked, and how each check came out."""

    path: Path
    manifest: Manifest | None
    """None where there are several, and they disagree."""
    weights_sha256: str | None
    """As the tensors hash, whatever the manifest says."""
    checks: tuple[Check, ...]
    note: str | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing was found that does not hold; what could not be checked does not count."""
        return all(check.holds is not False for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "path": str(self.path),
            "kind": None if self.manifest is None else self.manifest.kind,
            "weights_sha256": self.weights_sha256,
            "holds": self.holds,
            "checks": [asdict(check) for check in self.checks],
        }


def verify(
    checkpoint: str | Path,
    *,
    parents: str | Path | None = None,
    data: str | None = None,
    signature: str | Path | None = None,
    public_key: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float64",
    batch_size: int | None = None,
    arch: str | None = None,
) -> Verification:
    """Check a checkpoint against itself; with `parents` against what it was made from too."""
    if dtype not in ("float64", "float32"):
        raise UsageError(f"--dtype {dtype}: outputs are compared in float64 or float32")
    if data is not None and parents is None:
        raise UsageError("--data: nothing runs without --parents", hint="Give --parents DIR too.")
    if public_key is not None and signature is None:
        raise UsageError("--public-key: of which signature?", hint="Give --signature SIG.")
    at_hand = None if parents is None else AtHand(parents)
    try:
        opened = open_checkpoint(checkpoint, arch=arch)
    except Disagreement as error:  # every other command refuses it; here it is what was asked
        return Verification(
            Path(checkpoint), None, None, (Check("manifest", False, error.message),)
        )
    signed: list[Check] = []
    if signature is not None:
        from hydrasurgeon.stages.sign import check_signature

        signed = [check_signature(opened, signature, public_key)]
    contents = read_through(opened)
    checks = [*signed, *checks_alone(opened, contents)]
    if at_hand is not None:
        from hydrasurgeon.runtime.difference import Inputs
        from hydrasurgeon.stages.ancestry import ancestry

        inputs = Inputs(data, limit, seed, device, dtype, batch_size)
        checks += ancestry(Found(opened, contents.digests), at_hand, inputs)
    return Verification(
        opened.path, opened.manifest, weights_sha256(opened.tensors, contents.digests), tuple(checks), opened.note
    )  # fmt: skip
