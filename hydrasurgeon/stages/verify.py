"""verify: what can be proven about a checkpoint, from itself and from the files it was made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checks import (
    Check,
    Checked,
    checks_alone,
    history_check,
    read_through,
    record_check,
)
from hydrasurgeon.checkpoints.reading import Checkpoint, undecided
from hydrasurgeon.engines import open_any
from hydrasurgeon.errors import Disagreement, UsageError
from hydrasurgeon.files.foreign import open_regular
from hydrasurgeon.files.manifest import Manifest, sidecar
from hydrasurgeon.files.tensors import weights_sha256
from hydrasurgeon.lookup import need
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.engines import ENDING
from hydrasurgeon.options.trusting import VerifyOptions
from hydrasurgeon.stages.ancestry import AtHand, Hashed
from hydrasurgeon.stages.replay import Replay, run_again

if TYPE_CHECKING:
    from model_signing.hashing import PathLike
    from model_signing.manifest import Manifest as Signed

FORMAT = "hydrasurgeon.verify/1"
"""Format identifier of the JSON report."""


@dataclass(frozen=True)
class Verification(Checked):
    """What was checked, and how each check came out."""

    manifest: Manifest | None = None
    """None where there are several, and they disagree."""
    weights_sha256: str | None = None
    """As the tensors hash, whatever the manifest says."""
    note: str | None = None
    again: Replay | None = None
    """What was run again, or would be."""

    def to_json(self) -> dict[str, Any]:
        report: dict[str, Any] = {
            "format": FORMAT,
            "path": str(self.path),
            "kind": None if self.manifest is None else self.manifest.kind,
            "weights_sha256": self.weights_sha256,
            "holds": self.holds,
            "checks": [asdict(check) for check in self.checks],
        }
        if self.again is not None:
            report["again"] = self.again.to_json()
        return report


@stage(VerifyOptions)
def verify(arguments: VerifyOptions) -> Verification:
    """Check a checkpoint against itself; with `parents` against what it was made from too, with
    `again` against what its history makes now.
    """
    at_hand = None if arguments.parents is None else AtHand(arguments.parents)
    folder = None if arguments.again is None else AtHand(arguments.again)
    try:
        opened = open_any(arguments.checkpoint, arch=arguments.arch)
    except Disagreement as error:  # every other command refuses it; here it is what was asked
        check = Check("manifest", False, error.message)
        return Verification(Path(arguments.checkpoint), (check,))
    if opened.path.suffix == ENDING:
        return _of_graph(opened, arguments)
    checks: list[Check] = []
    if arguments.signature is not None and arguments.public_key is not None:
        checks.append(_signature(opened, Path(arguments.signature), Path(arguments.public_key)))
    contents = read_through(opened)
    checks += checks_alone(opened, contents)
    if at_hand is not None:
        from hydrasurgeon.runtime.difference import Inputs
        from hydrasurgeon.stages.ancestry import ancestry

        inputs = Inputs(arguments.data, arguments)
        # What was fitted to the weights is no part of what surgery made.
        plain = undecided(opened)
        digests = {name: contents.digests[name] for name in plain.tensors}
        checks += ancestry(Hashed(plain, digests), at_hand, inputs)
    result = Verification(
        opened.path,
        tuple(checks),
        opened.manifest,
        weights_sha256(opened.tensors, contents.digests),
        opened.note,
    )
    if folder is None or not result.holds:
        return result
    again = run_again(Hashed(opened, contents.digests), folder, arguments)
    return replace(result, checks=(*checks, *again.checks), again=again)


def _of_graph(opened: Checkpoint, arguments: VerifyOptions) -> Verification:
    """An exported graph: its hash held when it was opened."""
    for name in ("parents", "again", "signature"):
        if getattr(arguments, name) is not None:
            raise UsageError(
                f"{arguments.flag(name)}: {opened.name} is a graph", hint="Verify its checkpoint."
            )
    manifest = opened.manifest
    graph = Check("graph hash", True, "the file is as it was exported")
    checks = (graph, record_check(manifest), history_check(manifest))
    return Verification(opened.path, checks, manifest, manifest.weights_sha256)


def _signature(checkpoint: Checkpoint, signature: Path, public_key: Path) -> Check:
    """Check an OpenSSF model signature: it is by this key, and every file is as it was signed."""
    need("model_signing", "OpenSSL", purpose="verify --signature")
    from model_signing import hashing
    from model_signing.verifying import Config

    if checkpoint.hub_id is not None:
        raise UsageError(
            f"{checkpoint.hub_id} lies in the hub's cache", hint="Download it to a directory first."
        )
    try:
        verifier = Config().use_elliptic_key_verifier(public_key=public_key)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"--public-key {public_key}: not a public key ({_one_line(error)})",
            hint="Give an EC key in PEM: openssl ec -in KEY -pubout.",
        ) from error
    open_regular(signature, error=UsageError).close()
    path = checkpoint.path
    folder = path if path.is_dir() else path.parent
    files = sorted(path.rglob("*")) if path.is_dir() else [path, sidecar(path)]
    files = [each for each in files if each.is_file() and each.resolve() != signature.resolve()]

    class OwnFiles(hashing.Config):
        """Hashes these files, where the library takes everything in the folder."""

        def hash(self, model_path: PathLike, *, files_to_hash: Any = None) -> Signed:
            return super().hash(model_path, files_to_hash=files)

    verifier.set_hashing_config(OwnFiles().set_allow_symlinks(True))  # type: ignore[no-untyped-call]
    try:
        verifier.verify(folder, signature)
    # Whatever the library raises on a signature that is none, or does not hold.
    except Exception as error:
        return Check("signature", False, _one_line(error) or "it is not by this key")
    return Check("signature", True, f"{len(files)} files, by the key in {public_key.name}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
