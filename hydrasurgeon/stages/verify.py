"""verify: what can be proven about a checkpoint, from itself and from the files it was made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.at_hand import AtHand, Found
from hydrasurgeon.checkpoints.checks import Check, checks_alone, read_through
from hydrasurgeon.checkpoints.decided import undecided
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import Disagreement
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.files.tensors import weights_sha256
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.trusting import VerifyOptions

FORMAT = "hydrasurgeon.verify/1"
"""Of the JSON report."""


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


@stage(VerifyOptions)
def verify(arguments: VerifyOptions) -> Verification:
    """Check a checkpoint against itself; with `parents` against what it was made from too."""
    checkpoint = arguments.checkpoint
    at_hand = None if arguments.parents is None else AtHand(arguments.parents)
    try:
        opened = open_checkpoint(checkpoint, arch=arguments.arch)
    except Disagreement as error:  # every other command refuses it; here it is what was asked
        return Verification(Path(checkpoint), None, None, (Check("manifest", False, error.message),))
    signed: list[Check] = []
    if arguments.signature is not None:
        from hydrasurgeon.stages.sign import check_signature

        signed = [check_signature(opened, arguments.signature, arguments.public_key)]
    contents = read_through(opened)
    checks = [*signed, *checks_alone(opened, contents)]
    if at_hand is not None:
        from hydrasurgeon.runtime.difference import Inputs
        from hydrasurgeon.stages.ancestry import ancestry

        inputs = Inputs(arguments.data, arguments)
        # What was fitted to the weights is no part of what surgery made.
        plain = undecided(opened)
        digests = {name: contents.digests[name] for name in plain.tensors}
        checks += ancestry(Found(plain, digests), at_hand, inputs)
    return Verification(
        opened.path, opened.manifest, weights_sha256(opened.tensors, contents.digests), tuple(checks), opened.note
    )
