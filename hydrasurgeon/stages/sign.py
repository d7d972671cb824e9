"""sign: a signature over all files of a checkpoint, and whether one still holds; thin over OpenSSF model-signing.

The manifest lies in the weights' header and beside them, the model card in the directory: both are among the files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.checkpoints.checks import Check
from hydrasurgeon.checkpoints.own_files import own_files
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.foreign import read_bytes
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.names import is_name
from hydrasurgeon.lookup import need

if TYPE_CHECKING:
    from model_signing.hashing import Config, PathLike
    from model_signing.manifest import Manifest

MAX_SIGNATURE = 16 << 20
"""Bytes of a signature file: a hash for each of a hundred thousand files."""
SUFFIX = ".sig"
"""Of a signature."""


@dataclass(frozen=True)
class Signed:
    """Where the signature lies, and the files it covers."""

    path: Path
    files: tuple[Path, ...]


@releases_claims
def sign(checkpoint: str | Path, *, key: str | Path, out: str | Path | None = None, force: bool = False) -> Signed:
    """Sign all files of a checkpoint with an elliptic-curve key."""
    need("model_signing", "OpenSSL", purpose="sign")
    opened = open_checkpoint(checkpoint)
    target = signature_beside(opened) if out is None else Path(out)
    folder, files = covered(opened, target)
    # A signature may lie among the files and be replaced; nothing else of the checkpoint may.
    contents = [path for path in own_files(opened)[1] if path.suffix != SUFFIX]
    target = output_file(target, option="-o", force=force, inputs=[key, *contents])
    opened.digests()  # what does not fit its own manifest is not signed
    from model_signing.signing import Config

    try:
        signer = Config().use_elliptic_key_signer(private_key=key)
    except (OSError, ValueError, TypeError) as error:  # unreadable, no PEM key, encrypted
        raise UsageError(
            f"--key {key}: not a private key that can sign ({_one_line(error)})",
            hint="Give an unencrypted EC key in PEM: openssl ecparam -name prime256v1 -genkey -noout.",
        ) from error
    signer.set_hashing_config(_hashing(files))
    with tempfile.TemporaryDirectory() as scratch:
        signer.sign(folder, Path(scratch) / "signature")
        write_text(target, (Path(scratch) / "signature").read_text(encoding="utf-8"))
    return Signed(target, tuple(files))


def check_signature(checkpoint: Checkpoint, signature: str | Path, public_key: str | Path | None) -> Check:
    """Whether the signature is by this key and every file is as it was signed."""
    need("model_signing", "OpenSSL", purpose="verify --signature")
    if public_key is None:
        raise UsageError("--signature: whose?", hint="Give --public-key F.")
    from model_signing.verifying import Config

    try:
        verifier = Config().use_elliptic_key_verifier(public_key=public_key)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"--public-key {public_key}: not a public key ({_one_line(error)})",
            hint="Give an EC key in PEM: openssl ec -in KEY -pubout.",
        ) from error
    path = Path(signature)
    content = read_bytes(path, most=MAX_SIGNATURE, error=UsageError)
    folder, files = covered(checkpoint, path)
    verifier.set_hashing_config(_hashing(files))
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "signature"
        copy.write_bytes(content)
        try:
            verifier.verify(folder, copy)
        # Whatever the library raises on a signature that is none, or does not hold.
        except Exception as error:
            return Check("signature", False, _one_line(error) or "it is not by this key")
    return Check("signature", True, f"{len(files)} files, by the key in {Path(public_key).name}")


def signature_beside(checkpoint: Checkpoint) -> Path:
    """`X.safetensors` → `X.sig`, and the same for a directory."""
    path = checkpoint.path
    return path.with_name(path.name.removesuffix(".safetensors") + SUFFIX)


def covered(checkpoint: Checkpoint, signature: Path) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and the files: all but the signature itself."""
    if checkpoint.hub_id is not None:
        raise UsageError(f"{checkpoint.hub_id}: lies in the hub's cache", hint="Sign a local copy of it.")
    folder, files = own_files(checkpoint)
    for path in files:
        if not is_name(path.name):  # a signature holds names as text
            raise CheckpointError(f"{str(path)!r}: is no name that can be signed", hint="Rename or remove the file.")
    itself = signature.resolve()
    return folder, [path for path in files if path.resolve() != itself]


def _hashing(files: Sequence[Path]) -> Config:
    """The library hashes a whole folder: here exactly these files of it, no more and no fewer."""
    from model_signing import hashing

    class Covered(hashing.Config):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        def hash(self, model_path: PathLike, *, files_to_hash: Any = None) -> Manifest:
            return super().hash(model_path, files_to_hash=files)

    return Covered().set_allow_symlinks(True)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
